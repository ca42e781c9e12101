package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/wire"
)

// Sender is an agent's way to its server without a disk of its own: what plays
// many machines at once has (quell-server load). It sends as an Uplink does, one
// batch after the other and each acknowledged before the next, and what it
// could not send is the caller's to send again. It is for one goroutine.
type Sender struct {
	nc      *nats.Conn
	subject string
	inbox   string // acknowledgements come below it, by the count of what was sent
	sent    uint64
	acks    chan *nats.Msg
	timer   *time.Timer
}

// OpenSender connects as the machine o.Name, and returns when it is connected or
// ctx has ended.
func OpenSender(ctx context.Context, o Options) (*Sender, error) {
	made := make(chan struct{}, 1)
	nc, err := o.connect(nats.ConnectHandler(func(*nats.Conn) { made <- struct{}{} }))
	if err != nil {
		return nil, err
	}
	select {
	case <-made:
	case <-ctx.Done():
		err := nc.LastError()
		nc.Close()
		return nil, fmt.Errorf("connect to %s as %s: %w", o.URL, o.Name, cause(ctx, err))
	}
	s := &Sender{nc: nc, subject: wire.SampleSubject(o.Name), inbox: InboxPrefix(o.Name) + ".ack.", acks: make(chan *nats.Msg, 4), timer: time.NewTimer(0)}
	if _, err := nc.ChanSubscribe(s.inbox+"*", s.acks); err != nil {
		nc.Close()
		return nil, fmt.Errorf("listen for acknowledgements of %s: %w", o.Name, err)
	}
	return s, nil
}

// cause is why something took too long, as far as is known.
func cause(ctx context.Context, err error) error {
	if err == nil {
		return ctx.Err()
	}
	return err
}

// Send returns when the stream has the message of a batch. The message may be
// changed after that.
func (s *Sender) Send(ctx context.Context, data []byte) error {
	if !s.nc.IsConnected() {
		return ErrNotConnected
	}
	s.sent++ // so an acknowledgement that comes too late is none of what is sent next
	reply := s.inbox + strconv.FormatUint(s.sent, 36)
	if err := s.nc.PublishRequest(s.subject, reply, data); err != nil {
		return fmt.Errorf("send to %s: %w", s.subject, err)
	}
	s.timer.Reset(ackWait)
	defer s.timer.Stop()
	for {
		select {
		case answer := <-s.acks:
			switch {
			case answer.Subject != reply:
			case len(answer.Data) == 0: // NATS itself has answered
				return fmt.Errorf("send to %s: %w", s.subject, nats.ErrNoResponders)
			default:
				return stored(s.subject, answer)
			}
		case <-s.timer.C:
			return fmt.Errorf("send to %s: %w", s.subject, nats.ErrTimeout)
		case <-ctx.Done():
			return fmt.Errorf("send to %s: %w", s.subject, ctx.Err())
		}
	}
}

// Close ends the connection.
func (s *Sender) Close() {
	s.timer.Stop()
	s.nc.Close()
}
