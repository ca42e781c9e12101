package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Options are the options of a run.
type Options struct {
	Machines int
	Tasks    int           // per machine, samples per batch
	Period   time.Duration // from one batch of a machine to the next
	For      time.Duration
	// Drain is for how long machines then go on to send what they could not send in time.
	Drain time.Duration
	Seed  uint64
	URL   string // NATS server
	// Credentials returns the file of a machine's credentials.
	Credentials func(machine string) (path string, err error)
	// Meter reads the server's state and usage; nil: the server is not asked.
	Meter func(context.Context) (Usage, error)
	// Progress is called every Every; nil: progress is not reported.
	Progress func(Progress)
	Every    time.Duration
	// Finish is how long, after the end, a delivery without acknowledgement is still sent again:
	// until then it is unknown whether the server has it.
	Finish time.Duration
	// Settle is how long to wait, after the last batch, until the server has committed
	// what it acknowledged.
	Settle time.Duration
}

// Progress is the state of a run in progress.
type Progress struct {
	Elapsed      time.Duration
	Connected    int
	Acknowledged uint64  // samples
	Waiting      float64 // samples that were due and are not acknowledged
	Rate         float64 // samples per second since the last report
	Usage        Usage
}

// connectors is how many connections are made in parallel: the server checks a signature
// for each.
const connectors = 32

// runner is a run.
type runner struct {
	Options
	machines   []*machine
	senders    []*bus.Sender
	connected  atomic.Int64
	batches    atomic.Uint64 // acknowledged
	bytes      atomic.Uint64 // of the acknowledged batches
	resends    atomic.Uint64 // resends of a delivery
	left       atomic.Uint64 // batches due and never sent
	deliveries atomic.Uint64 // acknowledged
	took       [][]float32   // per machine and batch, s from when it was due to its acknowledgement

	reason atomic.Pointer[error] // why a batch was resent last
}

// Run runs until o.For is over or ctx ends, which is no error, and waits until what was
// acknowledged is committed.
func Run(ctx context.Context, o Options) (*Result, error) {
	if o.Progress == nil {
		o.Progress = func(Progress) {}
	}
	p := &runner{Options: o, senders: make([]*bus.Sender, o.Machines), took: make([][]float32, o.Machines)}
	boot := fmt.Sprintf("%x", time.Now().UnixNano())
	for i := range o.Machines {
		m, err := newMachine(&o, i, boot)
		if err != nil {
			return nil, err
		}
		p.machines = append(p.machines, m)
	}
	defer func() {
		for _, s := range p.senders {
			if s != nil {
				s.Close()
			}
		}
	}()
	if err := p.connect(ctx); err != nil {
		return nil, err
	}
	m := newMeter(p)
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	play, stop := context.WithTimeout(ctx, o.For+o.Drain)
	defer stop()
	var all sync.WaitGroup
	for i := range p.machines {
		all.Go(func() { p.run(play, i, began) })
	}
	go func() {
		all.Wait()
		stop()
	}()
	m.watch(play, began)
	all.Wait()
	return m.result(ctx, time.Since(began))
}

// connect connects all machines.
func (p *runner) connect(ctx context.Context) error {
	report, stop := context.WithCancel(ctx)
	var reporting sync.WaitGroup
	reporting.Go(func() {
		for wait(report, p.Every) {
			p.Progress(Progress{Connected: int(p.connected.Load())})
		}
	})
	dialing, ctx := errgroup.WithContext(ctx)
	dialing.SetLimit(connectors)
	for i := range p.Machines {
		dialing.Go(func() error { return p.dial(ctx, i) })
	}
	err := dialing.Wait()
	stop()
	reporting.Wait()
	if err != nil {
		return fmt.Errorf("connect %d machines, %d are connected: %w", p.Machines, p.connected.Load(), err)
	}
	return nil
}

// dialTime is how long one connection may take.
const dialTime = 30 * time.Second

func (p *runner) dial(ctx context.Context, i int) error {
	if err := ctx.Err(); err != nil { // another has failed
		return err
	}
	name := p.machines[i].name
	creds, err := p.Credentials(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	s, err := bus.OpenSender(ctx, bus.Options{URL: p.URL, Name: name, Credentials: creds})
	if err != nil {
		return err
	}
	p.senders[i] = s
	p.connected.Add(1)
	return nil
}

// retry is how long to wait before a delivery is sent again.
const retry = 200 * time.Millisecond

// run simulates one machine. The machines' times are spread over the period. A machine makes a
// batch each period, and delivers what it has made as an agent does. Batches that wait are made
// when they are sent: a player does not have the disks of its agents.
func (p *runner) run(ctx context.Context, i int, began time.Time) {
	m, s := p.machines[i], p.senders[i]
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := began.Add(p.Period * time.Duration(i) / time.Duration(p.Machines)) // of the next batch
	ends := began.Add(p.For)                                                  // of making batches
	drained := func() bool { return !due.Before(ends) }
	defer func() {
		if now := earlier(time.Now(), ends); due.Before(now) {
			p.left.Add(uint64(now.Sub(due)/p.Period) + 1)
		}
	}()
	for !drained() {
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		var messages [][]byte
		first := due
		for size, now := 0, earlier(time.Now(), ends); ; {
			data := bytes.Clone(m.tick(sample.At(due)))
			messages, size, due = append(messages, data), size+wire.PackedSize(data), due.Add(p.Period)
			if !due.Before(now) || size+len(data)+16 > s.Room() {
				break
			}
		}
		if !p.deliver(ctx, i, messages) {
			return
		}
		now := time.Now()
		for at := first; at.Before(due); at = at.Add(p.Period) {
			p.took[i] = append(p.took[i], float32(now.Sub(at).Seconds()))
		}
	}
}

// earlier returns the earlier of two times.
func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// deliver sends a machine's messages until they are acknowledged, and reports whether they were.
// It goes on for a while after ctx has ended: until there is an answer it is unknown whether the
// server has stored them.
func (p *runner) deliver(ctx context.Context, i int, messages [][]byte) bool {
	finish, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(p.Finish, stop) })()
	for pause := retry; ; pause = min(2*pause, 10*time.Second) {
		err := p.senders[i].Send(finish, messages...)
		if err == nil {
			break
		}
		if finish.Err() != nil { // the run is over: the server has not refused this
			return false
		}
		p.resends.Add(1)
		p.reason.Store(&err)
		if !wait(finish, pause/2+rand.N(pause)) {
			return false
		}
	}
	size := 0
	for _, m := range messages {
		size += len(m)
	}
	p.bytes.Add(uint64(size))
	p.deliveries.Add(1)
	p.batches.Add(uint64(len(messages)))
	return true
}

// wait reports whether d passed before ctx ended.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// acknowledged is the number of acknowledged samples.
func (p *runner) acknowledged() uint64 { return p.batches.Load() * uint64(p.Tasks) }

// errNotCommitted means that the server acknowledged samples that it has not committed.
var errNotCommitted = errors.New("the server has not committed all acknowledged samples")
