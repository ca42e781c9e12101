package web

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// Every file has the size of its name, over HTTP and HTTPS.
func TestServe(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(s.path("cert.pem"))
	if err != nil {
		t.Fatal(err)
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	plain, secure := listen(), listen()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, s.Dir, plain, secure) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	client := &http.Client{Transport: transport}
	for _, base := range []string{"http://" + plain.Addr().String(), "https://" + secure.Addr().String()} {
		for _, n := range Sizes() {
			resp, err := client.Get(fmt.Sprintf("%s/%dk", base, n))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != 200 || len(text) != n*1024 {
				t.Errorf("%s/%dk: %s, %d bytes, %v", base, n, resp.Status, len(text), err)
			}
		}
	}
	transport.CloseIdleConnections()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// An existing site keeps its key.
	if _, err := Open(s.Dir); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(s.path("cert.pem")); err != nil || string(after) != string(before) {
		t.Error("another certificate", err)
	}
}

func TestCommand(t *testing.T) {
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	for _, program := range []string{"nginx", "apache2"} {
		if err := os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for kind, want := range map[string]string{Go: "quell lab-serve " + s.Dir, Nginx: bin + "/nginx -c " + s.path("run", "vm1", "nginx.conf"), Apache: bin + "/apache2 -X -f " + s.path("run", "vm1", "apache2.conf")} {
		argv, err := s.Command(kind, "vm1", []string{"quell", "lab-serve"})
		if err != nil || !strings.HasPrefix(strings.Join(argv, " "), want) {
			t.Errorf("%s: %q, %v; want %q", kind, argv, err, want)
		}
		if kind == Go {
			continue
		}
		conf, err := os.ReadFile(s.path("run", "vm1", filepath.Base(argv[0])+".conf"))
		for _, word := range []string{s.path("files"), s.path("cert.pem"), "80", "443"} {
			if err != nil || !strings.Contains(string(conf), word) {
				t.Errorf("%s: no %s in its configuration, %v", kind, word, err)
			}
		}
	}
	if _, err := s.Command("iis", "vm1", nil); err == nil || !strings.Contains(err.Error(), "want one of nginx") {
		t.Error(err)
	}
}
