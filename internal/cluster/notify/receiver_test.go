package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// request is what a receiver got.
type request struct{ path, authorization, body string }

// received serves as a receiver over TLS; it returns its URL and a file with its certificate.
func received(t *testing.T, answer func(request) int) (url, ca string, got chan request) {
	t.Helper()
	got = make(chan request, 100)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			t.Error(err)
		}
		r := request{q.URL.Path, q.Header.Get("Authorization"), string(body)}
		if status := answer(r); status != 200 {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			w.Write([]byte(r.path + r.authorization)) // as some servers do
		}
		got <- r
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that fail
	s.StartTLS()
	t.Cleanup(s.Close)
	ca = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return s.URL, ca, got
}

func secret(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// start runs a Notifier until the test's end.
func start(t *testing.T, n *Notifier) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { n.Run(ctx); close(ended) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
}

func ok(request) int { return 200 }

func TestAWebhookGetsADocument(t *testing.T) {
	url, ca, got := received(t, ok)
	token := secret(t, "first")
	n := make1(t, nil, nil, func(c *config.ServerNotify) {
		c.Webhook.URLFile, c.Webhook.TokenFile, c.Webhook.CA, c.Link = secret(t, url+"/hook"), token, ca, "https://quell.example"
	})
	start(t, n)
	now := time.Now()
	r := of("inc-1", "m1", "web", "encode", detect.Proven, now)
	r.Advice = "quell cap encode"
	n.Incident(r)
	q := <-got
	var e Event
	if err := json.Unmarshal([]byte(q.body), &e); err != nil || q.path != "/hook" || q.authorization != "Bearer first" {
		t.Fatalf("%v: %v", q, err)
	}
	if e.Version != 1 || e.Event != "firing" || e.Victim.Job != "web" || e.Victim.Task != "/web/1" || e.Suspect.Job != "encode" || e.Suspect.Task != "/encode/1" ||
		e.Level != "proven" || e.Advice != "quell cap encode" || e.Link != "https://quell.example/#/incident/inc-1?machine=m1" ||
		e.Text != "web on m1 is slowed by encode (proven): cpi is 3, its threshold 1.5" {
		t.Errorf("%+v", e)
	}
	if err := os.WriteFile(token, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.Incident(closed(r, now))
	q = <-got
	if err := json.Unmarshal([]byte(q.body), &e); err != nil || q.authorization != "Bearer second" {
		t.Fatalf("%v: %v", q, err)
	}
	if e.Event != "resolved" || e.Outcome != "true-positive" || e.Closed.UnixMilli() != now.UnixMilli() || e.Text != "web on m1 is no longer slowed by encode; outcome: true-positive" {
		t.Errorf("%+v", e)
	}
}

// Certificates are verified, redirects are not followed, and no secret is logged, also if the
// receiver repeats it.
func TestReceiversThatAreNotTrusted(t *testing.T) {
	for _, c := range []struct {
		name, why string
		status    int
		trusted   bool
	}{
		{"a certificate of no known CA", "certificate", 200, false},
		{"a redirect", "it answers 302 Found", 302, true},
		{"a refusal that repeats the request", "it answers 403 Forbidden", 403, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			url, ca, got := received(t, func(request) int { return c.status })
			logged := &quelltest.Output{}
			n := make1(t, nil, logged, func(p *config.ServerNotify) {
				p.Webhook.URL, p.Webhook.TokenFile = url+"/services/hidden", secret(t, "hidden")
				if c.trusted {
					p.Webhook.CA = ca
				}
			})
			if !c.trusted { // it would be tried again for seconds
				q := []byte("{}")
				defer n.receivers[0].client.CloseIdleConnections()
				if retry, err := try(t.Context(), n.receivers[0].client, url, q); !retry || err == nil || !strings.Contains(err.Error(), c.why) {
					t.Errorf("%v", err)
				}
				return
			}
			start(t, n)
			n.Incident(of("1", "m", "web", "encode", detect.Proven, time.Now()))
			quelltest.Until(t, "the failure is logged", func() bool { return strings.Contains(logged.String(), c.why) })
			if strings.Contains(logged.String(), "hidden") {
				t.Errorf("a secret is logged: %s", logged)
			}
			if q := <-got; q.path != "/services/hidden" || len(got) != 0 {
				t.Errorf("%v, and %d more", q, len(got))
			}
		})
	}
}

// What an agent makes up, as a name or as a time, breaks no message: it is one line of graphic
// characters, short, and what receivers accept.
func TestHostileNames(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	long := strings.Repeat("🦑\u202e", 100_000)
	names := []string{"\x1b[2J\x1b[31m", "a\nb\r\n\r\nPOST / HTTP/1.1", `"},{"labels":{"alertname":"Fake"`, "\xff\xfe\x00", long, "", "{{ .Labels }}", "../../../api/v1/secrets", "kube-system/../x/y", "<!channel>"}
	times := []sample.Millis{0, -1, math.MinInt64, math.MaxInt64, sample.At(now.Add(1e6 * time.Hour))}
	for i, name := range names {
		for j, at := range times {
			r := of(name, name, name, name, detect.Proven, now)
			r.Victim.Name, r.Signal, r.Advice, r.Outcome = sample.TaskName(name), sample.SignalName(name), name, "o\n"
			r.Opened, r.Cost = at, 1e308
			e := firing(r, r.Antagonist(), "https://quell.example", now)
			r.Closed = times[(i+j)%len(times)]
			for _, e := range []*Event{e, e.resolved((*incident.Record)(r), now)} {
				check(t, now, e)
			}
		}
	}
}

// check encodes an event in every form.
func check(t *testing.T, now time.Time, e *Event) {
	t.Helper()
	if e.Opened.After(now) || e.Closed.After(now) || !e.Closed.IsZero() && e.Closed.Before(e.Opened) {
		t.Errorf("from %v until %v at %v", e.Opened, e.Closed, now)
	}
	ms := documents("http://hook", []*Event{e})
	ms = append(ms, message{body: alertsOf(now, []*Event{e})})
	if e.Victim.pod.name != "" {
		t.Errorf("%q is a pod", e.Victim.Task)
	}
	e.Victim.pod = pod{"shop", "web-1", "app"}
	ms = append(ms, kubernetesEvents("http://api", "server", now, []*Event{e})...)
	for _, m := range ms {
		body, err := json.Marshal(m.body)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) > 16<<10 {
			t.Errorf("%d bytes: %.100q", len(body), body)
		}
		var v any
		if err := json.Unmarshal(body, &v); err != nil {
			t.Fatal(err)
		}
		walk(v, func(s string) {
			if strings.ContainsFunc(s, func(r rune) bool { return r == unicode.ReplacementChar || !unicode.IsGraphic(r) }) || len(s) > maxNote {
				t.Errorf("%.100q", s)
			}
		})
	}
}

// walk calls each with the texts of a JSON value.
func walk(v any, each func(string)) {
	switch v := v.(type) {
	case string:
		each(v)
	case []any:
		for _, x := range v {
			walk(x, each)
		}
	case map[string]any:
		for k, x := range v {
			each(k)
			walk(x, each)
		}
	}
}

// A stand-in for a Kubernetes API server gets an event of the victim's pod, and none of what is
// no pod.
func TestAPodGetsAnEvent(t *testing.T) {
	url, ca, got := received(t, func(request) int { return 201 })
	n := make1(t, nil, nil, func(c *config.ServerNotify) {
		c.Kubernetes.URL, c.Kubernetes.TokenFile, c.Kubernetes.CA = url, secret(t, "account"), ca
	})
	start(t, n)
	now := time.Now()
	n.Incident(of("0", "m0", "ssh", "encode", detect.Proven, now)) // no pod
	r := of("inc-1", "m1", "shop/web/app", "etl/encode/main", detect.Proven, now)
	r.Victim.Name, r.Suspects[0].Name = "shop/web-5d8f7c9b6d-x7k2p/app", "etl/encode-7/main"
	n.Incident(r)
	q := <-got
	if q.path != "/apis/events.k8s.io/v1/namespaces/shop/events" || q.authorization != "Bearer account" {
		t.Errorf("%+v", q)
	}
	var e kubernetesEvent
	d := json.NewDecoder(bytes.NewReader([]byte(q.body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&e); err != nil {
		t.Fatal(err)
	}
	if *e.Regarding != (object{"v1", "Pod", "shop", "web-5d8f7c9b6d-x7k2p", "spec.containers{app}"}) || *e.Related != (object{"v1", "Pod", "etl", "encode-7", "spec.containers{main}"}) ||
		e.Metadata["namespace"] != "shop" || e.Type != "Warning" || e.Reason != "NoisyNeighbour" || e.Note != "shop/web/app on m1 is slowed by etl/encode/main (proven): cpi is 3, its threshold 1.5" {
		t.Errorf("%+v", e)
	}
	n.Incident(closed(r, now))
	if q := <-got; !strings.Contains(q.body, `"NoisyNeighbourGone"`) || !strings.Contains(q.body, `"Normal"`) {
		t.Errorf("%+v", q)
	}
}

func TestPodOf(t *testing.T) {
	for name, want := range map[string]pod{
		"shop/web-5d8f7c9b6d-x7k2p/app": {"shop", "web-5d8f7c9b6d-x7k2p", "app"}, "a/b.c/d": {"a", "b.c", "d"},
		"/a/b/c": {}, "a/b": {}, "a/b/c/d": {}, "a/../c": {}, "a/b..c/d": {}, "A/b/c": {}, "a/b%2f/c": {}, "a/b?x=1/c": {}, "": {},
		strings.Repeat("n", 64) + "/b/c": {}, "a/" + strings.Repeat("p", 254) + "/c": {}, "docker/web": {}, "a/b/c\n": {},
	} {
		if got := podOf(name); got != want {
			t.Errorf("%q is %v, want %v", name, got, want)
		}
	}
}

// What is wrong with a file is said at the start, without what is in it.
func TestBadFiles(t *testing.T) {
	for name, set := range map[string]func(*config.ServerNotify){
		"notify.webhook.url_file: ": func(c *config.ServerNotify) { c.Webhook.URLFile = secret(t, "ftp://hidden@host/") },
		"notify.webhook.token_file: ": func(c *config.ServerNotify) {
			c.Webhook.URL, c.Webhook.TokenFile = "https://x", secret(t, "two hidden")
		},
		"notify.alertmanager.token_file: ": func(c *config.ServerNotify) { c.Alertmanager.URL, c.Alertmanager.TokenFile = "https://x", "/nowhere" },
		"notify.kubernetes.ca: ": func(c *config.ServerNotify) {
			c.Kubernetes.URL, c.Kubernetes.TokenFile, c.Kubernetes.CA = "https://x", "", secret(t, "hidden")
		},
	} {
		c := config.DefaultServer().Notify
		set(&c)
		if _, err := New(Options{Config: c, Results: NewResults()}); err == nil || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s%v", name, err)
		}
	}
}
