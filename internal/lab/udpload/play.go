package udpload

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
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

// The output of a part for each slice of time and for its whole counted time; the lab's
// engine reads it (see package lab).
const (
	iterationLine = "quell-lab iteration"
	valueLine     = "quell-lab value"
	slice         = 100 * time.Millisecond

	// saturated is the value, other than 0, of a part that fell behind its own schedule.
	// unreachable is how often a part found no receiver.
	saturated   = "generator-saturated"
	unreachable = "unreachable"
)

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
	lines := bufio.NewReader(in)
	if _, err := lines.ReadString('\n'); err != nil {
		return nil // cancelled
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		// The reader may stay blocked after this returns; the process ends.
		defer cancel()
		_, _ = io.Copy(io.Discard, lines)
	}()
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
	tick := time.NewTicker(slice)
	defer tick.Stop()
	turn := time.NewTimer(c.Warmup)
	defer turn.Stop()
	var began time.Time // begin of the counted time
	said := false
	from := monotonic()
	iteration := func() error {
		to := monotonic()
		if _, err := fmt.Fprintf(out, "%s %d %d %s\n", iterationLine, from, to, number(s.units())); err != nil {
			return fmt.Errorf("report an iteration: %w", err)
		}
		from = to
		return nil
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
			if err := say(out, s.values(lasted)); err != nil {
				return err
			}
		}
		if ctx.Err() != nil {
			// The steady window ends within this slice.
			return iteration()
		}
	}
}

func say(out io.Writer, values map[string]float64) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if _, err := fmt.Fprintf(out, "%s %s %s\n", valueLine, name, number(values[name])); err != nil {
			return fmt.Errorf("report values: %w", err)
		}
	}
	return nil
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 10, 64) }

// monotonic is CLOCK_MONOTONIC in ns, by which the lab maps a role's times.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // every kernel has it
	}
	return ts.Nano()
}
