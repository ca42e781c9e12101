package server

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/format/certificate"
)

// Scope is the set of permissions of a token.
type Scope string

// The scopes. Agents do not use the API: they have credentials for the bus.
const (
	Public   Scope = ""         // without a token
	Viewer   Scope = "viewer"   // may read
	Operator Scope = "operator" // may also act
)

// allows reports whether a holder of s may do what requires need.
func (s Scope) allows(need Scope) bool {
	return need == Public || s == need || s == Operator && need == Viewer
}

// caller is the sender of a request.
type caller struct {
	name  string // of the token; "" without one
	key   string // of what it may take: its token, or its address
	scope Scope
	from  string // address
	sum   sum    // of the token
}

// sum is a token's hash.
type sum [sha256.Size]byte

func sumOf(secret string) sum { return sha256.Sum256([]byte(secret)) }

type token struct {
	name    string
	scope   Scope
	expires time.Time // zero: never
}

// Tokens are the known tokens, by their hash. The zero value has none.
type Tokens struct {
	Required bool // without a token only Public is allowed, also from loopback
	path     string

	mu     sync.Mutex
	by     map[sum]token
	failed error // why the current file is not in use
}

// tokensEvery is how soon a change of the file, such as a revocation, takes effect.
const tokensEvery = time.Second

// refresh reads the file again. If it is unreadable or has an error, the server keeps the
// previous tokens and its health reports the error. The same error is returned only once.
func (t *Tokens) refresh() error {
	if t.path == "" {
		return nil
	}
	text, err := os.ReadFile(t.path)
	if err != nil {
		err = fmt.Errorf("read tokens: %w", err)
	}
	var by map[sum]token
	if err == nil {
		by, err = parseTokens(t.path, text)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.failed
	t.failed = err
	switch {
	case err == nil:
		t.by = by
	case before != nil && before.Error() == err.Error():
		return nil
	}
	return err
}

// err returns why the current file is not in use.
func (t *Tokens) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// LoadTokens reads a file of lines NAME SCOPE sha256:HEX [EXPIRES], where EXPIRES is a
// day (2026-12-31, its end in UTC). Empty lines and lines that begin with # are ignored.
// The error lists all mistakes.
func LoadTokens(path string) (*Tokens, error) {
	t := &Tokens{Required: true, path: path}
	if err := t.refresh(); err != nil {
		return nil, err
	}
	return t, nil
}

func parseTokens(path string, text []byte) (map[sum]token, error) {
	by := map[sum]token{}
	var wrong []string
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		if bad := tokenLine(by, fields); bad != "" {
			wrong = append(wrong, fmt.Sprintf("  %s:%d: %s", path, n, bad))
		}
	}
	if len(wrong) > 0 {
		return nil, fmt.Errorf("read tokens: want NAME viewer|operator sha256:HEX [YYYY-MM-DD]:\n%s", strings.Join(wrong, "\n"))
	}
	return by, nil
}

func tokenLine(by map[sum]token, fields []string) (bad string) {
	if len(fields) < 3 || len(fields) > 4 {
		return fmt.Sprintf("%d fields", len(fields))
	}
	k := token{name: fields[0], scope: Scope(fields[1])}
	if k.scope != Viewer && k.scope != Operator {
		return fmt.Sprintf("scope %q", fields[1])
	}
	digits, ok := strings.CutPrefix(fields[2], "sha256:")
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) != sha256.Size {
		return "invalid SHA-256"
	}
	if len(fields) == 4 {
		day, err := time.Parse(time.DateOnly, fields[3])
		if err != nil {
			return fmt.Sprintf("day %q", fields[3])
		}
		k.expires = day.AddDate(0, 0, 1)
	}
	if _, twice := by[sum(raw)]; twice {
		return "duplicate token"
	}
	by[sum(raw)] = k
	return ""
}

// NewToken makes a token and its line in the file.
func NewToken(name string, scope Scope, expires string) (secret, line string, err error) {
	var raw [32]byte
	if _, err := rand.Read(raw[:]); err != nil {
		return "", "", fmt.Errorf("make token: %w", err)
	}
	secret = base64.RawURLEncoding.EncodeToString(raw[:])
	line = strings.TrimSpace(fmt.Sprintf("%s %s sha256:%x %s", name, scope, sumOf(secret), expires))
	if _, err := parseTokens("", []byte(line)); err != nil {
		return "", "", err
	}
	return secret, line, nil
}

// find returns the token with a hash; why says what is wrong with it.
func (t *Tokens) find(of sum, now time.Time) (k token, why string) {
	t.mu.Lock()
	k, ok := t.by[of]
	t.mu.Unlock()
	switch {
	case !ok:
		return token{}, "unknown token"
	case !k.expires.IsZero() && now.After(k.expires):
		return token{name: k.name}, "the token expired on " + k.expires.AddDate(0, 0, -1).Format(time.DateOnly)
	}
	return k, ""
}

// expiries says when the known tokens end.
func (t *Tokens) expiries() (all []certificate.Expiry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.by {
		if !k.expires.IsZero() {
			all = append(all, certificate.Expiry{What: "token " + k.name, Ends: k.expires})
		}
	}
	slices.SortFunc(all, func(a, b certificate.Expiry) int {
		return cmp.Or(strings.Compare(a.What, b.What), a.Ends.Compare(b.Ends))
	})
	return all
}
