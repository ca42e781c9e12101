package audit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Methods.
const (
	Trace = "trace" // every context switch
	Poll  = "poll"  // /proc is read at intervals
)

// Part is a part to audit.
type Part struct {
	Name    string
	Sets    []sample.Set // where it was placed, as in lab.Observed; none: anywhere
	Threads func() ([]int, error)
}

// Audit watches one window.
type Audit struct {
	parts  []Part
	method string
	top    host.Topology
	begun  int64

	mu       sync.Mutex
	known    [][]int // threads of each part, in the order of their first appearance
	ledger   *Ledger
	switches *switches
	looks    map[int]look
	first    map[int]look

	stop chan struct{}
	done chan struct{}
	err  error
}

// pollInterval is the interval at which rings are emptied or, with Poll, /proc is read. Every
// fresh beats Audit looks for new threads.
const (
	pollInterval = 100 * time.Millisecond
	fresh        = 5
)

// Open begins a window. It tries the methods in turn. Threads that exist for less than half
// a second may be missed.
func Open(top host.Topology, parts []Part, methods ...string) (*Audit, error) {
	a := &Audit{parts: parts, top: top, known: make([][]int, len(parts)), looks: map[int]look{}, first: map[int]look{},
		stop: make(chan struct{}), done: make(chan struct{})}
	var errs []error
	for _, m := range methods {
		err := a.open(m)
		if err == nil {
			go a.run()
			return a, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("audit placement: %w", errors.Join(errs...))
}

func (a *Audit) open(method string) error {
	switch method {
	case Trace:
		s, err := openSwitches(a.top.Online)
		if err != nil {
			return err
		}
		a.switches = s
	case Poll:
	default:
		return fmt.Errorf("unknown method %q: want %s or %s", method, Trace, Poll)
	}
	a.method = method
	a.begun = host.Monotonic()
	a.ledger = NewLedger(a.top, a.begun)
	if err := a.find(); err != nil {
		return errors.Join(err, a.switches.close())
	}
	if a.method == Poll {
		a.poll()
	}
	return nil
}

// find looks for new threads.
func (a *Audit) find() error {
	var errs []error
	for i, p := range a.parts {
		ids, err := p.Threads()
		if err != nil {
			errs = append(errs, fmt.Errorf("list threads of %s: %w", p.Name, err))
			continue
		}
		for _, tid := range ids {
			if !slices.Contains(a.known[i], tid) {
				a.known[i] = append(a.known[i], tid)
				if l, err := lookAt(tid); err == nil {
					a.first[tid] = l
				}
			}
		}
	}
	a.ledger.Track(a.placed())
	return errors.Join(errs...)
}

func (a *Audit) placed() []Placed {
	all := make([]Placed, len(a.parts))
	for i, p := range a.parts {
		all[i] = Placed{p.Name, p.Sets, a.known[i]}
	}
	return all
}

func (a *Audit) run() {
	defer close(a.done)
	t := time.NewTicker(pollInterval)
	defer t.Stop()
	for i := 1; ; i++ {
		select {
		case <-a.stop:
			return
		case <-t.C:
		}
		a.mu.Lock()
		if a.switches != nil {
			a.switches.read(host.Monotonic(), a.ledger)
		}
		if i%fresh == 0 {
			if err := a.find(); err != nil && a.err == nil {
				a.err = err
			}
		}
		if a.method == Poll {
			a.poll()
		}
		a.mu.Unlock()
	}
}

// Close ends the window. The results are in the order of the parts.
func (a *Audit) Close() ([]result.Audit, error) {
	close(a.stop)
	<-a.done
	at := host.Monotonic()
	if a.switches != nil {
		a.switches.read(at, a.ledger)
		if err := a.switches.close(); err != nil && a.err == nil {
			a.err = err
		}
		for tid, l := range a.first {
			if last, err := lookAt(tid); err == nil {
				a.ledger.Still(tid, last.cpu, last.ran-l.ran)
			}
		}
	} else {
		a.poll()
	}
	return a.ledger.Close(at, a.placed(), a.method), a.err
}

// look is the state of a thread in /proc.
type look struct {
	cpu int
	ran int64 // ns
}

// lookAt reads a thread's time on CPUs from schedstat, and then the CPU on which it ran last: a
// CPU gets no time that came after the thread left it.
func lookAt(tid int) (look, error) {
	sched, err := host.ReadSchedstat("/proc/" + strconv.Itoa(tid) + "/schedstat")
	if err != nil {
		return look{}, err
	}
	stat, err := host.ReadProcessStat("/proc/" + strconv.Itoa(tid) + "/stat")
	return look{stat.CPU, int64(sched.Run)}, err
}

// poll attributes the run time of each thread since the last look to the CPU that it is
// on now.
func (a *Audit) poll() {
	for _, ids := range a.known {
		for _, tid := range ids {
			l, err := lookAt(tid)
			if err != nil {
				continue // the thread has ended
			}
			if old, ok := a.looks[tid]; ok {
				a.ledger.Ran(host.Monotonic(), tid, l.cpu, l.ran-old.ran)
			}
			a.looks[tid] = l
		}
	}
}

// least is the share of run time on a part's CPUs below which the part is misplaced.
const least = 0.99

// observer adds an audit of the steady window to another observer.
type observer struct {
	lab.Observer
	top     host.Topology
	parts   []Part
	methods []string
	audit   *Audit
	got     []result.Audit
}

// WithAudit audits the steady window of a run in addition to the inner observer, and reports
// parts that ran elsewhere as misplaced, unless their placement changes with the load.
func WithAudit(inner lab.Observer, top host.Topology, o lab.Observed, methods ...string) lab.Observer {
	w := &observer{Observer: inner, top: top, methods: methods}
	for i, e := range o.Envs {
		p := Part{Name: o.Names[i], Threads: e.Threads}
		if o.Cell.Place.Dynamic == nil {
			p.Sets = o.Sets[i]
		}
		w.parts = append(w.parts, p)
	}
	return w
}

// Window implements lab.Observer.
func (w *observer) Window(open bool) error {
	err := w.Observer.Window(open)
	switch {
	case open && w.audit == nil:
		a, opening := Open(w.top, w.parts, w.methods...)
		w.audit = a
		return errors.Join(err, opening)
	case !open && w.audit != nil:
		got, closing := w.audit.Close()
		w.audit, w.got = nil, got
		return errors.Join(err, closing)
	}
	return err
}

// Close implements lab.Observer.
func (w *observer) Close(parts []result.Part) ([]result.Evidence, error) {
	evidence, err := w.Observer.Close(parts)
	if w.audit != nil { // the run ended within its window
		_, closing := w.audit.Close()
		w.audit = nil
		err = errors.Join(err, closing)
	}
	for i := range w.got {
		if i >= len(parts) {
			break
		}
		a := w.got[i]
		parts[i].Audit = &a
		if a.OnPlace < least {
			evidence = append(evidence, result.Evidence{Reason: result.Misplaced, Role: parts[i].Name, Value: a.OnPlace, Bound: least,
				Text: fmt.Sprintf("%.1f %% of its run time was on the CPUs that it was placed on", a.OnPlace*100)})
		}
	}
	return evidence, err
}
