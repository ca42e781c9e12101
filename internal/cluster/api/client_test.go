package cluster

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/agent/api"
)

// moved is a transport that answers each request with a redirection, and records where requests went.
type moved struct {
	status int
	to     string
	asked  []string
}

// RoundTrip implements http.RoundTripper.
func (m *moved) RoundTrip(r *http.Request) (*http.Response, error) {
	m.asked = append(m.asked, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+r.Header.Get("Authorization")))
	return &http.Response{StatusCode: m.status, Status: http.StatusText(m.status), Header: http.Header{"Location": {m.to}}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
}

// TestAttackARedirection: a server, or a proxy before it, leads a client nowhere else: it would send the token
// there, without TLS too, and commands.
func TestAttackARedirection(t *testing.T) {
	for _, m := range []*moved{
		{status: http.StatusFound, to: "http://quell.example/v1/commands"},
		{status: http.StatusTemporaryRedirect, to: "http://quell.example/v1/commands"},
		{status: http.StatusPermanentRedirect, to: "https://elsewhere.example/v1/commands"},
	} {
		c := &Client{URL: "https://quell.example", Token: "secret", transport: m}
		_, err := c.Command(t.Context(), Command{})
		if refused, ok := errors.AsType[*api.RefusedError](err); !ok || refused.Status != m.status || refused.Remedy == "" {
			t.Errorf("%d to %s: %v", m.status, m.to, err)
		}
		if len(m.asked) != 1 || m.asked[0] != "POST https://quell.example/v1/commands Bearer secret" {
			t.Errorf("%d to %s: asked %q", m.status, m.to, m.asked)
		}
	}
}
