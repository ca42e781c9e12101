package bus

import (
	"context"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Sender is an agent's connection to its server without a disk. quell-server load uses it
// to simulate many machines. It sends one batch at a time, each after the previous one
// was acknowledged, as an Uplink does. The caller must resend what failed. It is for one
// goroutine.
type Sender struct {
	link    *connection
	subject string
}

// OpenSender connects as the machine o.Name, and returns when it is connected or
// ctx has ended.
func OpenSender(ctx context.Context, o Options) (*Sender, error) {
	l, err := dial(ctx, &o, credential.Samples)
	if err != nil {
		return nil, err
	}
	return &Sender{l, wire.SampleSubject(o.Name)}, nil
}

// Send returns when the stream has the message of a batch. The message may be
// changed after that.
func (s *Sender) Send(ctx context.Context, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	return s.link.publish(ctx, s.subject, data)
}

// Close ends the connection.
func (s *Sender) Close() { s.link.nc.Close() }
