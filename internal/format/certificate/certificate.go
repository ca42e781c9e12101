// Package certificate reads certificates and keys from PEM files, reads them again when they
// change, and says when they expire.
package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files are a certificate with its key, CA certificates, or both, in files. A nil *Files has
// none.
type Files struct {
	key               string // of the configuration
	ca, cert, certKey string // paths

	mu       sync.Mutex
	stamps   [3]string // of the files in use
	pair     *tls.Certificate
	roots    *x509.CertPool
	expiries []Expiry
	failed   error // why the current files are not in use
}

// Open reads the files; it returns nil if none is named. The errors name the files by their
// keys below the given one.
func Open(key, ca, cert, certKey string) (*Files, error) {
	if ca == "" && cert == "" {
		return nil, nil
	}
	f := &Files{key: key, ca: ca, cert: cert, certKey: certKey}
	if err := f.Refresh(); err != nil {
		return nil, err
	}
	return f, nil
}

// Refresh reads the files again if they have changed. If that fails, the previous ones stay in
// use, and the error is returned once.
func (f *Files) Refresh() error {
	if f == nil {
		return nil
	}
	now := [3]string{stamp(f.ca), stamp(f.cert), stamp(f.certKey)}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now == f.stamps && f.failed == nil && f.expiries != nil {
		return nil
	}
	before := f.failed
	if f.failed = f.read(); f.failed == nil {
		f.stamps = now // of before the reading: a change meanwhile is read the next time
		return nil
	}
	if before != nil && before.Error() == f.failed.Error() {
		return nil
	}
	return f.failed
}

// stamp returns a value that changes when a file is replaced or written.
func stamp(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return fmt.Sprint(info.ModTime().UnixNano(), " ", info.Size())
}

func (f *Files) read() error {
	var pair *tls.Certificate
	var roots *x509.CertPool
	var expiries []Expiry
	if f.ca != "" {
		text, err := os.ReadFile(f.ca)
		if err != nil {
			return fmt.Errorf("read %s.ca: %w", f.key, err)
		}
		roots = x509.NewCertPool()
		all, err := parse(text)
		if err != nil {
			return fmt.Errorf("read %s.ca: %s: %w", f.key, f.ca, err)
		}
		if len(all) == 0 {
			return fmt.Errorf("read %s.ca: %s holds no certificate", f.key, f.ca)
		}
		last := Expiry{What: f.key + ".ca"} // the newest: older ones are there for a change of keys
		for _, c := range all {
			roots.AddCert(c)
			if c.NotAfter.After(last.Ends) {
				last.Begins, last.Ends = c.NotBefore, c.NotAfter
			}
		}
		expiries = append(expiries, last)
	}
	if f.cert != "" {
		p, err := tls.LoadX509KeyPair(f.cert, f.certKey)
		if err != nil {
			return fmt.Errorf("read %s.cert and key: %w", f.key, err)
		}
		pair = &p
		expiries = append(expiries, Expiry{f.key + ".cert", p.Leaf.NotBefore, p.Leaf.NotAfter})
	}
	f.pair, f.roots, f.expiries = pair, roots, expiries
	return nil
}

// Watch refreshes until ctx ends, and calls failed with the errors.
func (f *Files) Watch(ctx context.Context, failed func(error)) {
	if f == nil {
		return
	}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := f.Refresh(); err != nil {
			failed(err)
		}
	}
}

// watchEvery is how soon changed files are in use.
const watchEvery = 5 * time.Second

// errNone means that Files were opened without a certificate.
var errNone = errors.New("no certificate is configured")

func (f *Files) current() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pair == nil {
		return nil, errNone
	}
	return f.pair, nil
}

// Server is the configuration of a listener; nil without a certificate.
func (f *Files) Server() *tls.Config {
	if f == nil || f.cert == "" {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.current() }}
}

// Client is the configuration of connections to a server, without its roots (Roots); nil: the
// default.
func (f *Files) Client() *tls.Config {
	if f == nil {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.cert != "" {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return f.current() }
	}
	return c
}

// Roots returns what gives the CA certificates for a connection; nil: the system's.
func (f *Files) Roots() func() (*x509.CertPool, error) {
	if f == nil || f.ca == "" {
		return nil
	}
	return func() (*x509.CertPool, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.roots, nil
	}
}

// Expiries says when the certificates in use expire.
func (f *Files) Expiries() []Expiry {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.expiries
}

// Err is why the current files are not in use.
func (f *Files) Err() error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed == nil {
		return nil
	}
	return fmt.Errorf("the previous certificate stays in use: %w", f.failed)
}

// Expiry is when something ends.
type Expiry struct {
	What         string
	Begins, Ends time.Time // Begins may be unknown
}

// notice is how long before the end a warning begins. If the whole time is shorter, it begins
// when a third of it is left.
const notice = 14 * 24 * time.Hour

// Warning says that the end is near or past; "" if it is not.
func (e Expiry) Warning(now time.Time) string {
	before := notice
	if !e.Begins.IsZero() {
		before = min(before, e.Ends.Sub(e.Begins)/3)
	}
	at := e.Ends.UTC().Format(time.RFC3339)
	switch {
	case now.After(e.Ends):
		return fmt.Sprintf("%s expired at %s", e.What, at)
	case e.Ends.Sub(now) < before:
		return fmt.Sprintf("%s expires at %s", e.What, at)
	}
	return ""
}

// Warnings are all that there are.
func Warnings(all []Expiry, now time.Time) (texts []string) {
	for _, e := range all {
		if text := e.Warning(now); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// parse returns the certificates in a PEM text; other blocks are skipped.
func parse(text []byte) (all []*x509.Certificate, err error) {
	for {
		var b *pem.Block
		if b, text = pem.Decode(text); b == nil {
			return all, nil
		}
		if b.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(b.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
}
