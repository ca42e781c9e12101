package bus

import (
	"context"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Sender is an agent's connection to its server without a disk. quell-server load uses it
// to simulate many machines. It sends as an Uplink does: nothing before the previous delivery
// was answered. The caller must send again what failed. It is for one goroutine.
type Sender struct {
	link    *connection
	subject string
	room    int
}

// OpenSender connects as the machine o.Name, and returns when it is connected or
// ctx has ended.
func OpenSender(ctx context.Context, o Options) (*Sender, error) {
	l, err := dial(ctx, &o, credential.Samples)
	if err != nil {
		return nil, err
	}
	return &Sender{link: l, subject: wire.SampleSubject(o.Name)}, nil
}

// Room is how many bytes the messages of the next delivery may have together, if there are
// several.
func (s *Sender) Room() int { return s.room }

// Send delivers messages of batches, and returns when they are stored.
func (s *Sender) Send(ctx context.Context, messages ...[]byte) (err error) {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	s.room, err = s.link.deliver(ctx, s.subject, wire.Pack(messages...))
	return err
}

// Close ends the connection.
func (s *Sender) Close() { s.link.nc.Close() }
