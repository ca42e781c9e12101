package counter

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"golang.org/x/sys/unix"
)

// Uprobe is a place in a task's program; each time it is reached is one transaction.
type Uprobe struct {
	Binary string // path as the task sees it
	// Symbol is a function. Without it Offset is that of an instruction, from the
	// file's beginning, in the build that BuildID names.
	Symbol  string
	Offset  uint64
	BuildID string
	// MaxRate is the limit of hits per second on the whole machine: every process that
	// runs the file pays for each hit, in the task or not.
	MaxRate float64
}

func (u *Uprobe) String() string {
	if u.Symbol != "" {
		return u.Binary + ":" + u.Symbol
	}
	return fmt.Sprintf("%s+%#x", u.Binary, u.Offset)
}

// Prober puts uprobes into the kernel.
type Prober interface {
	// Find returns the place's offset in the file.
	Find(file io.ReaderAt, at *Uprobe) (offset uint64, err error)
	Attach(file *os.File, offset uint64) (Probe, error)
}

// Probe counts the hits of one place by all processes that run the file. It is read
// from several goroutines.
type Probe interface {
	Total() (uint64, error)
	// Each yields the hits by the cgroup2 in which they happened, and by process.
	Each(func(cgroup uint64, process int, hits uint64)) error
	Close() error
}

// RateError says that a place is reached too often to be counted.
type RateError struct {
	Place     string
	Rate, Max float64       // hits per second of the whole machine
	After     time.Duration // how long it was counted
	Rest      int           // windows until it is tried again
}

func (e *RateError) Error() string {
	return fmt.Sprintf("uprobe %s: %.0f hits per second on this machine, at most %.0f are allowed: removed after %v, next attempt after %d windows",
		e.Place, e.Rate, e.Max, e.After.Round(time.Millisecond), e.Rest)
}

// Remedy returns what an operator can do about it.
func (e *RateError) Remedy() string {
	return "name a function that is called once per transaction, or raise uprobe.max_rate: every hit costs the program 1 to 3 µs, in a virtual machine up to 10"
}

const (
	// firstGuard is the time until the first check of a new uprobe's rate, lastGuard
	// the longest time between later checks.
	firstGuard = 20 * time.Millisecond
	lastGuard  = 250 * time.Millisecond
	// maxProbeBackoff is the largest number of windows in which a place that was reached
	// too often is not probed.
	maxProbeBackoff = 64
)

var (
	errAttaching = errors.New("uprobe: not attached yet")
	errDetaching = errors.New("uprobe: still being removed after the previous window")
	errHitters   = errors.New("uprobe: too many processes run the program")
	errNoBinary  = errors.New("uprobe: no process of the task has the program")
)

// probeTask counts one task by a uprobe.
type probeTask struct {
	target *Target
	prober *uprobes
	window *uprobeWindow
}

func (t *probeTask) variant() string { return variantUprobe }
func (t *probeTask) abort()          { t.window = nil }

func (t *probeTask) start(time.Time) { t.window = t.prober.add(t.target) }

func (t *probeTask) stop(time.Time, time.Time) (counted, error) {
	w := t.window
	t.window = nil
	if w == nil {
		return counted{}, errDetaching
	}
	return w.read(t.target)
}

// uprobes keeps the uprobes of all tasks. Attaching and above all detaching takes the
// kernel a long time, so both happen in a goroutine for each window.
type uprobes struct {
	proc    string
	kernel  Prober
	now     func() time.Time
	window  *uprobeWindow // the open one, or the one that is ending
	refused map[placeKey]*refusedPlace

	mu    sync.Mutex
	found map[foundKey]uint64
	hangs map[sample.TaskKey]*hang // searches that run, or did not return in time
}

// foundKey is a place in one version of a file: its times of change cannot be set, as those of modification can, which
// archives and reproducible builds give to all versions.
type foundKey struct {
	file   fileID
	size   int64
	ctime  unix.Timespec
	symbol string
	offset uint64
	build  string
}

// placeKey identifies the place of a Probe.
type placeKey struct {
	file   fileID
	offset uint64
}

type refusedPlace struct {
	err    *RateError
	times  int
	remain int
}

func newProber(proc string, k Prober) *uprobes {
	return &uprobes{proc: proc, kernel: k, now: time.Now, found: map[foundKey]uint64{}, refused: map[placeKey]*refusedPlace{},
		hangs: map[sample.TaskKey]*hang{}}
}

// uprobeWindow is one window. Its goroutine attaches, checks the rates and detaches; the
// agent's goroutine reads.
type uprobeWindow struct {
	*uprobes
	requests []probeRequest
	begun    bool
	ending   bool          // readings from now on are final
	end      chan struct{} // closed: detach
	gone     chan struct{} // closed: detached

	mu     sync.Mutex
	probes map[placeKey]*attached
	places map[sample.TaskKey]placeKey
	errs   map[sample.TaskKey]error
}

// probeRequest is a task with its processes and cgroups at the window's start.
type probeRequest struct {
	target *Target
	pids   []int
	below  []uint64
}

// attached is a probe that counts or has counted.
type attached struct {
	Probe
	place string
	limit float64
	from  time.Time
	err   error
	final *probeHits // read at the window's end, once for all tasks
}

// probeHits is what a probe counted.
type probeHits struct {
	byCgroup  map[uint64]uint64
	byProcess map[int]uint64
	at        time.Time
}

// add enters a task for the window that is about to start. It returns nil if the
// previous window has not finished.
func (p *uprobes) add(t *Target) *uprobeWindow {
	if p.window != nil && p.window.begun {
		select {
		case <-p.window.gone:
			p.window = nil
		default:
			return nil
		}
	}
	if p.window == nil {
		p.window = &uprobeWindow{uprobes: p, end: make(chan struct{}), gone: make(chan struct{}), probes: map[placeKey]*attached{},
			places: map[sample.TaskKey]placeKey{}, errs: map[sample.TaskKey]error{}}
	}
	r := probeRequest{target: t}
	var err error
	if r.pids, err = t.Members(); err != nil {
		p.window.errs[t.Key] = fmt.Errorf("list members: %w", err)
		return p.window
	}
	if t.Key.Hierarchy == sample.Unified && t.Below != nil {
		if r.below, err = t.Below(); err != nil {
			p.window.errs[t.Key] = fmt.Errorf("list cgroups: %w", err)
			return p.window
		}
	}
	p.window.requests = append(p.window.requests, r)
	return p.window
}

func (p *uprobes) start() {
	if w := p.window; w != nil && !w.begun {
		w.begun = true
		go w.run()
	}
}

// ending makes the tasks of one probe share one reading.
func (p *uprobes) ending() {
	if p.window != nil {
		p.window.ending = true
	}
}

// stop has the probes removed, without waiting for it.
func (p *uprobes) stop() {
	if w := p.window; w != nil && w.begun {
		select {
		case <-w.end:
		default:
			close(w.end)
		}
	}
}

func (p *uprobes) wait() {
	if w := p.window; w != nil && w.begun {
		<-w.gone
	}
	p.window = nil
}

func (w *uprobeWindow) run() {
	defer close(w.gone)
	for i := range w.requests {
		r := &w.requests[i]
		key, err := w.attach(r)
		w.mu.Lock()
		w.places[r.target.Key], w.errs[r.target.Key] = key, err
		w.mu.Unlock()
		select {
		case <-w.end:
			w.detach()
			return
		default:
		}
	}
	next := firstGuard
	timer := time.NewTimer(next)
	defer timer.Stop()
	for {
		select {
		case <-w.end:
			w.detach()
			return
		case <-timer.C:
			w.checkRates()
			next = min(2*next, lastGuard)
			timer.Reset(next)
		}
	}
}

// detach closes all probes in parallel: each waits for its own grace period.
func (w *uprobeWindow) detach() {
	w.mu.Lock()
	var wg sync.WaitGroup
	for key, a := range w.probes {
		if a.err == nil {
			wg.Go(func() { a.Close() })
			delete(w.refused, key) // it kept within its limit this time
		}
	}
	clear(w.probes)
	w.mu.Unlock()
	wg.Wait()
}

// attach finds a task's place and puts a probe there, unless there is one.
func (w *uprobeWindow) attach(r *probeRequest) (placeKey, error) {
	p := w.search(r)
	defer p.close()
	if p.err != nil {
		return placeKey{}, p.err
	}
	key := placeKey{p.id, p.offset}
	if again := w.refused[key]; again != nil && again.remain > 0 {
		if w.probes[key] == nil {
			again.remain--
			w.publish(key, &attached{err: again.err})
		}
		return key, nil
	}
	limit := r.target.Uprobe.MaxRate
	if a := w.probes[key]; a != nil {
		w.mu.Lock()
		a.limit = min(a.limit, limit)
		w.mu.Unlock()
		return key, nil
	}
	probe, err := w.put(r, &p)
	if err != nil {
		return key, err
	}
	w.publish(key, &attached{Probe: probe, place: r.target.Uprobe.String(), limit: limit, from: w.now()})
	w.checkRates()
	return key, nil
}

func (w *uprobeWindow) publish(key placeKey, a *attached) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.probes[key] = a
}

// checkRates removes probes that are reached too often: more than the limit per second since
// they were attached, plus one second's worth as an allowance for bursts.
func (w *uprobeWindow) checkRates() {
	w.mu.Lock()
	var out []Probe
	for key, a := range w.probes {
		if a.err == nil {
			if a.err = w.excess(key, a); a.err != nil {
				out = append(out, a.Probe)
			}
		}
	}
	w.mu.Unlock()
	for _, p := range out {
		p.Close()
	}
}

func (w *uprobeWindow) excess(key placeKey, a *attached) error {
	total, err := a.Total()
	if err != nil {
		return err
	}
	since := w.now().Sub(a.from)
	if float64(total) <= a.limit*(1+since.Seconds()) {
		return nil
	}
	r := w.refused[key]
	if r == nil {
		r = &refusedPlace{}
		w.refused[key] = r
	}
	r.remain = min(1<<min(r.times, 10), maxProbeBackoff)
	r.times++
	r.err = &RateError{Place: a.place, Rate: float64(total) / max(since, time.Millisecond).Seconds(), Max: a.limit, After: since, Rest: r.remain}
	return r.err
}

// read returns the hits of a task's processes in the window so far.
func (w *uprobeWindow) read(t *Target) (counted, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.errs[t.Key]; err != nil {
		return counted{}, err
	}
	a := w.probes[w.places[t.Key]]
	if a == nil {
		return counted{}, errAttaching
	}
	if a.err != nil {
		return counted{}, a.err
	}
	all := a.final
	if all == nil {
		var err error
		if all, err = w.readProbe(a.Probe); err != nil {
			return counted{}, err
		}
		if w.ending {
			a.final = all
		}
	}
	return counted{done: float64(w.hits(t, all)), span: all.at.Sub(a.from)}, nil
}

// hits sums those of a task: by cgroup if the task's cgroup is one that the kernel
// reports with a hit, else by the processes that the task had at either end.
func (w *uprobeWindow) hits(t *Target, all *probeHits) (sum uint64) {
	var request probeRequest
	for _, r := range w.requests {
		if r.target == t {
			request = r
		}
	}
	if t.Key.Hierarchy == sample.Unified {
		ids := map[uint64]bool{t.Key.Inode: true}
		now, _ := t.Below() // if the task is gone, the cgroups at the start
		for _, id := range append(now, request.below...) {
			ids[id] = true
		}
		for id := range ids {
			sum += all.byCgroup[id]
		}
		return sum
	}
	pids := map[int]bool{}
	now, _ := t.Members()
	for _, pid := range append(now, request.pids...) {
		pids[pid] = true
	}
	for pid := range pids {
		sum += all.byProcess[pid]
	}
	return sum
}

func (w *uprobeWindow) readProbe(p Probe) (*probeHits, error) {
	total, err := p.Total()
	if err != nil {
		return nil, err
	}
	t := &probeHits{byCgroup: map[uint64]uint64{}, byProcess: map[int]uint64{}, at: w.now()}
	told := uint64(0)
	if err := p.Each(func(cgroup uint64, process int, hits uint64) {
		t.byCgroup[cgroup] += hits
		t.byProcess[process] += hits
		told += hits
	}); err != nil {
		return nil, err
	}
	// A hit is counted in the total first; few hits are between the two.
	if missing := float64(total) - float64(told); missing > 64+float64(total)/1000 {
		return nil, errHitters
	}
	return t, nil
}
