package authority_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
)

func load(t *testing.T, dir string) *authority.Authority {
	t.Helper()
	a, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, a *authority.Authority, role authority.Role, name string, ttl time.Duration) *credential.File {
	t.Helper()
	text, err := a.Issue(role, name, ttl)
	if err != nil {
		t.Fatal(err)
	}
	f, err := credential.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func rotate(t *testing.T, a *authority.Authority, overlap time.Duration, at time.Time) {
	t.Helper()
	if err := a.Rotate(overlap, at); err != nil {
		t.Fatal(err)
	}
}

// accepted reports whether the accounts of a Trust accept credentials.
func accepted(t *testing.T, a *authority.Authority, f *credential.File) bool {
	t.Helper()
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	all, ok := true, false
	for _, account := range credential.Accounts() {
		token, err := f.Token(account)
		if err != nil {
			continue
		}
		c, err := jwt.DecodeUserClaims(token)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := jwt.DecodeAccountClaims(trust.JWTs[trust.Accounts[account]])
		if err != nil {
			t.Fatal(err)
		}
		all, ok = all && claims.DidSign(c) && !claims.IsClaimRevoked(c), true
	}
	return all && ok
}

// obeys reports whether an agent carries out the commands of a server.
func obeys(t *testing.T, agent, server *credential.File, at time.Time) bool {
	t.Helper()
	s, err := server.Sign([]byte("c"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = agent.Verify([]byte("c"), s, at)
	return err == nil
}

// renewed returns the credentials that take the place of an agent's.
func renewed(t *testing.T, a *authority.Authority, f *credential.File, at time.Time) (*credential.File, error) {
	t.Helper()
	public, seed, err := credential.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := a.Renew(f.Name, public, at)
	if err != nil {
		return nil, err
	}
	text, err := f.Renewed(tokens, seed, at)
	if err != nil {
		return nil, err
	}
	return credential.Parse(text)
}

// TestRotate: what the former key signed is valid for the overlap and no longer; agents with
// its credentials accept the new key's commands at once, and get credentials of the new
// key before theirs are due. Credentials of the new key do not accept what a thief of the
// former key signs.
func TestRotate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a := load(t, dir)
	now := time.Now()
	before, err := os.ReadFile(authority.SigningFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	stolen := string(before[strings.Index(string(before), "SA"):][:58])
	const year = 365 * 24 * time.Hour
	m1, never, s1 := issue(t, a, authority.Agent, "m1", year), issue(t, a, authority.Agent, "m2", 0), issue(t, a, authority.Server, "s", year)
	if _, err := renewed(t, a, m1, now); !errors.Is(err, authority.ErrNotDue) {
		t.Errorf("before the rotation: %v", err)
	}

	rotate(t, a, time.Hour, now)
	a = load(t, dir)
	if text, err := os.ReadFile(authority.SigningFile(dir)); err != nil || strings.Contains(string(text), stolen) {
		t.Errorf("the former private key is still there, %v", err)
	}
	s2, m3 := issue(t, a, authority.Server, "s", year), issue(t, a, authority.Agent, "m3", year)
	n1, err := renewed(t, a, m1, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		agent, server  *credential.File
		inside, beyond bool
	}{
		"former agent, former server":  {m1, s1, true, true}, // the bus cuts them off
		"former agent, new server":     {m1, s2, true, false},
		"renewed agent, new server":    {n1, s2, true, true},
		"renewed agent, former server": {n1, s1, false, false},
		"new agent, former server":     {m3, s1, false, false},
	} {
		if got := obeys(t, c.agent, c.server, now); got != c.inside {
			t.Errorf("%s: obeys %v", name, got)
		}
		if got := obeys(t, c.agent, c.server, now.Add(2*time.Hour)); got != c.beyond {
			t.Errorf("%s, after the overlap: obeys %v", name, got)
		}
	}
	for name, f := range map[string]*credential.File{"former agent": m1, "former server": s1, "renewed agent": n1, "new server": s2, "new agent": m3} {
		if !accepted(t, a, f) {
			t.Errorf("%s: not accepted in the overlap", name)
		}
	}
	keys, err := a.SigningKeys(now)
	if err != nil || len(keys) != 2 || len(keys[0].Holders) != 1 || keys[0].Holders[0].Name != "m2" || len(keys[1].Holders) != 3 {
		t.Errorf("keys %+v, %v", keys, err)
	}
	if due, err := a.Due(now.Add(50 * time.Minute)); err != nil || len(due) != 1 || due[0].Name != "m2" {
		t.Errorf("due before the end %+v, %v", due, err)
	}
	if _, err := renewed(t, a, never, now); !errors.Is(err, authority.ErrNotDue) {
		t.Errorf("credentials that are not renewable: %v", err)
	}

	// A second rotation within the overlap: the chain of successors holds.
	rotate(t, a, 0, now)
	s3 := issue(t, a, authority.Server, "s", year)
	if !obeys(t, m1, s2, now) || obeys(t, n1, s3, now) || obeys(t, m1, s3, now) {
		t.Errorf("after a rotation without overlap: %v, %v, %v", obeys(t, m1, s2, now), obeys(t, n1, s3, now), obeys(t, m1, s3, now))
	}
	if accepted(t, a, s2) || accepted(t, a, n1) || !accepted(t, a, m1) || !accepted(t, a, s3) {
		t.Error("the key without overlap is still accepted, or the others are not")
	}
	rotate(t, a, time.Hour, now)
	rotate(t, a, time.Hour, now)
	s5, s4holder := issue(t, a, authority.Server, "s", year), issue(t, a, authority.Agent, "m4", year)
	if !obeys(t, s4holder, s5, now) {
		t.Error("an agent does not obey the key of its own credentials")
	}
	if err := a.Rotate(-time.Hour, now); err == nil {
		t.Error("a negative overlap is accepted")
	}

	// A thief of the former key cannot name itself a successor of the new one.
	pair, err := nkeys.FromSeed([]byte(stolen))
	if err != nil {
		t.Fatal(err)
	}
	key, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	c := jwt.NewAccountClaims(public)
	c.Expires = now.Add(time.Hour).Unix()
	c.Tags.Add(credential.EndorsementTag)
	forged, err := c.Encode(pair)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s1.Sign([]byte("c"))
	if err != nil {
		t.Fatal(err)
	}
	sig.Endorsements = []string{forged}
	if _, err := s4holder.Verify([]byte("c"), sig, now); err == nil {
		t.Error("a forged endorsement is accepted")
	}
}

// TestChainOfRotations: an agent that was off during several rotations obeys the newest key.
func TestChainOfRotations(t *testing.T) {
	a := load(t, filepath.Join(t.TempDir(), "keys"))
	now := time.Now()
	agent := issue(t, a, authority.Agent, "m1", 24*time.Hour)
	for range 3 {
		rotate(t, a, time.Hour, now)
	}
	if !obeys(t, agent, issue(t, a, authority.Server, "s", time.Hour), now) || !accepted(t, a, agent) {
		t.Error("it does not obey, or is not accepted")
	}
	if _, err := renewed(t, a, agent, now); err != nil {
		t.Error(err)
	}
}

// TestKeysOfAnEarlierVersion: in a directory with a private key for each account these keys
// sign until they are replaced. Then they are removed, and after the overlap what they
// signed is revoked.
func TestKeysOfAnEarlierVersion(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(credential.Accounts(), "system") {
		pair, err := nkeys.CreateAccount()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := pair.Seed()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, string(name)+".nk"), seed, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	a := load(t, dir)
	m1, s1 := issue(t, a, authority.Agent, "m1", 24*time.Hour), issue(t, a, authority.Server, "s", time.Hour)
	if !accepted(t, a, m1) || !obeys(t, m1, s1, now) {
		t.Error("credentials of the accounts' own keys are not valid")
	}
	first, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	rotate(t, a, time.Hour, now.Add(time.Minute))
	a = load(t, dir)
	if trust, err := a.Trust(); err != nil || trust.System != first.System || trust.Accounts[credential.Store] != first.Accounts[credential.Store] {
		t.Errorf("the accounts are %+v, were %+v, %v", trust.Accounts, first.Accounts, err)
	}
	s2 := issue(t, a, authority.Server, "s", time.Hour)
	n1, err := renewed(t, a, m1, now)
	if err != nil {
		t.Fatal(err)
	}
	if !accepted(t, a, m1) || !accepted(t, a, n1) || !obeys(t, m1, s2, now) || !obeys(t, n1, s2, now) || obeys(t, n1, s1, now) {
		t.Error("in the overlap")
	}
	left, err := filepath.Glob(filepath.Join(dir, "*.nk"))
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "operator.nk" {
		t.Errorf("private keys left: %v, %v", left, err)
	}
	// The same with the overlap in the past: what they signed is revoked.
	past := filepath.Join(t.TempDir(), "keys")
	if err := os.CopyFS(past, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(authority.SigningFile(past))
	if err != nil {
		t.Fatal(err)
	}
	until := `"until":`
	i := strings.Index(string(text), until) + len(until)
	ended := string(text[:i]) + "1" + string(text[i+10:])
	if err := errors.Join(os.Chmod(past, 0o700), os.WriteFile(authority.SigningFile(past), []byte(ended), fs.FileMode(0o600))); err != nil {
		t.Fatal(err)
	}
	if a = load(t, past); accepted(t, a, m1) || accepted(t, a, s1) {
		t.Error("after the overlap they are still accepted")
	}
}
