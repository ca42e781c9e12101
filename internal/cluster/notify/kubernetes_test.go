//go:build kubernetes

package notify

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// cluster is an API server of Kubernetes with its etcd.
type cluster struct {
	t       *testing.T
	url, ca string
	admin   *http.Client
}

// newCluster starts both from $QUELL_KUBE.
func newCluster(t *testing.T) *cluster {
	dir, bin := t.TempDir(), os.Getenv("QUELL_KUBE")
	address, etcd, peers := quelltest.FreeAddress(t), "http://"+quelltest.FreeAddress(t), "http://"+quelltest.FreeAddress(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	accounts, tokens := filepath.Join(dir, "accounts.pem"), filepath.Join(dir, "tokens.csv")
	for file, text := range map[string]string{accounts: string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})), tokens: "admin,admin,1,system:masters\n"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run(t, http.DefaultClient, etcd+"/health", exec.Command(filepath.Join(bin, "etcd"), "--data-dir="+filepath.Join(dir, "etcd"), "--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=default="+peers))
	host, port, _ := strings.Cut(address, ":")
	c := &cluster{t: t, url: "https://" + address, ca: filepath.Join(dir, "apiserver.crt")}
	api := exec.Command(filepath.Join(bin, "kube-apiserver"), "--etcd-servers="+etcd, "--bind-address="+host, "--advertise-address=192.0.2.1", "--secure-port="+port, "--cert-dir="+dir,
		"--service-cluster-ip-range=10.96.0.0/24", "--authorization-mode=RBAC", "--token-auth-file="+tokens,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-signing-key-file="+accounts, "--service-account-key-file="+accounts)
	insecure := http.DefaultTransport.(*http.Transport).Clone()
	insecure.TLSClientConfig.InsecureSkipVerify = true // only to wait for the certificate that it makes
	t.Cleanup(insecure.CloseIdleConnections)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	run(t, &http.Client{Transport: insecure}, c.url+"/readyz", api)
	if c.admin, err = NewClient("admin", &config.ServerPeer{TokenFile: secret(t, "admin"), CA: c.ca}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.admin.CloseIdleConnections)
	return c
}

// ask sends a document, or gets one if it is empty, and decodes the answer.
func (c *cluster) ask(path, doc string, into any) {
	c.t.Helper()
	method := "GET"
	if doc != "" {
		method = "POST"
	}
	q, err := http.NewRequest(method, c.url+path, bytes.NewReader([]byte(doc)))
	if err != nil {
		c.t.Fatal(err)
	}
	q.Header.Set("Content-Type", "application/json")
	r, err := c.admin.Do(q)
	if err != nil {
		c.t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode/100 != 2 || json.Unmarshal(text, into) != nil {
		c.t.Fatalf("%s: %s, %v\n%s", path, r.Status, err, text)
	}
}

// A real API server takes the events of a service account that may create events, and nothing else.
func TestKubernetesTakesEvents(t *testing.T) {
	c := newCluster(t)
	var done map[string]any
	for _, name := range []string{"shop", "etl", "quell"} {
		c.ask("/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`, &done)
	}
	c.ask("/api/v1/namespaces/quell/serviceaccounts", `{"metadata":{"name":"quell-server"}}`, &done)
	var account struct{ Status struct{ Token string } }
	c.ask("/api/v1/namespaces/quell/serviceaccounts/quell-server/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`, &account)
	log := &quelltest.Output{}
	n := make1(t, nil, log, func(p *config.ServerNotify) {
		p.Kubernetes.URL, p.Kubernetes.TokenFile, p.Kubernetes.CA = c.url, secret(t, account.Status.Token), c.ca
	})
	start(t, n)
	fire := func(id, job string) {
		r := of(id, "m1", job, "etl/encode/main", detect.Proven, time.Now())
		r.Victim.Name, r.Suspects[0].Name, r.Advice = "shop/web-5d8f7c9b6d-x7k2p/app", "etl/encode-7/main", strings.Repeat("\x1b[2J\n", 1000)
		n.Incident(r)
	}
	fire("0", "a")
	quelltest.Until(t, "the account may not yet create events", func() bool { return strings.Contains(log.String(), "403 Forbidden") })
	const rbac = `/apis/rbac.authorization.k8s.io/v1/clusterrole`
	c.ask(rbac+"s", `{"metadata":{"name":"quell-events"},"rules":[{"apiGroups":["events.k8s.io"],"resources":["events"],"verbs":["create"]}]}`, &done)
	c.ask(rbac+"bindings", `{"metadata":{"name":"quell-events"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"quell-events"},
		"subjects":[{"kind":"ServiceAccount","namespace":"quell","name":"quell-server"}]}`, &done)
	for i := 0; count(n, "kubernetes", "sent") == 0; i++ { // until the authorizer knows the role
		failed := count(n, "kubernetes", "failed")
		fire("w"+string(rune('a'+i)), "b"+string(rune('a'+i)))
		quelltest.Until(t, "the API server has answered", func() bool { return count(n, "kubernetes", "sent") > 0 || count(n, "kubernetes", "failed") > failed })
	}
	if strings.Contains(log.String(), account.Status.Token) {
		t.Error("the token is in the log")
	}
	var got struct{ Items []kubernetesEventShown }
	c.ask("/apis/events.k8s.io/v1/namespaces/shop/events", "", &got)
	if len(got.Items) != 1 {
		t.Fatalf("%d events", len(got.Items))
	}
	e := got.Items[0]
	if e.Regarding.Name != "web-5d8f7c9b6d-x7k2p" || e.Related.Namespace != "etl" || e.Type != "Warning" || e.Reason != "NoisyNeighbour" || e.Controller != "quell-server" ||
		!strings.Contains(e.Note, "is slowed by etl/encode/main (proven): cpi is 3, its threshold 1.5. \\x1b[2J\\n") {
		t.Errorf("%+v", e)
	}
	// What kubectl events --for pod/NAME asks for.
	c.ask("/api/v1/namespaces/shop/events?fieldSelector=involvedObject.kind=Pod,involvedObject.name=web-5d8f7c9b6d-x7k2p", "", &got)
	if len(got.Items) != 1 {
		t.Errorf("%d events by the pod's name", len(got.Items))
	}
}

type kubernetesEventShown struct {
	Type       string `json:"type"`
	Reason     string `json:"reason"`
	Note       string `json:"note"`
	Controller string `json:"reportingController"`
	Regarding  object `json:"regarding"`
	Related    object `json:"related"`
}
