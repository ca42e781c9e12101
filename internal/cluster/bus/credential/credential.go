// Package credential is the file with which an agent, a server or a viewer proves who it
// is to the bus, and with which a server signs commands. The authority writes it; its
// holder reads it.
//
// The file is text in the NATS format: a JWT for each account of the bus that the holder
// may use, and the private key that they name. A server's has one more pair: the key that
// signs commands, and the JWT by which agents accept that key; and the endorsements, by
// which agents with credentials of a former signing key accept it too. NATS's own tools
// use the first JWT.
package credential

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"
)

// Account is a part of the bus. NATS sends its own answers (the value of a key, for example) to any subject that a client names, and checks no permission for that. So what
// such an answer must not reach is in another account than the client. What crosses from
// one account to another is listed in package authority.
type Account string

// The accounts.
const (
	Store    Account = "store"    // the buckets; only servers publish here
	Samples  Account = "samples"  // samples and records, to servers: NATS itself answers nothing here
	Specs    Account = "specs"    // from where agents and viewers read specs
	Commands Account = "commands" // commands and replies: NATS itself answers nothing here
)

// MostSpecs is how many subscriptions a connection of an agent to the account of specs may have.
const MostSpecs = 2000

// Accounts lists all of them.
func Accounts() []Account { return []Account{Store, Samples, Specs, Commands} }

// Tag marks the JWT for an account.
func (a Account) Tag() string { return "account:" + string(a) }

const (
	// SignerTag marks the JWT of a key that signs commands.
	SignerTag = "signs-commands"
	// RenewTag marks the JWTs of credentials that their holder may have renewed, EnrolTag
	// those that it has renewed at once: they were made elsewhere and end soon.
	RenewTag = "renewable"
	EnrolTag = "enrolment"
	// EndorsementTag marks a JWT with which a signing key of the authority names its
	// successor.
	EndorsementTag = "names-successor"
	// signerRole is the role that has such a key.
	signerRole = "server"
)

// File is the content of a file of credentials.
type File struct {
	Role, Name string
	Issued     time.Time
	Expires    time.Time // zero: never
	Renewable  bool      // the server gives new ones to their holder
	Enrols     bool      // they are renewed at once

	tokens       map[Account]string
	accounts     map[Account]string // public keys
	issuers      map[Account]string // public keys that have signed the tokens
	endorsements []string
	user         nkeys.KeyPair
	signer       nkeys.KeyPair // nil: it signs no commands
	signerToken  string
}

// Pair is a private key with the JWTs that name it, or JWTs without a key.
type Pair struct {
	Tokens []string
	Seed   []byte // nil: none
}

// Format returns the text of a file.
func Format(pairs ...Pair) ([]byte, error) {
	var all []byte
	for _, p := range pairs {
		for i, token := range p.Tokens {
			text, err := jwt.DecorateJWT(token)
			if err == nil && i == 0 && p.Seed != nil { // where NATS's own tools expect it
				var seed []byte
				seed, err = jwt.DecorateSeed(p.Seed)
				text = append(append(text, seed...), '\n')
			}
			if err != nil {
				return nil, fmt.Errorf("write credentials: %w", err)
			}
			all = append(all, text...)
		}
	}
	return all, nil
}

// Load reads a file.
func Load(path string) (*File, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read credentials: %w", err)
	}
	f, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("read credentials %s: %w", path, err)
	}
	return f, nil
}

var block = regexp.MustCompile(`-{3,}BEGIN ([A-Z ]+)-{3,}\s+([\w\-.=]+)\s+-{3,}END`)

var errOld = errors.New("they are not of this version of quell: make new ones with quell-server credentials")

// Parse reads the text of a file. It does not check who signed it: only its holder reads
// it, and the bus checks it.
func Parse(text []byte) (*File, error) {
	f := &File{tokens: map[Account]string{}, accounts: map[Account]string{}, issuers: map[Account]string{}}
	owners := map[string]string{} // of the JWTs, by account; of the signer by its tag
	keys := map[string]nkeys.KeyPair{}
	for _, m := range block.FindAllSubmatch(text, -1) {
		kind, value := string(m[1]), m[2]
		if strings.HasSuffix(kind, "SEED") {
			key, err := nkeys.FromSeed(value)
			if err != nil {
				return nil, fmt.Errorf("a key is damaged: %w", err)
			}
			public, err := key.PublicKey()
			if err != nil {
				return nil, fmt.Errorf("a key is damaged: %w", err)
			}
			keys[public] = key
			continue
		}
		if err := f.take(string(value), owners); err != nil {
			return nil, err
		}
	}
	if len(f.tokens) == 0 {
		return nil, errOld
	}
	for of, public := range owners {
		key := keys[public]
		switch {
		case key == nil:
			return nil, fmt.Errorf("the private key for %s is missing", of)
		case of == SignerTag:
			f.signer = key
		case f.user != nil && f.user != key:
			return nil, errors.New("they are of two holders")
		default:
			f.user = key
		}
	}
	return f, nil
}

// take reads a JWT.
func (f *File) take(token string, owners map[string]string) error {
	claims, err := jwt.Decode(token)
	if err != nil {
		return fmt.Errorf("a JWT is damaged: %w", err)
	}
	if e, ok := claims.(*jwt.AccountClaims); ok && e.Tags.Contains(EndorsementTag) {
		f.endorsements = append(f.endorsements, token)
		return nil
	}
	c, ok := claims.(*jwt.UserClaims)
	if !ok {
		return errOld
	}
	if c.Tags.Contains(SignerTag) {
		f.signerToken, owners[SignerTag] = token, c.Subject
		return nil
	}
	i := slices.IndexFunc(Accounts(), func(a Account) bool { return c.Tags.Contains(a.Tag()) })
	if i < 0 {
		return errOld
	}
	a := Accounts()[i]
	f.tokens[a], owners[string(a)] = token, c.Subject
	f.Role, f.Name, _ = strings.Cut(c.Name, ".")
	f.Issued = time.Unix(c.IssuedAt, 0)
	if c.Expires != 0 {
		f.Expires = time.Unix(c.Expires, 0)
	}
	f.Renewable, f.Enrols = c.Tags.Contains(RenewTag), c.Tags.Contains(EnrolTag)
	f.accounts[a], f.issuers[a] = accountOf(c), c.Issuer
	return nil
}

// accountOf is the public key of the account that credentials are for.
func accountOf(c *jwt.UserClaims) string { return cmp.Or(c.IssuerAccount, c.Issuer) }

// NewKey makes a private key, and its public part.
func NewKey() (public string, seed []byte, err error) {
	key, err := nkeys.CreateUser()
	if err == nil {
		public, err = key.PublicKey()
	}
	if err == nil {
		seed, err = key.Seed()
	}
	if err != nil {
		return "", nil, fmt.Errorf("make key: %w", err)
	}
	return public, seed, nil
}

// PublicKey is the public part of a private key.
func PublicKey(seed []byte) (string, error) {
	key, err := nkeys.FromSeed(seed)
	if err != nil {
		return "", fmt.Errorf("read key: %w", err)
	}
	return key.PublicKey()
}

// Key is the public key of the holder.
func (f *File) Key() (string, error) { return f.user.PublicKey() }

// Renewed returns the text of credentials that take the place of f: tokens for a new key,
// from the same authority, for the same holder and accounts. If another key has signed
// them, the tokens include its endorsement.
func (f *File) Renewed(tokens []string, seed []byte, now time.Time) ([]byte, error) {
	text, err := Format(Pair{Tokens: tokens, Seed: seed})
	if err != nil {
		return nil, err
	}
	n, err := Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("renew credentials: %w", err)
	case n.Role != f.Role || n.Name != f.Name || !maps.Equal(n.accounts, f.accounts) || !f.replacedBy(n, now):
		return nil, fmt.Errorf("renew credentials: they are of %s %.80q, or of another authority", n.Role, n.Name)
	case n.Enrols || !n.Expires.IsZero() && !n.Expires.After(f.Issued):
		return nil, errors.New("renew credentials: they do not last")
	}
	return text, nil
}

// replacedBy reports whether the tokens of n are signed by the keys that have signed those
// of f, or by one that has replaced them.
func (f *File) replacedBy(n *File, now time.Time) bool {
	key := n.issuers[Commands]
	for a, issuer := range n.issuers {
		if issuer != f.issuers[a] && (issuer != key || !endorsed(f.issuers[Commands], key, n.endorsements, now)) {
			return false
		}
	}
	return true
}

// maxEndorsements is how often signing keys may have been replaced since credentials were
// signed.
const maxEndorsements = 16

// endorsed reports whether signing key next is old, or has replaced it: each key has named its
// successor, and the names are still valid.
func endorsed(old, next string, endorsements []string, now time.Time) bool {
	successors := map[string]string{}
	for _, token := range endorsements[:min(len(endorsements), maxEndorsements)] {
		c, err := jwt.DecodeAccountClaims(token) // checks that the issuer named in it has signed it
		if err == nil && c.Tags.Contains(EndorsementTag) && now.Unix() < c.Expires {
			successors[c.Issuer] = c.Subject
		}
	}
	for range maxEndorsements {
		if old == next || old == "" {
			break
		}
		old = successors[old]
	}
	return old == next && next != ""
}

// Token returns the JWT for an account.
func (f *File) Token(a Account) (string, error) {
	token := f.tokens[a]
	if token == "" {
		return "", fmt.Errorf("the credentials of %s %s are not for the account of %s", f.Role, f.Name, a)
	}
	return token, nil
}

// maxNotice is how long before the end of credentials their renewal is due, at most.
const maxNotice = 14 * 24 * time.Hour

// Due reports whether credentials should be renewed: a quarter of their life is left, or
// two weeks if that is less.
func Due(issued, expires, now time.Time) bool {
	return !expires.IsZero() && expires.Sub(now) <= min(expires.Sub(issued)/4, maxNotice)
}

// Answer signs a NATS server's challenge.
func (f *File) Answer(nonce []byte) ([]byte, error) { return f.user.Sign(nonce) }

// context is what is signed before decisions, so that a signature is for nothing else.
const context = "quell decisions\n"

// Signature is that of a command.
type Signature struct {
	Signer       string   // the JWT of the key that signed
	Endorsements []string // of the keys that sign such JWTs
	Bytes        []byte
}

// Sign signs a command.
func (f *File) Sign(command []byte) (s Signature, err error) {
	if f.signer == nil {
		return s, fmt.Errorf("sign command: the credentials of %s %s sign no commands", f.Role, f.Name)
	}
	s = Signature{Signer: f.signerToken, Endorsements: f.endorsements}
	if s.Bytes, err = f.signer.Sign(append([]byte(context), command...)); err != nil {
		return s, fmt.Errorf("sign command: %w", err)
	}
	return s, nil
}

// Verify returns the key that signed a command, and an error if that is no server of the
// authority that issued this file.
func (f *File) Verify(command []byte, s Signature, now time.Time) (signer string, err error) {
	c, err := jwt.DecodeUserClaims(s.Signer) // checks that the issuer named in it has signed it
	switch {
	case f.accounts[Commands] == "":
		return "", errors.New("these credentials do not say who may sign commands")
	case err != nil:
		return "", fmt.Errorf("the signer's JWT is damaged: %w", err)
	case accountOf(c) != f.accounts[Commands] || !endorsed(f.issuers[Commands], c.Issuer, s.Endorsements, now):
		return "", errors.New("the signer is another authority's, or its key was replaced")
	case !c.Tags.Contains(SignerTag) || !strings.HasPrefix(c.Name, signerRole+"."):
		return "", fmt.Errorf("%q may not sign commands", c.Name)
	case c.Expires != 0 && now.Unix() >= c.Expires:
		return "", fmt.Errorf("the signer's credentials expired on %s", time.Unix(c.Expires, 0).UTC().Format(time.RFC3339))
	}
	key, err := nkeys.FromPublicKey(c.Subject)
	if err != nil {
		return "", fmt.Errorf("the signer's key is damaged: %w", err)
	}
	if err := key.Verify(append([]byte(context), command...), s.Bytes); err != nil {
		return "", fmt.Errorf("the signature is not that of the command: %w", err)
	}
	return c.Subject, nil
}
