package bus

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Options say how to reach NATS and with which identity.
type Options struct {
	URL string // nats://HOST:PORT, tls://HOST:PORT; several are separated by commas
	// Name is shown in the NATS server's list of connections. Inboxes are named after it
	// as well. An agent's Name is its machine's.
	Name string
	// Credentials is a file as package credential reads it, again for every connection;
	// empty: none, and no commands.
	Credentials string
	TLS         *tls.Config // nil: the system's roots, where the URL says tls
	// Roots gives the CA certificates for each connection; nil: those of TLS.
	Roots func() (*x509.CertPool, error)
	// InProcess is a NATS server in this process, used instead of URL.
	InProcess nats.InProcessConnProvider
	Log       *slog.Logger

	pause time.Duration // between attempts; 0: the default below
}

// connect returns a connection to an account that is established now or later. It is
// re-established without limit of attempts.
func (o *Options) connect(account credential.Account, extra ...nats.Option) (*nats.Conn, error) {
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.CustomInboxPrefix(inboxPrefix(o.Name)),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // credentials may be renewed
		nats.PingInterval(20 * time.Second), nats.MaxPingsOutstanding(2),
		nats.SkipHostLookup(), nats.Timeout(attemptTime), // NATS's own look-up has no time limit, and that of dialing has one
		// A failed send must not be repeated later without the sender's knowledge.
		nats.ReconnectBufSize(-1),
	}
	if o.Credentials != "" {
		opts = append(opts, login(o.Credentials, account))
	}
	if o.TLS != nil {
		opts = append(opts, nats.Secure(o.TLS))
	}
	if o.Roots != nil {
		opts = append(opts, func(n *nats.Options) error {
			n.RootCAsCB = o.Roots
			return nil
		})
	}
	if o.InProcess != nil {
		opts = append(opts, nats.InProcessServer(o.InProcess))
	}
	nc, err := nats.Connect(o.URL, append(opts, extra...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s for %s: %w", o.URL, account, err)
	}
	return nc, nil
}

// delay is the time until the next attempt. After the loss of a server, thousands of agents reconnect spread over
// some seconds.
func (o *Options) delay() time.Duration {
	return cmp.Or(o.pause, 500*time.Millisecond) + rand.N(cmp.Or(o.pause, 2*time.Second))
}

// login authenticates for an account with a file of credentials, read again each time. A malformed
// file is an error now. One that does not exist may come later, as an unreachable server may.
func login(path string, account credential.Account) nats.Option {
	token := func() (string, error) {
		f, err := credential.Load(path)
		if err != nil {
			return "", err
		}
		return f.Token(account)
	}
	return func(o *nats.Options) error {
		if _, err := token(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		o.UserJWT, o.SignatureCB = token, func(nonce []byte) ([]byte, error) {
			f, err := credential.Load(path)
			if err != nil {
				return nil, err
			}
			return f.Answer(nonce)
		}
		return nil
	}
}

// inboxPrefix is the prefix of a client's inboxes. An agent may subscribe only to its
// own.
func inboxPrefix(name string) string { return inboxes + wire.Token(name) }

// inboxes is what all inboxes begin with.
const inboxes = "inbox."

// ErrNotConnected means that a message was not sent because there is no connection.
var ErrNotConnected = errors.New("not connected to the server")
