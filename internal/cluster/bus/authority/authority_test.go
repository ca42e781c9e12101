package authority_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// TestKeysStay: keys are created once, are readable only by the owner, and do not change.
func TestKeysStay(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	first, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadDir(dir)
	if err != nil || len(names) != 8 { // with the lock
		t.Fatalf("%d files, %v", len(names), err)
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
	if !maps.Equal(x.Accounts, y.Accounts) || x.System != y.System || x.Signing != y.Signing || len(x.JWTs) != 5 {
		t.Errorf("accounts %v, %s; then %v, %s", x.Accounts, x.System, y.Accounts, y.System)
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
	for _, name := range []string{"signing.json", "samples.pub", "samples.nk"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(`{"seed":"SAxyz"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := authority.Load(dir); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("a damaged key in %s: %v", name, err)
		} else if strings.Contains(err.Error(), "SAxyz") {
			t.Errorf("the error shows the key: %v", err)
		}
	}
	old := filepath.Join(t.TempDir(), "keys")
	if err := errors.Join(os.Mkdir(old, 0o700), os.WriteFile(filepath.Join(old, "account.nk"), []byte("SAxyz"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := authority.Load(old); err == nil || !strings.Contains(err.Error(), "account.nk, of an older quell-server") {
		t.Errorf("keys of an older server: %v", err)
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
	}{{"root", "m"}, {"operator", "olga"}, {authority.Agent, ""}} {
		if _, err := a.Issue(c.role, c.name, 0); err == nil {
			t.Errorf("%q for %q was issued", c.role, c.name)
		}
	}
}

// TestAttackManySubscriptions: a message is delivered once for each subscription. In the accounts in which the
// server answers, an agent has few.
func TestAttackManySubscriptions(t *testing.T) {
	a, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	f := issue(t, a, authority.Agent, "m", 0)
	for account, most := range map[credential.Account]int64{credential.Samples: 16, credential.Commands: 16, credential.Specs: 2000} {
		token, err := f.Token(account)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := jwt.DecodeUserClaims(token); err != nil || c.Limits.Subs != most {
			t.Errorf("%s: %v, %v", account, c, err)
		}
	}
}

// TestRevoke: issued credentials are listed, and Trust contains the revoked ones, also
// after a restart. Later credentials and those of other holders are not affected.
func TestRevoke(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(role authority.Role, name string, ttl time.Duration) *jwt.UserClaims {
		t.Helper()
		text, err := a.Issue(role, name, ttl)
		if err != nil {
			t.Fatal(err)
		}
		token, err := jwt.ParseDecoratedJWT(text)
		if err != nil {
			t.Fatal(err)
		}
		c, err := jwt.DecodeUserClaims(token)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first, ended, other, viewer := issue(authority.Agent, "m1", 0), issue(authority.Agent, "m1", -time.Hour), issue(authority.Agent, "m2", 0), issue(authority.Viewer, "m1", 0)
	if n, err := a.Revoke(authority.Agent, "m1", time.Now()); n != 1 || err != nil {
		t.Errorf("%d good ones were revoked, %v; want 1", n, err)
	}
	if n, err := a.Revoke(authority.Agent, "m1", time.Now()); n != 0 || err != nil {
		t.Errorf("%d were revoked again, %v", n, err)
	}
	again := issue(authority.Agent, "m1", 0)
	if a, err = authority.Load(dir); err != nil {
		t.Fatal(err)
	}
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	var accounts []*jwt.AccountClaims
	for _, key := range trust.Accounts {
		account, err := jwt.DecodeAccountClaims(trust.JWTs[key])
		if err != nil {
			t.Fatal(err)
		}
		accounts = append(accounts, account)
	}
	for name, c := range map[string]struct {
		claims  *jwt.UserClaims
		revoked bool
	}{"the first": {first, true}, "one that had ended": {ended, true}, "another machine's": {other, false},
		"a viewer's of that name": {viewer, false}, "one issued since": {again, false}} {
		for _, account := range accounts {
			if got := account.IsClaimRevoked(c.claims); got != c.revoked {
				t.Errorf("%s in %s: revoked %v, want %v", name, account.Name, got, c.revoked)
			}
		}
	}
	all, err := a.Issued()
	if err != nil || len(all) != 5 || all[0].Name != "m1" || all[0].Revoked == 0 || all[2].Revoked != 0 || all[1].Expires >= time.Now().Unix() {
		t.Errorf("issued %+v, %v", all, err)
	}
	// If the revocations cannot be read, Trust must fail rather than accept every client.
	if err := os.WriteFile(authority.RevokedFile(dir), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Trust(); err == nil {
		t.Error("a damaged list of what was revoked is no error")
	}
}

// TestRenewedAmongMany: a renewal decodes the records of its own machine, not those of all: after an outage
// thousands may be due at once.
func TestRenewedAmongMany(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a := load(t, dir)
	f := issue(t, a, authority.Agent, "m<0>", time.Hour)
	file := filepath.Join(dir, "issued.jsonl")
	line, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const others = 10_000
	text := line
	for i := range others {
		text = append(text, bytes.Replace(line, []byte("m\\u003c0"), fmt.Appendf(nil, "m\\u003c0.%d", i), 1)...)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := a.Issued(); err != nil || len(all) != others+1 || all[others].Name != "m<0.9999>" {
		t.Errorf("%d were issued, %v", len(all), err)
	}
	if n := testing.AllocsPerRun(1, func() { _, err = renewed(t, a, f, time.Now()) }); n > others || !errors.Is(err, authority.ErrNotDue) {
		t.Errorf("%v allocations, %v", n, err)
	}
	if _, err := renewed(t, a, f, time.Now().Add(50*time.Minute)); err != nil {
		t.Errorf("when they are due: %v", err)
	}
}

// TestRenewedAfterARestore: in a copy of the keys that was restored, the credentials of a machine have expired. Those
// that it has renewed since then have not, and are renewed too.
func TestRenewedAfterARestore(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "keys"), time.Now()
	a := load(t, dir)
	f := issue(t, a, authority.Agent, "m1", time.Hour)
	file := filepath.Join(dir, "issued.jsonl")
	saved, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	f, err = renewed(t, a, f, now.Add(50*time.Minute))
	if err == nil {
		err = os.WriteFile(file, saved, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := renewed(t, load(t, dir), f, now.Add(90*time.Minute)); err != nil {
		t.Errorf("after the restore: %v", err)
	}
}

// TestEndedKeyIsNotRenewed: until a rotation without overlap has cut off what a thief of the key has signed, it gets
// nothing that the new key signs.
func TestEndedKeyIsNotRenewed(t *testing.T) {
	a, now := load(t, filepath.Join(t.TempDir(), "keys")), time.Now()
	f := issue(t, a, authority.Agent, "m1", 90*24*time.Hour)
	rotate(t, a, 0, now)
	if _, err := renewed(t, a, f, now.Add(time.Second)); !errors.Is(err, authority.ErrNotDue) {
		t.Errorf("renewed: %v", err)
	}
}

// TestRevokedWhileOthersChange: machines are revoked by as many processes at the same time, while each
// renews its credentials. No revocation is lost, and none of them has credentials afterwards.
func TestRevokedWhileOthersChange(t *testing.T) {
	dir, now := filepath.Join(t.TempDir(), "keys"), time.Now()
	const machines = 16
	for i := range machines {
		if _, err := load(t, dir).Enrol(fmt.Sprint("m", i), time.Hour, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	var all sync.WaitGroup
	var renewed atomic.Int32
	for i := range machines {
		name, revoker, renewer := fmt.Sprint("m", i), load(t, dir), load(t, dir)
		all.Go(func() {
			if n, err := revoker.Revoke(authority.Agent, name, now); n == 0 || err != nil {
				t.Errorf("%s: %d revoked, %v", name, n, err)
			}
		})
		all.Go(func() {
			key, _, err := credential.NewKey()
			if err == nil {
				_, err = renewer.Renew(name, key, now)
			}
			if err == nil {
				renewed.Add(1)
			} else if !errors.Is(err, authority.ErrNotDue) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	issued, err := load(t, dir).Issued()
	if err != nil || len(issued) != machines+int(renewed.Load()) {
		t.Errorf("%d are on record, %v, want %d and %d renewed", len(issued), err, machines, renewed.Load())
	}
	for _, i := range issued {
		if i.Revoked == 0 {
			t.Errorf("credentials of %s are valid", i.Name)
		}
	}
}

// TestRevokedIsNotRenewed: a machine's credentials are revoked, and it is enrolled again at once. Who holds the revoked ones
// and is not cut off yet gets none of the new ones, and never any for a revoked key.
func TestRevokedIsNotRenewed(t *testing.T) {
	a, now := load(t, filepath.Join(t.TempDir(), "keys")), time.Now()
	stolen, err := issue(t, a, authority.Agent, "m1", 90*24*time.Hour).Key()
	if err == nil {
		_, err = a.Revoke(authority.Agent, "m1", now)
	}
	if err == nil {
		_, err = a.Enrol("m1", time.Hour, 90*24*time.Hour)
	}
	if err != nil {
		t.Fatal(err)
	}
	fresh, _, err := credential.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		key   string
		after time.Duration
		ok    bool
	}{{stolen, 0, false}, {fresh, 0, false}, {fresh, 5 * time.Second, false}, {stolen, time.Minute, false}, {fresh, time.Minute, true}} {
		if _, err := a.Renew("m1", c.key, now.Add(c.after)); (err == nil) != c.ok || err != nil && !errors.Is(err, authority.ErrNotDue) {
			t.Errorf("after %s, the revoked key: %v: %v", c.after, c.key == stolen, err)
		}
	}
}

// TestALineThatWasCutOff: a line truncated by a full disk corrupts neither the list nor
// the next entry. All credentials that are in use can still be revoked.
func TestALineThatWasCutOff(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(name string) {
		t.Helper()
		if _, err := a.Issue(authority.Agent, name, 0); err != nil {
			t.Fatal(err)
		}
	}
	issue("m1")
	file := filepath.Join(dir, "issued.jsonl")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(text, text[:len(text)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"m1", "m2"} {
		if name != "m1" {
			issue(name)
		}
		if n, err := a.Revoke(authority.Agent, name, time.Now()); n != 1 || err != nil {
			t.Errorf("%d credentials of %s were revoked, %v; want 1", n, name, err)
		}
	}
	if all, err := a.Issued(); err != nil || len(all) != 2 {
		t.Errorf("issued %+v, %v", all, err)
	}
}
