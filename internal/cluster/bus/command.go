package bus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
)

// ErrNoMachine means that a command was not carried out because no machine of that name
// is connected.
var ErrNoMachine = errors.New("the machine is not connected")

// validFor is how long a command is valid that states no expiry.
const validFor = 10 * time.Second

// commander is the server's side of the account of commands. It signs each command with
// the key in its credentials. The only messages that agents may publish there are replies,
// each machine on its own subjects.
type commander struct {
	link        *connection
	credentials string
	log         *slog.Logger

	mu       sync.Mutex // one command at a time is numbered and sent, so that they arrive in order
	sequence uint64
}

// one sends a command to one machine and returns its reply.
func (s *commander) one(ctx context.Context, machine string, c *wire.Command) (reply *wire.Reply, err error) {
	err = s.send(ctx, machine, c, func(r *wire.Reply) (more bool) {
		reply = r
		return false
	})
	if err == nil && reply == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("command %s: %w", machine, err)
	}
	return reply, nil
}

// all sends a command to all machines. That none is connected is no error.
func (s *commander) all(ctx context.Context, c *wire.Command, each func(*wire.Reply)) error {
	answered := map[string]bool{}
	err := s.send(ctx, "", c, func(r *wire.Reply) (more bool) {
		if !answered[r.Machine] { // a machine could send any number
			answered[r.Machine] = true
			each(r)
		}
		return true
	})
	if err != nil && !errors.Is(err, ErrNoMachine) {
		return fmt.Errorf("command all: %w", err)
	}
	return nil
}

// maxReplies is how many replies may wait to be read.
const maxReplies = 1 << 16

// send sends a command to a machine, or to all if machine is empty, and passes on the
// replies until each wants no more or ctx ends. It completes the command: machine, number,
// and ID and expiry if it has none.
func (s *commander) send(ctx context.Context, machine string, c *wire.Command, each func(*wire.Reply) (more bool)) error {
	c.Machine = machine
	if c.Id == "" {
		c.Id = rand.Text()
	}
	if c.Expires == 0 {
		c.Expires = time.Now().Add(validFor).UnixMilli()
	}
	replies := make(chan *nats.Msg, maxReplies)
	sub, err := s.link.nc.ChanSubscribe(wire.AllReplies(c.Id), replies)
	if err != nil {
		return err
	}
	defer sub.Unsubscribe()
	if err := s.publish(c); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case m := <-replies:
			if m.Subject == noReceiver(c.Id) {
				return ErrNoMachine
			}
			r, err := readReply(m, c)
			if err != nil {
				s.log.Warn("a reply was dropped", "subject", m.Subject, "reason", err)
				continue
			}
			if !each(r) {
				return nil
			}
		}
	}
}

// noReceiver is the subject on which NATS says that no machine listens. No machine may publish
// on it: none has an empty name.
func noReceiver(id string) string { return wire.ReplySubject("", id) }

// publish signs and sends a command.
func (s *commander) publish(c *wire.Command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.Sequence = max(s.sequence+1, uint64(time.Now().UnixNano()))
	data, err := sign(s.credentials, c)
	if err != nil {
		return err
	}
	subject := wire.CommandAll
	if c.Machine != "" {
		subject = wire.CommandSubject(c.Machine)
	}
	if err := s.link.nc.PublishRequest(subject, noReceiver(c.Id), data); err != nil {
		return err
	}
	s.sequence = c.Sequence
	return nil
}

// sign encodes a command with the signature of a server's credentials.
func sign(credentials string, c *wire.Command) ([]byte, error) {
	if credentials == "" {
		return nil, errors.New("sign command: the server has no credentials, and agents carry out no command without")
	}
	f, err := credential.Load(credentials) // it may have been replaced
	if err != nil {
		return nil, err
	}
	signed := &wire.SignedCommand{}
	if signed.Command, err = wire.Marshal(c); err != nil {
		return nil, err
	}
	s, err := f.Sign(signed.Command)
	if err != nil {
		return nil, err
	}
	signed.Signer, signed.Endorsements, signed.Signature = s.Signer, s.Endorsements, s.Bytes
	return wire.Marshal(signed)
}

// Bounds of a reply, for the audit log and for people.
const (
	maxReplyText = 4096
	maxRefused   = 1000
)

// readReply reads the reply to a command. The bus has checked that the machine in its
// subject has sent it.
func readReply(m *nats.Msg, c *wire.Command) (*wire.Reply, error) {
	var r wire.Reply
	if err := wire.Unmarshal(m.Data, &r); err != nil {
		return nil, err
	}
	switch {
	case wire.ReplySubject(r.Machine, c.Id) != m.Subject:
		return nil, &ForgedError{m.Subject, r.Machine}
	case c.Machine != "" && r.Machine != c.Machine:
		return nil, fmt.Errorf("the command was to %s", c.Machine)
	case r.Id != c.Id:
		return nil, fmt.Errorf("it answers the command %.40q", r.Id)
	}
	r.Message, r.Cap = cut(r.Message), cut(r.Cap)
	r.Refused = r.Refused[:min(len(r.Refused), maxRefused)]
	for i, text := range r.Refused {
		r.Refused[i] = cut(text)
	}
	return &r, nil
}

// cut shortens a text.
func cut(text string) string {
	if len(text) <= maxReplyText {
		return text
	}
	return strings.ToValidUTF8(text[:maxReplyText], "") + " …"
}

// maxAhead is how far ahead a command's expiry may lie: how long an agent would have to
// remember it.
const maxAhead = 10 * time.Minute

// gate lets an agent carry out only the commands of its server, each once, in order.
type gate struct {
	machine     string
	credentials string
	opened      time.Time         // no command made before is accepted: an earlier run may have carried it out
	last        map[string]uint64 // highest sequence number by signer
}

// refusedError is why a command that a server has signed is not carried out. It may be
// answered.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return "refused: " + e.reason }

// open returns the command of a message. With a *refusedError it returns the command too.
func (g *gate) open(data []byte, now time.Time) (*wire.Command, error) {
	var signed wire.SignedCommand
	if err := wire.Unmarshal(data, &signed); err != nil {
		return nil, err
	}
	if g.credentials == "" {
		return nil, errors.New("without server.credentials it cannot be known who signed it")
	}
	f, err := credential.Load(g.credentials) // it may have been replaced
	if err != nil {
		return nil, err
	}
	signer, err := f.Verify(signed.Command, credential.Signature{Signer: signed.Signer, Endorsements: signed.Endorsements, Bytes: signed.Signature}, now)
	if err != nil {
		return nil, err
	}
	var c wire.Command
	if err := wire.Unmarshal(signed.Command, &c); err != nil {
		return nil, err
	}
	return &c, g.check(&c, signer, now)
}

func (g *gate) check(c *wire.Command, signer string, now time.Time) error {
	refuse := func(format string, args ...any) error { return &refusedError{fmt.Sprintf(format, args...)} }
	expires := time.UnixMilli(c.Expires)
	switch {
	case c.Machine != "" && c.Machine != g.machine:
		return refuse("the command is for the machine %s", c.Machine)
	case strings.TrimSpace(c.Who) == "":
		return refuse("the command does not say whose it is")
	case now.After(expires):
		return refuse("the command expired at %s by the server's clock", expires.UTC().Format(time.RFC3339))
	case expires.Sub(now) > maxAhead:
		return refuse("the command is valid for longer than %s, until %s by the server's clock", maxAhead, expires.UTC().Format(time.RFC3339))
	case c.Sequence <= g.last[signer]:
		return refuse("the command has come before, or a later one has: number %d, and %d was carried out", c.Sequence, g.last[signer])
	case c.Sequence < uint64(g.opened.UnixNano()):
		return refuse("the command was made before this agent started: send it again")
	}
	g.last[signer] = c.Sequence
	return nil
}
