package origin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

// Kubelet is where the kubelet lists its pods. CRI does not tell a pod's priority class and owner.
type Kubelet struct {
	URL   string // https://127.0.0.1:10250/pods; "": it is not asked
	Token string // file with the bearer token; "" for none
	CA    string // file with the CA of the kubelet's certificate; "": the machine's
}

// pods adds what the kubelet says to the records of the containers of its pods, by the pod's UID.
func (k *Kubelet) pods(ctx context.Context) (map[string]*record, error) {
	if k.URL == "" {
		return nil, nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, bracketed(k.URL), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	if k.Token != "" {
		token, err := os.ReadFile(k.Token)
		if err != nil {
			return nil, fmt.Errorf("ask the kubelet: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	roots, err := k.roots()
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the kubelet at %s: %s", k.URL, resp.Status)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxMessage))
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	all, err := readPods(text)
	if err != nil {
		return nil, fmt.Errorf("read the kubelet's pods: %w", err)
	}
	return all, nil
}

// bracketed puts an IPv6 address into the brackets that it needs in a URL. A pod's environment has the
// node's address without them, and a manifest cannot add them for one kind of address only.
func bracketed(url string) string {
	scheme, rest, _ := strings.Cut(url, "://")
	host, path, _ := strings.Cut(rest, "/")
	if i := strings.LastIndexByte(host, ':'); strings.Count(host, ":") > 1 && host[0] != '[' {
		return scheme + "://[" + host[:i] + "]" + host[i:] + "/" + path
	}
	return url
}

func (k *Kubelet) roots() (*x509.CertPool, error) {
	if k.CA == "" {
		return nil, nil
	}
	text, err := os.ReadFile(k.CA)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, errors.New(k.CA + " has no certificate")
	}
	return roots, nil
}

// readPods reads a PodList (kubernetes.io/docs/reference/kubernetes-api, v1).
func readPods(text []byte) (map[string]*record, error) {
	var list struct {
		Items []struct {
			Metadata struct {
				UID, Name, Namespace string
				Labels, Annotations  map[string]string
				OwnerReferences      []struct {
					Kind, Name string
					Controller bool
				}
			}
			Spec struct {
				PriorityClassName string
				Priority          int
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	all := make(map[string]*record, len(list.Items))
	for i := range list.Items {
		p := &list.Items[i]
		m := &p.Metadata
		r := &record{namespace: m.Namespace, pod: m.Name, labels: m.Labels, annotations: m.Annotations,
			priorityClass: p.Spec.PriorityClassName, priority: p.Spec.Priority}
		for _, o := range m.OwnerReferences {
			switch hash := templateHash(m.Labels); {
			case !o.Controller:
			case o.Kind == "ReplicaSet" && hash != "":
				r.owner = strings.TrimSuffix(o.Name, "-"+hash) // the Deployment's name
			case o.Kind == "Job":
				r.owner = cronJob(o.Name)
			case o.Kind == "Node": // of a static pod, whose name ends with the node's
				r.owner = strings.TrimSuffix(m.Name, "-"+o.Name)
			default:
				r.owner = o.Name
			}
		}
		uid := m.UID
		// A static pod has the hash of its file as UID in its cgroup's path. Others' annotations are their tenants', but
		// for the source, which the kubelet writes.
		hash, source := m.Annotations["kubernetes.io/config.hash"], m.Annotations["kubernetes.io/config.source"]
		if hash != "" && (source == "file" || source == "http") {
			all[hash] = r
		}
		all[uid] = r
	}
	return all, nil
}
