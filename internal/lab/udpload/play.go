package udpload

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Counted is the counted time of a part's values: Duration, after a warm-up.
type Counted struct {
	Warmup, Duration time.Duration
}

// A Part is one of Sender, Receiver, Pinger and Echo.
type Part interface {
	// check returns an error if the part is not valid.
	check() error
	// open creates its sockets.
	open() (session, error)
}

// Check returns an error if a part is not valid, without playing it.
func Check(p Part) error { return p.check() }

// session is a running part. Its methods except run are called by one goroutine.
type session interface {
	// run continues until the context ends, which is not an error.
	run(ctx context.Context) error
	// units is the work done since the last call.
	units() float64
	// count begins the counted time.
	count()
	// values ends the counted time and returns its values; lasted is its length.
	values(lasted time.Duration) map[string]float64
	io.Closer
}

// done counts the work of a session for its method units.
type done struct {
	n    atomic.Int64 // since the beginning
	said int64        // part of n that units has reported
}

func (d *done) units() float64 {
	now := d.n.Load()
	last := d.said
	d.said = now
	return float64(now - last)
}

// Play creates a part's sockets, waits for a line on in and plays until in closes. It
// reports the work of each slice (bits; for a Pinger and an Echo answers), and the values
// of the counted time when that is over or the part ends. It continues after the counted
// time, so that the load on other parts does not drop.
func Play(ctx context.Context, p Part, c Counted, in io.Reader, out io.Writer) error {
	if err := p.check(); err != nil {
		return err
	}
	s, err := p.open()
	if err != nil {
		return err
	}
	defer s.Close()
	ctx, cancel, ok := role.Barrier(ctx, in)
	defer cancel()
	if !ok {
		return nil // cancelled
	}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	err = play(ctx, s, c, done, out)
	cancel()
	if ended := <-done; err == nil {
		err = ended
	}
	return err
}

// play reports the results of a session until it ends; the session's error stays in done.
func play(ctx context.Context, s session, c Counted, done chan error, out io.Writer) error {
	tick := time.NewTicker(role.Slice)
	defer tick.Stop()
	turn := time.NewTimer(c.Warmup)
	defer turn.Stop()
	var began time.Time // begin of the counted time
	said := false
	from := host.Monotonic()
	iteration := func() error {
		began := from
		from = host.Monotonic()
		return role.PrintIteration(out, began, from, s.units())
	}
	for {
		select {
		case <-tick.C:
			if err := iteration(); err != nil {
				return err
			}
			continue
		case <-turn.C:
			if began.IsZero() {
				began = time.Now()
				s.count()
				turn.Reset(c.Duration)
				continue
			}
		case err := <-done:
			done <- nil // for Play, which reads it again
			if err != nil || ctx.Err() == nil {
				return err
			}
		case <-ctx.Done():
		}
		// Half of the counted time is enough for values; a shorter time gives none.
		if lasted := time.Since(began); !began.IsZero() && !said && lasted >= c.Duration/2 {
			said = true
			if err := role.PrintValues(out, s.values(lasted), 10); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			// The steady window ends within this slice.
			return iteration()
		}
	}
}
