package authority

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// The suffixes of files with private and with public keys. An account's own private key
// is thrown away: NATS would accept what it signs for ever. Directories of earlier
// versions have them.
const (
	privateExt = ".nk"
	publicExt  = ".pub"
)

// signingFile has the key that signs credentials.
const signingFile = "signing.json"

// SigningFile is the file that changes when the key that signs credentials is replaced.
func SigningFile(dir string) string { return filepath.Join(dir, signingFile) }

// signing is the key that signs credentials for all accounts, and the keys before it.
type signing struct {
	Seed     string     `json:"seed"`
	Made     int64      `json:"made"`               // s since 1970
	Previous []Previous `json:"previous,omitempty"` // oldest first

	// own are the accounts' own keys, in a directory of an earlier version: they sign until
	// they are replaced. pair is the key of Seed otherwise.
	own  map[credential.Account]nkeys.KeyPair
	pair nkeys.KeyPair
	key  string // public, of pair
}

// Previous is a key that signed credentials.
type Previous struct {
	Key         string `json:"key"`         // public; that of the account of commands, for the accounts' own
	Replaced    int64  `json:"replaced"`    // s since 1970
	Until       int64  `json:"until"`       // s since 1970: its credentials are valid until then
	Endorsement string `json:"endorsement"` // the JWT with which it names its successor
}

// public is the public key; empty for the accounts' own.
func (s *signing) public() string { return s.key }

// loadKey reads a private key, or creates it.
func loadKey(path string, create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, error) {
	seed, err := os.ReadFile(path)
	if err == nil {
		pair, err := nkeys.FromSeed(seed)
		if err != nil {
			return nil, fmt.Errorf("load key %s: %w", path, err)
		}
		return pair, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("load key: %w", err)
	}
	pair, err := create()
	if err == nil {
		seed, err = pair.Seed()
	}
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", path, err)
	}
	return pair, atomicfile.Write(path, seed, 0o600)
}

// loadAccount returns the public key of an account.
func (a *Authority) loadAccount(name string) (string, error) {
	path := filepath.Join(a.dir, name)
	if _, err := os.Stat(path + privateExt); err == nil {
		pair, err := loadKey(path+privateExt, nil)
		if err != nil {
			return "", err
		}
		return pair.PublicKey()
	}
	text, err := os.ReadFile(path + publicExt)
	switch {
	case err == nil && !nkeys.IsValidPublicAccountKey(string(text)):
		return "", fmt.Errorf("load key %s: it is no public key of an account", path+publicExt)
	case err == nil:
		return string(text), nil
	case !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("load key: %w", err)
	}
	key, _, err := newAccount()
	if err != nil {
		return "", err
	}
	return key, atomicfile.Write(path+publicExt, []byte(key), 0o600)
}

func newAccount() (public string, pair nkeys.KeyPair, err error) {
	if pair, err = nkeys.CreateAccount(); err == nil {
		public, err = pair.PublicKey()
	}
	if err != nil {
		return "", nil, fmt.Errorf("make key: %w", err)
	}
	return public, pair, nil
}

// loadSigning loads the signing key, or creates it.
func (a *Authority) loadSigning() error {
	text, err := os.ReadFile(SigningFile(a.dir))
	switch {
	case err == nil:
		var s signing
		if err = json.Unmarshal(text, &s); err == nil {
			if s.pair, err = nkeys.FromSeed([]byte(s.Seed)); err == nil {
				s.key, err = s.pair.PublicKey()
			}
		}
		if err != nil {
			return fmt.Errorf("load key %s: it is damaged", SigningFile(a.dir)) // the cause may show the key
		}
		a.signing = s
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("load key: %w", err)
	}
	own := map[credential.Account]nkeys.KeyPair{}
	for _, name := range credential.Accounts() {
		path := filepath.Join(a.dir, string(name)+privateExt)
		if _, err := os.Stat(path); err != nil {
			return a.replaceSigning(signing{}, time.Now())
		}
		if own[name], err = loadKey(path, nil); err != nil {
			return err
		}
	}
	a.signing = signing{own: own}
	return nil
}

// replaceSigning puts a new signing key in the place of the present one.
func (a *Authority) replaceSigning(next signing, now time.Time) error {
	key, pair, err := newAccount()
	if err != nil {
		return err
	}
	seed, err := pair.Seed()
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	next.Seed, next.Made, next.key, next.pair = string(seed), now.Unix(), key, pair
	for i := range next.Previous {
		p := &next.Previous[i]
		if p.Endorsement != "" {
			continue
		}
		c := jwt.NewAccountClaims(key)
		c.Name, c.Expires = "quell-signing", p.Until
		c.Tags.Add(credential.EndorsementTag)
		if p.Endorsement, err = c.Encode(a.signing.of(credential.Commands)); err != nil {
			return fmt.Errorf("make key: %w", err)
		}
	}
	text, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	if err := atomicfile.Write(SigningFile(a.dir), text, 0o600); err != nil {
		return fmt.Errorf("make key: %w", err)
	}
	a.signing = next
	return nil
}

// of is the key that signs for an account.
func (s *signing) of(account credential.Account) nkeys.KeyPair {
	if s.own != nil {
		return s.own[account]
	}
	return s.pair
}

// sign signs a JWT for an account.
func (a *Authority) sign(c *jwt.UserClaims, account credential.Account) (string, error) {
	if a.signing.own == nil {
		c.IssuerAccount = a.accounts[account]
	}
	token, err := c.Encode(a.signing.of(account))
	if err != nil {
		return "", fmt.Errorf("issue credentials: %w", err)
	}
	return token, nil
}

// endorsements are the valid JWTs with which former keys name their successors.
func (a *Authority) endorsements(now time.Time) (all []string) {
	for _, p := range a.signing.Previous {
		if now.Unix() < p.Until {
			all = append(all, p.Endorsement)
		}
	}
	return all
}

// until is until when credentials are valid that a key has signed, s since 1970; 0: no end is
// known.
func (a *Authority) until(by string) int64 {
	for _, p := range a.signing.Previous {
		if p.Key == by || by == "" && p.Key == a.accounts[credential.Commands] {
			return p.Until
		}
	}
	return 0
}

// SigningKey is a key that signs credentials, or has.
type SigningKey struct {
	Key     string    // public
	Until   time.Time // its credentials are valid until then; zero: it signs now
	Holders []Issued  // whose newest credentials it has signed, and are valid
}

// SigningKeys lists the keys whose credentials are valid, oldest first.
func (a *Authority) SigningKeys(now time.Time) ([]SigningKey, error) {
	newest, err := a.newest("")
	if err != nil {
		return nil, err
	}
	var all []SigningKey
	for _, p := range a.signing.Previous {
		if p.Until <= now.Unix() {
			continue
		}
		all = append(all, SigningKey{Key: p.Key, Until: time.Unix(p.Until, 0)})
	}
	own := a.accounts[credential.Commands]
	current := SigningKey{Key: a.signing.public()}
	if current.Key == "" {
		current.Key = own
	}
	all = append(all, current)
	for _, i := range newest {
		if i.Expires != 0 && i.Expires <= now.Unix() {
			continue
		}
		for n := range all {
			if k := &all[n]; k.Key == i.By || i.By == "" && k.Key == own {
				k.Holders = append(k.Holders, i)
			}
		}
	}
	for _, k := range all {
		slices.SortFunc(k.Holders, func(a, b Issued) int { return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Name, b.Name)) })
	}
	return all, nil
}

// Rotate makes a new key that signs credentials from now on. Those of the present key are
// valid for the time of overlap still; its private part is removed at once. A NATS server
// learns of both with a new Trust.
func (a *Authority) Rotate(overlap time.Duration, now time.Time) error {
	if overlap < 0 {
		return errors.New("rotate keys: the overlap must not be negative")
	}
	return a.change(func() error { return a.rotate(overlap, now) })
}

func (a *Authority) rotate(overlap time.Duration, now time.Time) error {
	p := Previous{Key: a.signing.public(), Replaced: now.Unix(), Until: now.Add(overlap).Unix()}
	if p.Key == "" {
		p.Key = a.accounts[credential.Commands]
	}
	if err := a.replaceSigning(signing{Previous: append(slices.Clone(a.signing.Previous), p)}, now); err != nil {
		return err
	}
	// The accounts' own keys, of an earlier version.
	for _, name := range append(credential.Accounts(), "system") {
		path := filepath.Join(a.dir, string(name))
		if _, err := os.Stat(path + privateExt); err != nil {
			continue
		}
		key := a.accounts[name]
		if name == "system" {
			key = a.system
		}
		if err := atomicfile.Write(path+publicExt, []byte(key), 0o600); err != nil {
			return fmt.Errorf("rotate keys: %w", err)
		}
		if err := os.Remove(path + privateExt); err != nil {
			return fmt.Errorf("rotate keys: %w", err)
		}
	}
	return nil
}
