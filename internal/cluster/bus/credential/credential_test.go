package credential_test

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func issue(t *testing.T, a *authority.Authority, role authority.Role, ttl time.Duration) []byte {
	t.Helper()
	text, err := a.Issue(role, "x", ttl)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestFile: what the authority writes is read back, and NATS's own tools can use it.
func TestFile(t *testing.T) {
	a, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	for role, accounts := range map[authority.Role][]credential.Account{
		authority.Agent:  {credential.Samples, credential.Specs, credential.Commands},
		authority.Server: {credential.Store, credential.Samples, credential.Commands},
		authority.Viewer: {credential.Samples, credential.Specs},
	} {
		begun := time.Now().Truncate(time.Second) // JWTs have seconds, and each its own
		text := issue(t, a, role, time.Hour)
		ended := time.Now()
		f, err := credential.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		within := func(at time.Time, after time.Duration) bool {
			return !at.Before(begun.Add(after)) && !at.After(ended.Add(after))
		}
		if f.Role != string(role) || f.Name != "x" || !within(f.Issued, 0) || !within(f.Expires, time.Hour) {
			t.Errorf("%s: %+v", role, f)
		}
		var got []credential.Account
		for _, account := range credential.Accounts() {
			if _, err := f.Token(account); err == nil {
				got = append(got, account)
			}
		}
		if len(got) != len(accounts) || got[0] != accounts[0] || got[len(got)-1] != accounts[len(accounts)-1] {
			t.Errorf("%s: accounts %v, want %v", role, got, accounts)
		}
		if _, err := f.Sign([]byte("c")); (err == nil) != (role == authority.Server) {
			t.Errorf("%s signs commands: %v", role, err)
		}
		token, err := jwt.ParseDecoratedJWT(text)
		if err != nil {
			t.Fatal(err)
		}
		key, err := nkeys.ParseDecoratedNKey(text)
		if err != nil {
			t.Fatal(err)
		}
		claims, err := jwt.DecodeUserClaims(token)
		if err != nil {
			t.Fatal(err)
		}
		if public, err := key.PublicKey(); err != nil || claims.Subject != public {
			t.Errorf("%s: NATS's tools read the JWT of %s and the key of %s, %v", role, claims.Subject, public, err)
		}
	}
}

// TestFileRefused: a damaged file is an error that shows no key.
func TestFileRefused(t *testing.T) {
	a, err := authority.Load(filepath.Join(t.TempDir(), "keys"))
	if err != nil {
		t.Fatal(err)
	}
	good := issue(t, a, authority.Server, 0)
	at := bytes.Index(good, []byte("\nSU")) + 1
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	damage := func(i int) []byte {
		text := bytes.Clone(good)
		text[i] = map[bool]byte{true: 'B', false: 'A'}[text[i] == 'A']
		return text
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"nothing":            {nil, "not of this version"},
		"another kind":       {[]byte("-----BEGIN RSA PRIVATE KEY-----\nx\n------END"), "damaged"},
		"a damaged key":      {damage(at + 20), "a key is damaged"},
		"a damaged JWT":      {damage(at / 2), "a JWT is damaged"},
		"another's key":      {append(append(bytes.Clone(good[:at]), seed...), good[at+len(seed):]...), "the private key for"},
		"without a key":      {good[:at-1], "the private key for"},
		"of an old server":   {old(t), "not of this version"},
		"of a signer only":   {good[bytes.LastIndex(good, []byte("-----BEGIN NATS USER JWT")):], "not of this version"},
		"with a second user": {append(bytes.Clone(good), issue(t, a, authority.Viewer, 0)...), "of two holders"},
	} {
		f, err := credential.Parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
		if err != nil && strings.Contains(err.Error(), string(good[at:at+20])) {
			t.Errorf("%s: the error shows the key: %v", name, err)
		}
	}
	if _, err := credential.Load(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// old makes credentials as they were before there were several accounts.
func old(t *testing.T) []byte {
	t.Helper()
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.NewUserClaims(public).Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestDue(t *testing.T) {
	issued := time.Unix(1_800_000_000, 0)
	day := 24 * time.Hour
	for _, c := range []struct {
		life, left time.Duration
		due        bool
	}{{4 * time.Hour, time.Hour + 1, false}, {4 * time.Hour, time.Hour, true}, {4 * time.Hour, -time.Hour, true}, {365 * day, 15 * day, false}, {365 * day, 14 * day, true}} {
		expires := issued.Add(c.life)
		if got := credential.Due(issued, expires, expires.Add(-c.left)); got != c.due {
			t.Errorf("%s of %s left: %v", c.left, c.life, got)
		}
	}
	if credential.Due(issued, time.Time{}, issued.AddDate(10, 0, 0)) {
		t.Error("what never expires is due")
	}
}

// FuzzParse: text that is read as credentials, tokens that come as renewed ones, and the parts of a
// signature, which come from the bus. None of them is believed unless the authority has signed it.
func FuzzParse(f *testing.F) {
	a, err := authority.Load(filepath.Join(f.TempDir(), "keys"))
	if err != nil {
		f.Fatal(err)
	}
	text := func(role authority.Role) []byte {
		text, err := a.Issue(role, "x", time.Hour)
		if err != nil {
			f.Fatal(err)
		}
		return text
	}
	server, err := credential.Parse(text(authority.Server))
	if err != nil {
		f.Fatal(err)
	}
	agent, err := credential.Parse(text(authority.Agent))
	if err != nil {
		f.Fatal(err)
	}
	signed := []byte("command")
	s, err := server.Sign(signed)
	if err != nil {
		f.Fatal(err)
	}
	_, seed, err := credential.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	now := time.Now()
	f.Add(text(authority.Agent), s.Signer, "", s.Bytes)
	f.Add(text(authority.Server), "a.b.c", s.Signer, []byte{})
	f.Add([]byte("-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n"), "", "", []byte(nil))
	f.Fuzz(func(t *testing.T, text []byte, signer, token string, signature []byte) {
		if other, err := credential.Parse(text); err == nil {
			_, _ = other.Sign(signed)
			_, _ = other.Verify(signed, s, now)
		}
		got := credential.Signature{Signer: signer, Endorsements: []string{token}, Bytes: signature}
		if _, err := agent.Verify(signed, got, now); err == nil && (signer != s.Signer || !bytes.Equal(signature, s.Bytes)) {
			t.Errorf("believed: %+v", got)
		}
		if renewed, err := agent.Renewed([]string{token, signer}, seed, now); err == nil {
			t.Errorf("taken as renewed credentials: %s", renewed)
		}
	})
}
