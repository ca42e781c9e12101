package bus

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/format/wire"
)

// Sender is an agent's connection to its server without a disk. quell-server load uses it
// to simulate many machines. It sends one batch at a time, each after the previous one
// was acknowledged, as an Uplink does. The caller must resend what failed. It is for one
// goroutine.
type Sender struct {
	nc      *nats.Conn
	subject string
	inbox   string // prefix of acknowledgements; the number of the sent message follows
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
	s := &Sender{nc: nc, subject: wire.SampleSubject(o.Name), inbox: inboxPrefix(o.Name) + ".ack.", acks: make(chan *nats.Msg, 4), timer: time.NewTimer(0)}
	if _, err := nc.ChanSubscribe(s.inbox+"*", s.acks); err != nil {
		nc.Close()
		return nil, fmt.Errorf("listen for acknowledgements of %s: %w", o.Name, err)
	}
	return s, nil
}

// cause returns why an operation timed out, as far as known.
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
	s.sent++ // an acknowledgement that comes too late then does not match the next message
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
