package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/core/sample"
)

// Options are the options of a run.
type Options struct {
	Machines int
	Tasks    int           // per machine, samples per batch
	Period   time.Duration // from one batch of a machine to the next
	For      time.Duration
	Seed     uint64
	URL      string // NATS server
	// Credentials returns the file of a machine's credentials.
	Credentials func(machine string) (path string, err error)
	// Meter reads the server's state and usage; nil: the server is not asked.
	Meter func(context.Context) (Usage, error)
	// Progress is called every Every; nil: progress is not reported.
	Progress func(Progress)
	Every    time.Duration
	// Finish is how long, after the end, a batch without acknowledgement is still sent again:
	// until then it is unknown whether the stream has it.
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
	Rate         float64 // samples per second since the last report
	Usage        Usage
}

// connectors is how many connections are made in parallel: the server checks a signature
// for each.
const connectors = 32

// runner is a run.
type runner struct {
	Options
	machines  []*machine
	senders   []*bus.Sender
	connected atomic.Int64
	batches   atomic.Uint64 // acknowledged
	bytes     atomic.Uint64 // of the acknowledged batches
	resends   atomic.Uint64 // resends of a batch
	late      atomic.Uint64 // batches made a period or more late
	took      [][]float32   // per machine, s from sending to acknowledgement

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
	play, stop := context.WithTimeout(ctx, o.For)
	defer stop()
	var all sync.WaitGroup
	for i := range p.machines {
		all.Go(func() { p.run(play, i, began) })
	}
	m.watch(play, began)
	all.Wait()
	took := time.Since(began)
	return m.result(ctx, took)
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

// retry is how long to wait before a batch is sent again.
const retry = 200 * time.Millisecond

// run simulates one machine. The machines' sending times are spread over the period.
func (p *runner) run(ctx context.Context, i int, began time.Time) {
	m, s := p.machines[i], p.senders[i]
	timer := time.NewTimer(0)
	defer timer.Stop()
	var ended time.Time // when ctx was first seen to have ended
	for due := began.Add(p.Period * time.Duration(i) / time.Duration(p.Machines)); ; due = due.Add(p.Period) {
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		now := time.Now()
		if now.Sub(due) >= p.Period {
			p.late.Add(1)
		}
		batch := m.tick(sample.At(now))
		for {
			// Sending of a batch is completed even if ctx ends, as in an agent.
			err := s.Send(context.WithoutCancel(ctx), batch)
			if err == nil {
				p.bytes.Add(uint64(len(batch)))
				break
			}
			p.resends.Add(1)
			p.reason.Store(&err)
			if wait(ctx, retry) {
				continue
			}
			if ended.IsZero() {
				ended = time.Now()
			}
			if time.Since(ended) >= p.Finish {
				return
			}
			wait(context.WithoutCancel(ctx), retry)
		}
		p.batches.Add(1)
		p.took[i] = append(p.took[i], float32(time.Since(now).Seconds()))
	}
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
