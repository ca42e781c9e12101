package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFilesWithSecrets: a file with a secret that other users can read, and a file that they
// can change, are problems of the configuration.
func TestFilesWithSecrets(t *testing.T) {
	dir := t.TempDir()
	name := func(key string) string { return filepath.Join(dir, key) }
	write := func(key string, mode os.FileMode) {
		t.Helper()
		if err := errors.Join(os.WriteFile(name(key), nil, 0o600), os.Chmod(name(key), mode)); err != nil {
			t.Fatal(err)
		}
	}
	a, s := Default(), DefaultServer()
	if err := errors.Join(a.CheckFiles(), s.CheckFiles()); err != nil {
		t.Errorf("the defaults name no file: %v", err)
	}
	a.Server.Credentials, a.Server.TLS = name("server.credentials"), UplinkTLS{name("server.tls.ca"), name("server.tls.cert"), name("server.tls.key")}
	s.TLS, s.TokensFile, s.Bus.Credentials, s.Bus.CA = ServerTLS{name("tls.cert"), name("tls.key")}, name("tokens_file"), name("bus.credentials"), name("bus.ca")
	s.OTLP.URL, s.OTLP.TokenFile, s.OTLP.CA, s.Notify.Webhook.URLFile = "https://x", name("otlp.token_file"), name("otlp.ca"), name("notify.webhook.url_file")
	s.Notify.Kubernetes.URL, s.Notify.Kubernetes.ServerPeer = "https://x", ServerPeer{name("notify.kubernetes.token_file"), name("notify.kubernetes.ca")}
	checks := map[string]func() error{"otlp.token_file": s.CheckFiles, "otlp.ca": s.CheckFiles, "notify.webhook.url_file": s.CheckFiles,
		"notify.kubernetes.token_file": s.CheckFiles, "notify.kubernetes.ca": s.CheckFiles,
		"server.credentials": a.CheckFiles, "server.tls.key": a.CheckFiles, "server.tls.cert": a.CheckFiles, "server.tls.ca": a.CheckFiles,
		"tls.cert": s.CheckFiles, "tls.key": s.CheckFiles, "tokens_file": s.CheckFiles, "bus.credentials": s.CheckFiles, "bus.ca": s.CheckFiles}
	secrets := "server.credentials server.tls.key tls.key bus.credentials otlp.token_file notify.webhook.url_file"
	for key, check := range checks {
		if err := check(); err == nil || !strings.Contains(err.Error(), key+": ") || !strings.Contains(err.Error(), "no such file") {
			t.Errorf("%s is missing: %v", key, err)
		}
	}
	a.Server.Later = true
	if err := a.CheckFiles(); err == nil || strings.Contains(err.Error(), "server.credentials") || !strings.Contains(err.Error(), "server.tls.key") {
		t.Errorf("credentials that come later are missing: %v", err)
	}
	for key := range checks {
		write(key, 0o600)
	}
	for key, check := range checks {
		secret := strings.Contains(" "+secrets+" ", " "+key+" ")
		for mode, bad := range map[os.FileMode]bool{0o600: false, 0o640: false, 0o400: false, 0o644: secret, 0o604: secret, 0o660: true, 0o602: true, 0o666: true} {
			write(key, mode)
			if err := check(); (err != nil) != bad || bad && !strings.Contains(err.Error(), "chmod") {
				t.Errorf("%s of mode %o: %v", key, mode, err)
			}
		}
		write(key, 0o600)
		if os.Geteuid() != 0 {
			continue // only root can give a file away
		}
		if err := os.Chown(name(key), 12345, -1); err != nil {
			t.Fatal(err)
		}
		if err := check(); err == nil || !strings.Contains(err.Error(), "of root or of the user") {
			t.Errorf("%s of another user: %v", key, err)
		}
		if err := os.Chown(name(key), 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(name("folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.TLS.Key = name("folder")
	if err := s.CheckFiles(); err == nil || !strings.Contains(err.Error(), "a regular file") {
		t.Errorf("a folder: %v", err)
	}
}

// TestBusURL: the server's own connection to an external NATS server is checked as an agent's:
// in plain text it stays on this machine.
func TestBusURL(t *testing.T) {
	for _, c := range []struct{ url, credentials, want string }{
		{"nats://127.0.0.1:4222", "", ""},
		{"nats://localhost:4222,nats://[::1]:4223", "", ""},
		{"tls://nats.example:4222", "x.creds", ""},
		{"nats://10.0.0.1:4222", "x.creds", "tls:// beyond loopback"},
		{"nats://10.0.0.1", "x.creds", "tls:// beyond loopback"},
		{"tls://a:4222,nats://b:4222", "x.creds", "tls:// beyond loopback"},
		{"tls://nats.example:4222", "", "bus.credentials"},
		{"ws://127.0.0.1:80", "", "tls://HOST:PORT or nats://HOST:PORT"},
		{"10.0.0.1:4222", "", "tls://HOST:PORT or nats://HOST:PORT"},
		{"nats://quell:secret@127.0.0.1:4222", "", "may contain a password"},
	} {
		_, err := LoadServer("", nil, []string{"bus.url=" + c.url, "bus.credentials=" + c.credentials})
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "secret@")) {
			t.Errorf("%s: %v, want %q", c.url, err, c.want)
		}
	}
}
