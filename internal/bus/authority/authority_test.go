package authority_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/bus/authority"
	"github.com/quell-dev/quell/internal/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// Keys are made once, are the owner's alone, and stay the same.
func TestKeysStay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 3 {
		t.Fatalf("%d keys, %v", len(names), err)
	}
	for _, n := range names {
		if info, err := n.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", n.Name(), info.Mode(), err)
		}
	}
	second, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	x, err := first.Trust()
	if err != nil {
		t.Fatal(err)
	}
	y, err := second.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if x.Account != y.Account || x.System != y.System || x.Account == x.System {
		t.Errorf("accounts %s, %s; then %s, %s", x.Account, x.System, y.Account, y.System)
	}
}

func TestKeysRefused(t *testing.T) {
	open := t.TempDir() // 0755
	if err := os.Chmod(open, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Load(open); err == nil || !strings.Contains(err.Error(), "chmod 0700") {
		t.Errorf("a directory that others may read: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := authority.Load(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "account.nk"), []byte("SAxyz"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Load(dir); err == nil || !strings.Contains(err.Error(), "account.nk") {
		t.Errorf("a damaged key: %v", err)
	} else if strings.Contains(err.Error(), "SAxyz") {
		t.Errorf("the error shows the key: %v", err)
	}
}

func TestIssue(t *testing.T) {
	a, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	x, err := a.Issue(authority.Agent, "m", 0)
	if err != nil || !bytes.Contains(x, []byte("BEGIN NATS USER JWT")) || !bytes.Contains(x, []byte("USER NKEY SEED")) {
		t.Errorf("%s, %v", x, err)
	}
	if y, err := a.Issue(authority.Agent, "m", 0); err != nil || bytes.Equal(x, y) {
		t.Errorf("the same again, %v", err)
	}
	for _, c := range []struct {
		role authority.Role
		name string
	}{{"root", "m"}, {authority.Agent, ""}} {
		if _, err := a.Issue(c.role, c.name, 0); err == nil {
			t.Errorf("%q for %q was issued", c.role, c.name)
		}
	}
}
