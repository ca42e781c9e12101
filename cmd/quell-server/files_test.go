package main

import (
	"crypto/tls"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestCertificateIsRenewed: the API and the bus of a running server use a certificate that was
// replaced, and an agent that had been cut off trusts its new CA file.
func TestCertificateIsRenewed(t *testing.T) {
	t.Parallel()
	cert, key, pool := selfSigned(t)
	client := func() *http.Client {
		return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	}
	r := startAs(t, &running{tls: client()}, "tls.cert="+cert, "tls.key="+key)
	creds := r.credentials(t, "agent", "m1")
	next, nextKey, nextPool := selfSigned(t)
	for from, to := range map[string]string{next: cert, nextKey: key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	pool = nextPool
	r.tls = client()
	quelltest.Until(t, "the API has the new certificate", quelltest.Paced(func() bool { status, _ := r.get("/readyz"); return status == http.StatusOK }))
	up := r.uplink(t, "m1", creds, func(o *bus.Options) {
		o.URL, o.TLS = "tls://"+r.bus, &tls.Config{RootCAs: nextPool, MinVersion: tls.VersionTLS12}
	})
	up.Samples(one("m1"))
	r.untilSQL("the bus has it too", "SELECT count(*) FROM samples", "[1]")
}

// TestStateDirectoryIsClosed: what an earlier server, or an administrator, left readable in the
// state directory is closed. A directory that others may change is refused.
func TestStateDirectoryIsClosed(t *testing.T) {
	state := t.TempDir()
	for _, dir := range []string{"store/log", "bus", "digests"} {
		if err := os.MkdirAll(filepath.Join(state, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(state, 0o755); err != nil {
		t.Fatal(err)
	}
	r := &running{t: t, api: quelltest.FreeAddress(t), bus: quelltest.FreeAddress(t), state: state}
	r.set = []string{"state_dir=" + state, "listen=" + r.api, "bus.listen=" + r.bus, "log_level=error"}
	r.begin()
	r.end()
	err := filepath.WalkDir(state, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == state {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %s", path, info.Mode())
		}
		if err == nil && d.IsDir() {
			return fs.SkipDir // its mode closes what is in it
		}
		return err
	})
	if err := errors.Join(err, os.Chmod(state, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := quellServer(t, "credentials", "list", "--set", "state_dir="+state); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a state directory that everyone may change: %v", err)
	}
}

// TestCheckOpensFiles: check names a private key that others can read.
func TestCheckOpensFiles(t *testing.T) {
	t.Parallel()
	cert, key, _ := selfSigned(t)
	args := []string{"check", "--set", "tls.cert=" + cert, "--set", "tls.key=" + key}
	if _, err := quellServer(t, args...); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := quellServer(t, args...); err == nil || !strings.Contains(err.Error(), "tls.key") || !strings.Contains(err.Error(), "chmod 0600") {
		t.Errorf("%v", err)
	}
}
