package embedded

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
)

// Refusal is an operation that the server refused to a client.
type Refusal struct {
	// Client is ROLE.NAME of its credentials; empty if it had none that this authority has
	// signed.
	Client    string
	From      string // address
	Operation string // connect, publish, subscribe
	Subject   string // that it wanted to publish or subscribe to
	Reason    string
}

// watcher determines which client was refused which operation. NATS reports refused
// connections in events, but refused messages only in its log. The watcher therefore
// reads the log and looks up the connection number of each line in the server.
type watcher struct {
	server *server.Server
	tell   func(Refusal)
	lines  chan violation
	ended  chan struct{}
	done   sync.WaitGroup
	trust  atomic.Pointer[authority.Trust]
	missed atomic.Int64

	mu      sync.Mutex
	waiting map[string]int // of lines, by address
}

// violation is a log line that reports a refusal.
type violation struct {
	cid           uint64
	from          string
	what, subject string
}

// A client that is refused repeatedly costs no more than one lookup each lookEvery;
// refusals in excess of that are counted, and their number is told each countEvery.
const (
	lookEvery  = 20 * time.Millisecond
	countEvery = time.Minute
	maxWaiting = 256
	// share: the refusals of one address have 1/share of the room that all leave free, so that those of
	// several that are refused without a pause hide none of others.
	share = 8
)

// The client's own strings (its name, its language) are quoted in the line, as is the
// subject, so that a client cannot imitate another line.
const quoted = `"(?:[^"\\]|\\.)*"`

var (
	refusedMessage    = regexp.MustCompile(`^(\S+) - cid:(\d+)(?: - ` + quoted + `)* - (Publish|Subscription) Violation(?: Too Many Tokens)? - (?:Subject|Reply) (` + quoted + `)`)
	refusedConnection = regexp.MustCompile(`^(\S+) - cid:(\d+)(?: - ` + quoted + `)* - authentication error(?: - .*)?$`)
)

// parse parses a log line; false if it reports no refusal.
func parse(text string) (s violation, ok bool) {
	s.what = "connect"
	m := refusedConnection.FindStringSubmatch(text)
	if m == nil {
		if m = refusedMessage.FindStringSubmatch(text); m == nil {
			return s, false
		}
		s.what = map[string]string{"Publish": "publish", "Subscription": "subscribe"}[m[3]]
		if s.subject, _ = strconv.Unquote(m[4]); s.subject == "" {
			s.subject = m[4]
		}
	}
	cid, err := strconv.ParseUint(m[2], 10, 64)
	s.cid, s.from = cid, m[1]
	if host, _, err := net.SplitHostPort(m[1]); err == nil {
		s.from = host
	}
	return s, err == nil
}

func watch(s *server.Server, t authority.Trust, tell func(Refusal)) *watcher {
	w := &watcher{server: s, tell: tell, lines: make(chan violation, maxWaiting), ended: make(chan struct{}), waiting: map[string]int{}}
	w.trust.Store(&t)
	w.done.Go(w.run)
	return w
}

// line reports whether a log line reports a refusal. It is called under the server's
// locks, so it does no lookup.
func (w *watcher) line(text string) bool {
	s, ok := parse(text)
	if !ok {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if free := maxWaiting - len(w.lines); free == 0 || w.waiting[s.from] >= max(1, free/share) {
		w.missed.Add(1)
		return true
	}
	w.waiting[s.from]++
	w.lines <- s
	return true
}

// read makes room for further lines of its address.
func (w *watcher) read(s violation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting[s.from]--; w.waiting[s.from] == 0 {
		delete(w.waiting, s.from)
	}
}

func (w *watcher) close() {
	close(w.ended)
	w.done.Wait()
}

func (w *watcher) run() {
	pace, count := time.NewTicker(lookEvery), time.NewTicker(countEvery)
	defer pace.Stop()
	defer count.Stop()
	for {
		select {
		case <-w.ended:
			return
		case s := <-w.lines:
			w.read(s)
			w.tell(w.refusal(s))
		case <-count.C:
			if missed := w.missed.Swap(0); missed > 0 {
				w.tell(Refusal{Operation: "anything", Reason: fmt.Sprintf("%d more refusals came too fast to examine each", missed)})
			}
		}
		select {
		case <-w.ended:
			return
		case <-pace.C:
		}
	}
}

// lookTime is how long a closed connection may take to appear among the closed ones.
const lookTime = time.Second

// refusal identifies the client of a log line.
func (w *watcher) refusal(s violation) Refusal {
	r := Refusal{From: s.from, Operation: s.what, Subject: s.subject, Reason: "its credentials do not allow it"}
	token, known := w.token(s.cid)
	var why string
	r.Client, why = refusalReason(token, *w.trust.Load(), time.Now())
	switch {
	case !known:
		r.Reason = "the client is no longer known"
	case s.what == "connect":
		r.Reason = why
	}
	return r
}

// token returns the JWT that a connection presented.
func (w *watcher) token(cid uint64) (token string, known bool) {
	for until := time.Now().Add(lookTime); ; {
		last := time.Now().After(until) // it is looked once more: this goroutine may have waited for a CPU
		all, err := w.server.Connz(&server.ConnzOptions{CID: cid, Username: true, State: server.ConnAll})
		if err == nil && len(all.Conns) > 0 {
			return all.Conns[0].JWT, true
		}
		if last {
			return "", false
		}
		select {
		case <-w.ended:
			return "", false
		case <-time.After(lookEvery):
		}
	}
}

// refusalReason returns the name in a JWT, if the authority has signed it, and the reason to
// refuse its holder.
func refusalReason(token string, t authority.Trust, now time.Time) (who, why string) {
	if token == "" {
		return "", "no credentials"
	}
	c, err := jwt.DecodeUserClaims(token) // checks that the issuer named in it has signed it
	if err != nil {
		return "", "the credentials were changed after they were signed"
	}
	account, err := jwt.DecodeAccountClaims(t.JWTs[cmp.Or(c.IssuerAccount, c.Issuer)])
	switch {
	case slices.Contains(t.Ended, c.Issuer):
		return "", "the key that signed the credentials was replaced"
	case err != nil || !account.DidSign(c):
		return "", "the credentials are another authority's"
	case account.IsClaimRevoked(c):
		return c.Name, "the credentials were revoked"
	case c.Expires != 0 && now.Unix() >= c.Expires:
		return c.Name, "the credentials expired on " + time.Unix(c.Expires, 0).UTC().Format(time.RFC3339)
	}
	return c.Name, "the client has not proved that it has the private key"
}

// SetTrust replaces the server's trust information. Clients whose credentials have been
// revoked, or were signed by a key that has ended, are disconnected and not accepted again.
func (s *Server) SetTrust(t authority.Trust) error {
	if !maps.Equal(t.Accounts, s.trust.Accounts) || t.System != s.trust.System {
		return errors.New("change trust: these are another authority's keys")
	}
	if s.watcher != nil { // first: it says why a client is disconnected
		s.watcher.trust.Store(&t)
	}
	for _, key := range t.Accounts {
		claims, err := jwt.DecodeAccountClaims(t.JWTs[key])
		if err != nil {
			return fmt.Errorf("change trust: %w", err)
		}
		account, err := s.LookupAccount(key)
		if err != nil {
			return fmt.Errorf("change trust: %w", err)
		}
		if err := s.AccountResolver().Store(key, t.JWTs[key]); err != nil {
			return fmt.Errorf("change trust: %w", err)
		}
		s.UpdateAccountClaims(account, claims)
	}
	return nil
}
