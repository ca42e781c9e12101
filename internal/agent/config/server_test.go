package config

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/spec"
)

func TestServerReferenceIsTheDefaults(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "server.yaml")
	if err := os.WriteFile(file, []byte(ServerReference()), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := LoadServer(file, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := DefaultServer(); !reflect.DeepEqual(*got, want) {
		t.Errorf("got %+v\nwant %+v", *got, want)
	}
	want := spec.Paper()
	want.MinMachines = 3 // the paper trusts its machines
	if got.SpecParams() != want {
		t.Errorf("specs are learnt by %+v, the paper's rules are %+v", got.SpecParams(), want)
	}
}

// The page contains the current reference; -update updates it.
func TestServerPage(t *testing.T) {
	name := filepath.Join(repo, "docs", "server.md")
	page, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- reference: made by go test ./internal/agent/config -update -->\n```yaml\n", "```\n<!-- end -->\n"
	before, rest, ok := strings.Cut(string(page), begin)
	got, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no block", name)
	}
	if *update {
		if err := os.WriteFile(name, []byte(before+begin+ServerReference()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
		got = ServerReference()
	}
	if got != ServerReference() {
		t.Errorf("%s is out of date; go test ./internal/agent/config -update", name)
	}
}

// All problems are reported at once, each with its location.
func TestServerProblems(t *testing.T) {
	file := filepath.Join(t.TempDir(), "server.yaml")
	if err := os.WriteFile(file, []byte("listen: 0.0.0.0:9781\nstore: {flush: 1h, keep_samples: 24h}\nsurplus: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := LoadServer(file, []string{"QUELL_SERVER_QUERY_ROWS=none"}, []string{"tls.key=k.pem", "bus.listen=here", "specs.engine=sc://a:1", "specs.threshold=gev"})
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Fatal(err)
	}
	for _, want := range []string{"server.yaml:2: store.flush: 1h0m0s: want 100ms to 1m", "server.yaml:3: surplus", "$QUELL_SERVER_QUERY_ROWS: query.rows: \"none\"",
		"tls.cert: \"\": want a certificate, since listen", "tokens_file", "--set: tls.key", "--set: bus.listen: \"here\": want HOST:PORT",
		"specs.look_back: 336h0m0s: want at most store.keep_samples, 24h0m0s", "specs.threshold: \"gev\": want sigmas, since specs.engine"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in\n%v", want, err)
		}
	}
	if n := len(invalid.Problems); n != 9 {
		t.Errorf("%d problems, want 9\n%v", n, err)
	}
}

// TestLookBackWithinRetention: samples of incidents that were removed would teach what is normal.
func TestLookBackWithinRetention(t *testing.T) {
	_, err := LoadServer("", nil, []string{"store.keep_records=48h", "specs.look_back=49h"})
	if err == nil || !strings.Contains(err.Error(), "specs.look_back: 49h0m0s: want at most store.keep_records, 48h0m0s") {
		t.Errorf("%v", err)
	}
	if _, err := LoadServer("", nil, []string{"store.keep_records=48h", "specs.look_back=48h"}); err != nil {
		t.Error(err)
	}
}

func TestServerOnLoopbackNeedsNothing(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:9781", "localhost:80"} {
		s, err := LoadServer("", nil, []string{"listen=" + address, "store.flush=1s"})
		if err != nil || s.Store.Flush != time.Second {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestReceivers: a token goes over TLS or stays on the machine, and a URL with a password is not
// shown.
func TestReceivers(t *testing.T) {
	for _, c := range []struct{ settings, problem string }{
		{"notify.webhook.url=https://example.net/hook?x=1 notify.webhook.token_file=t", ""},
		{"notify.webhook.url=http://example.net/hook", ""},
		{"notify.webhook.url_file=f notify.webhook.token_file=t", ""},
		{"notify.alertmanager.url=http://127.0.0.1:9093 notify.alertmanager.token_file=t", ""},
		{"otlp.url=http://[::1]:4318 otlp.token_file=t", ""},
		{"notify.kubernetes.url=https://kubernetes.default.svc", ""},
		{"notify.kubernetes.url=http://kubernetes.default.svc", "notify.kubernetes.url: a URL that is not shown because it may contain a password: want https:// beyond loopback, since a token is sent"},
		{"otlp.url=http://collector:4318 otlp.token_file=t", "otlp.url: a URL that is not shown because it may contain a password: want https:// beyond loopback"},
		{"notify.webhook.url=https://me:hidden@example.net/", "notify.webhook.url: a URL that is not shown because it may contain a password: want http://HOST:PORT or https://HOST:PORT, without"},
		{"notify.alertmanager.url=file:///hidden", "notify.alertmanager.url: a URL that is not shown"},
		{"notify.link=quell/hidden", "notify.link: a URL that is not shown"},
		{"notify.webhook.url=https://a notify.webhook.url_file=f", "notify.webhook.url or this, not both"},
		{"notify.level=none", "notify.level: \"none\""},
	} {
		_, err := LoadServer("", nil, strings.Fields(c.settings))
		if (err == nil) != (c.problem == "") || err != nil && (!strings.Contains(err.Error(), c.problem) || strings.Contains(err.Error(), "hidden")) {
			t.Errorf("%s: %v", c.settings, err)
		}
	}
}
