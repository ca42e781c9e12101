package env

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/machine/host"
)

// counted is a program in a guest. At its end it reports what the guest's own kernel has
// counted on all of its CPUs since the program began: what the host took away (steal) can
// be compared with what the host says.
type counted struct {
	*child
	out    io.Writer
	before atomic.Pointer[host.CPUTime]
	done   chan struct{}
}

// Names of the values, in seconds.
const (
	guestBusy  = "guest.busy"
	guestIdle  = "guest.idle"
	guestSteal = "guest.steal"
)

func countInside(c *child, out io.Writer) *counted {
	p := &counted{child: c, out: out, done: make(chan struct{})}
	p.before.Store(insideTimes())
	go func() {
		<-c.done
		defer close(p.done)
		now, before := insideTimes(), p.before.Load()
		if now == nil || before == nil {
			return
		}
		seconds := func(to, from time.Duration) float64 { return (to - from).Seconds() }
		// The lab is told of the end, also if it no longer reads.
		_ = role.PrintValues(out, map[string]float64{guestBusy: seconds(now.Busy(), before.Busy()),
			guestIdle: seconds(now.Idle+now.IOWait, before.Idle+before.IOWait), guestSteal: seconds(now.Steal, before.Steal)}, 6)
	}()
	return p
}

// insideTimes are the guest's CPU times; nil if they cannot be read: then nothing is reported.
func insideTimes() *host.CPUTime {
	h, err := host.Open("/")
	if err != nil {
		return nil
	}
	all, err := h.CPUTimes()
	if err != nil {
		return nil
	}
	return &all.Total
}

// Begin implements lab.Process.
func (p *counted) Begin() (time.Time, time.Duration, error) {
	p.before.Store(insideTimes())
	return p.child.Begin()
}

// Done implements lab.Process.
func (p *counted) Done() <-chan struct{} { return p.done }

// Stop implements lab.Process.
func (p *counted) Stop() error {
	err := p.child.Stop()
	<-p.done
	return err
}
