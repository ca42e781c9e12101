package notify

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
)

// timeout bounds a request. attempts and pause bound what a receiver that is down costs its own
// queue: less than a minute for what is sent together.
const (
	timeout  = 10 * time.Second
	attempts = 4
	pause    = time.Second
)

// NewClient makes a client for one server: it sends that server's token, verifies its certificate,
// and follows no redirect, so that a receiver cannot make the server ask another address. key is
// that of the configuration, for errors.
func NewClient(key string, p *config.ServerPeer) (*http.Client, error) {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	t.MaxConnsPerHost, t.ResponseHeaderTimeout = 2, timeout
	if p.CA != "" {
		text, err := os.ReadFile(p.CA)
		if err != nil {
			return nil, fmt.Errorf("%s.ca: %w", key, err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s.ca: %s holds no certificate", key, p.CA)
		}
	}
	c := &peer{Transport: t, tokenFile: p.TokenFile}
	if _, err := c.token(); err != nil {
		return nil, fmt.Errorf("%s.token_file: %w", key, err)
	}
	return &http.Client{Transport: c, Timeout: timeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// peer adds a token to requests.
type peer struct {
	*http.Transport
	tokenFile string
}

// token reads the token: those of Kubernetes change every hour.
func (p *peer) token() (string, error) {
	if p.tokenFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(p.tokenFile)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(string(text))
	if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("the file holds no token of one word") // the word itself is a secret
	}
	return token, nil
}

// RoundTrip implements http.RoundTripper. What a refusal says is left out: it may repeat the URL or
// the token, and errors, also OpenTelemetry's, are logged.
func (p *peer) RoundTrip(q *http.Request) (*http.Response, error) {
	token, err := p.token()
	if err != nil {
		return nil, fmt.Errorf("read token: %w", err)
	}
	if token != "" {
		q = q.Clone(q.Context())
		q.Header.Set("Authorization", "Bearer "+token)
	}
	a, err := p.Transport.RoundTrip(q)
	if err == nil && a.StatusCode/100 != 2 {
		discard(a.Body)
		a.Body.Close()
		a.Body = http.NoBody
	}
	return a, err
}

// discard reads what is left, so that the connection is used again.
func discard(body io.Reader) { io.Copy(io.Discard, io.LimitReader(body, 64<<10)) }

// post sends a document, again after a pause if the receiver is not there or overloaded.
func post(ctx context.Context, client *http.Client, url string, body []byte) (err error) {
	for i := range attempts {
		if i > 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause << (i - 1)):
			}
		}
		retry := false
		if retry, err = try(ctx, client, url, body); !retry {
			return err
		}
	}
	return err
}

// try sends a document once; retry: it may work later.
func try(ctx context.Context, client *http.Client, url string, body []byte) (retry bool, err error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return false, err
	}
	q.Header.Set("Content-Type", "application/json")
	a, err := client.Do(q)
	if err != nil {
		return ctx.Err() == nil, err
	}
	defer a.Body.Close()
	discard(a.Body)
	if a.StatusCode/100 == 2 {
		return false, nil
	}
	return a.StatusCode == http.StatusTooManyRequests || a.StatusCode >= 500, fmt.Errorf("it answers %d %s", a.StatusCode, http.StatusText(a.StatusCode))
}
