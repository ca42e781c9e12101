package authority

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// Issued is the authority's record of credentials that it signed. It holds nothing that
// would give access.
type Issued struct {
	Role    Role   `json:"role"`
	Name    string `json:"name"`
	Key     string `json:"key"`               // public
	At      int64  `json:"at"`                // s since 1970
	By      string `json:"by,omitempty"`      // public key that signed them; empty: the accounts' own
	Expires int64  `json:"expires,omitempty"` // s since 1970; 0: never; not after the end of the key that signed them
	Revoked int64  `json:"-"`                 // s since 1970; 0: not revoked
	Renew   int64  `json:"renew,omitempty"`   // life of those that replace them, s; 0: they are not renewed
	Enrol   bool   `json:"enrol,omitempty"`   // they are renewed at once
}

// Files in the directory of keys: one line for each set of credentials, and the
// revocation time of the revoked ones by public key.
const (
	issuedFile  = "issued.jsonl"
	revokedFile = "revoked.json"
)

// RevokedFile is the file that changes when credentials are revoked.
func RevokedFile(dir string) string { return filepath.Join(dir, revokedFile) }

// remember records credentials before they are issued. Credentials that are not recorded
// cannot be revoked.
func (a *Authority) remember(i Issued) error {
	line, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("record credentials: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(a.dir, issuedFile), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("record credentials: %w", err)
	}
	if err = truncateTornLine(f); err == nil {
		_, err = f.Write(append(line, '\n'))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("record credentials: %w", err)
	}
	return nil
}

// truncateTornLine removes an incomplete last line, as a full disk leaves it. Its credentials were
// never handed out, and it would corrupt the next line.
func truncateTornLine(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := f.ReadAt(last, info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	text := make([]byte, info.Size())
	if _, err := f.ReadAt(text, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(whole(text))))
}

// whole returns the lines that are complete.
func whole(text []byte) []byte { return text[:bytes.LastIndexByte(text, '\n')+1] }

// Sync returns when the record of issued credentials survives a power cut. Callers call
// it before they hand out credentials.
func (a *Authority) Sync() error {
	f, err := os.OpenFile(filepath.Join(a.dir, issuedFile), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("record credentials: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("record credentials: %w", err)
	}
	return nil
}

// Issued lists all credentials that were issued, oldest first.
func (a *Authority) Issued() ([]Issued, error) { return a.issued("") }

// issued lists those of one name, or if it is empty all. To decode the lines of all machines would take most
// of the time of a renewal.
func (a *Authority) issued(name string) ([]Issued, error) {
	field, err := json.Marshal(name)
	if err != nil {
		return nil, fmt.Errorf("list credentials: %w", err)
	}
	field = append([]byte(`"name":`), field...)
	text, err := os.ReadFile(filepath.Join(a.dir, issuedFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list credentials: %w", err)
	}
	revoked, err := a.revoked()
	if err != nil {
		return nil, err
	}
	var all []Issued
	n := 0
	for line := range bytes.Lines(whole(text)) {
		n++
		if name != "" && !bytes.Contains(line, field) {
			continue
		}
		var i Issued
		if err := json.Unmarshal(line, &i); err != nil {
			return nil, fmt.Errorf("list credentials: line %d of %s: %w", n, issuedFile, err)
		}
		i.Revoked = revoked[i.Key]
		if end := a.until(i.By); end != 0 && (i.Expires == 0 || i.Expires > end) {
			i.Expires = end
		}
		all = append(all, i)
	}
	return all, nil
}

// newest returns each holder's newest credentials that are not revoked, by ROLE.NAME; with a name, those of its holders.
func (a *Authority) newest(name string) (map[string]Issued, error) {
	all, err := a.issued(name)
	return newestOf(all), err
}

func newestOf(all []Issued) map[string]Issued {
	newest := map[string]Issued{}
	for _, i := range all {
		if i.Revoked == 0 {
			newest[string(i.Role)+"."+i.Name] = i
		}
	}
	return newest
}

// Due lists the valid credentials that should be renewed: those whose holder has no newer
// ones.
func (a *Authority) Due(now time.Time) ([]Issued, error) {
	newest, err := a.newest("")
	if err != nil {
		return nil, err
	}
	var due []Issued
	for _, i := range newest {
		if i.Expires > now.Unix() && credential.Due(time.Unix(i.At, 0), time.Unix(i.Expires, 0), now) {
			due = append(due, i)
		}
	}
	slices.SortFunc(due, func(a, b Issued) int { return cmp.Or(cmp.Compare(a.Expires, b.Expires), cmp.Compare(a.Name, b.Name)) })
	return due, nil
}

func (a *Authority) revoked() (map[string]int64, error) {
	revoked := map[string]int64{}
	text, err := os.ReadFile(RevokedFile(a.dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return revoked, nil
	case err == nil:
		err = json.Unmarshal(text, &revoked)
	}
	if err != nil {
		return nil, fmt.Errorf("read revocations: %w", err) // accepting every client would be worse
	}
	return revoked, nil
}

// Revoke ends all credentials that were issued to that name in that role, and returns how
// many were valid until now. New ones can be issued at once. A NATS server receives
// revocations with a new Trust.
func (a *Authority) Revoke(role Role, name string, now time.Time) (n int, err error) {
	err = a.change(func() error { n, err = a.revoke(role, name, now); return err })
	return n, err
}

func (a *Authority) revoke(role Role, name string, now time.Time) (n int, err error) {
	all, err := a.Issued()
	if err != nil {
		return 0, err
	}
	revoked, err := a.revoked()
	if err != nil {
		return 0, err
	}
	for _, i := range all {
		if i.Role == role && i.Name == name && i.Revoked == 0 {
			revoked[i.Key] = now.Unix()
			if i.Expires == 0 || i.Expires > now.Unix() {
				n++
			}
		}
	}
	text, err := json.Marshal(revoked)
	if err != nil {
		return 0, fmt.Errorf("revoke credentials: %w", err)
	}
	if err := atomicfile.Write(RevokedFile(a.dir), text, 0o600); err != nil {
		return 0, fmt.Errorf("revoke credentials: %w", err)
	}
	return n, nil
}
