package origin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
)

// Sources are where names are read from. The zero value: only paths and processes.
type Sources struct {
	CRI     []string // sockets of container runtimes; those that exist are asked
	Docker  string   // Docker's data directory
	Podman  []string // storages of podman
	Kubelet Kubelet
	Timeout time.Duration // of one question
}

// Names finds out where cgroups come from, in the goroutine of Run. Its other methods may be called
// from any goroutine and do not wait.
type Names struct {
	sources   Sources
	members   func(at host.Place, inode uint64) ([]int, error)
	processes func(pids []int) Process
	atHome    func(uid int) (map[string]*record, error)
	cri       cri
	hung      atomic.Int32  // looks that have not returned
	homes     map[int]*home // by user; only Run uses it
	rest      int           // a home is not read again for so many times as long as that took
	wake      chan struct{}

	mu      sync.Mutex
	entries map[key]*entry
	changed bool
	asked   error         // of the runtimes' newest answers
	unread  map[key]error // state files that could not be read, by the cgroup
}

type key struct {
	host.Place
	inode uint64
}

// entry is what is known of one cgroup.
type entry struct {
	origin  Origin
	facts   Facts
	settled bool // nothing more is to be learnt soon
	record  *record
	process Process
	hung    atomic.Bool // a look at its processes has not returned: there is no other meanwhile
	looks   int
	misses  int // looks in which no runtime knew it
	next    time.Time
}

// home is what a user's own podman says of containers.
type home struct {
	hung    atomic.Bool        // as entry.hung
	round   *book              // in which it was read
	records map[string]*record // then, by ID
	err     error
	next    time.Time // it is not read before
}

// Processes of a cgroup are looked at when it is found, after these times, and then at intervals of
// the last of them: at first a container's process is the runtime's, and a server may listen some
// time after it was started. Containers that no runtime
// knows are asked for again after firstMiss, then at doubled intervals up to lastMiss.
var lookAfter = [...]time.Duration{time.Second, 10 * time.Second, time.Minute, 5 * time.Minute, time.Hour}

const (
	firstMiss = 100 * time.Millisecond
	lastMiss  = time.Minute
)

// mostHung bounds the looks that hang, each of which keeps a thread until it returns.
const mostHung = 8

// errHung is why there are no looks.
var errHung = errors.New("looks at processes, or at users' homes, hang: what others of them say of tasks is not known")

// New returns the names of a host's cgroups. Run must be called for any to be found.
func New(h *host.Host, s Sources) *Names {
	return &Names{sources: s, cri: cri{sockets: s.CRI}, wake: make(chan struct{}, 1), entries: map[key]*entry{}, unread: map[key]error{}, homes: map[int]*home{}, rest: 10,
		members: h.Members, processes: func(pids []int) Process { return processes(h, pids) }, atHome: userRecords}
}

// Facts returns what is known of a cgroup, and whether more is not to be expected soon. The first
// call for a cgroup makes Run look.
func (n *Names) Facts(at host.Place, inode uint64) (f Facts, settled bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := key{at, inode}
	e := n.entries[k]
	if e == nil {
		e = &entry{origin: Parse(at.Path)}
		e.facts = facts(e.origin, nil, Process{})
		n.entries[k] = e
		select {
		case n.wake <- struct{}{}:
		default: // it is awake
		}
	}
	return e.facts, e.settled
}

// Changed reports whether an answer of Facts has changed since the last call.
func (n *Names) Changed() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	was := n.changed
	n.changed = false
	return was
}

// Forget drops what is known of a cgroup.
func (n *Names) Forget(at host.Place, inode uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.entries, key{at, inode})
	delete(n.unread, key{at, inode})
}

// Err is why names of containers cannot be read now; nil if they can.
func (n *Names) Err() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.asked != nil:
		return n.asked
	case n.hung.Load() >= mostHung:
		return errHung
	case len(n.unread) == 0:
		return nil
	}
	first := slices.MinFunc(slices.Collect(maps.Keys(n.unread)), func(a, b key) int { return strings.Compare(a.Path, b.Path) })
	return n.unread[first]
}

// Run looks until ctx ends.
func (n *Names) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer n.cri.close()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-n.wake:
		}
		next := n.round(ctx)
		timer.Reset(time.Until(next))
	}
}

// due returns the cgroups to look at now, in a fixed order, and when the next is due.
func (n *Names) due(now time.Time) (keys []key, next time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	next = now.Add(lookAfter[len(lookAfter)-1])
	for k, e := range n.entries {
		if !e.next.After(now) {
			keys = append(keys, k)
		} else if e.next.Before(next) {
			next = e.next
		}
	}
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.Path, b.Path) })
	return keys, next
}

// round looks at the cgroups that are due, and returns when the next are.
func (n *Names) round(ctx context.Context) time.Time {
	keys, next := n.due(time.Now())
	if len(keys) == 0 {
		return next
	}
	b := n.ask(ctx, keys)
	for _, k := range keys {
		if ctx.Err() != nil {
			return next
		}
		n.look(ctx, k, b)
	}
	if b.containers != nil { // else none was asked
		n.mu.Lock()
		n.asked = errors.Join(b.errs...)
		n.mu.Unlock()
	}
	maps.DeleteFunc(n.homes, func(_ int, h *home) bool {
		h.records = nil
		return !h.hung.Load() && !time.Now().Before(h.next)
	})
	_, next = n.due(time.Now())
	return next
}

// book is what the runtimes have answered in one round.
type book struct {
	containers, pods map[string]*record
	errs             []error
}

func (b *book) failed(err error) {
	if err != nil && !slices.ContainsFunc(b.errs, func(e error) bool { return e.Error() == err.Error() }) {
		b.errs = append(b.errs, err)
	}
}

// sought reports whether there is a runtime to ask about it. Of what is in a user's slice only that
// user's podman is asked.
func (o Origin) sought() bool {
	return o.ID != "" && !o.Helper && (!o.inUserSlice() || o.Runtime == Podman || o.Runtime == Container)
}

// ofCRI reports whether the runtimes' CRI may know a container.
func (o Origin) ofCRI() bool {
	return o.sought() && !o.inUserSlice() && (o.Runtime == Kubernetes || o.Runtime == Containerd || o.Runtime == CRIO || o.Runtime == Container)
}

// ask asks the runtimes if one of the cgroups is theirs.
func (n *Names) ask(ctx context.Context, keys []key) *book {
	b := &book{}
	ctx, cancel := context.WithTimeout(ctx, n.sources.Timeout)
	defer cancel()
	if !slices.ContainsFunc(keys, func(k key) bool { return Parse(k.Path).ofCRI() }) {
		return b
	}
	var err error
	b.containers, err = n.cri.records(ctx)
	b.failed(err)
	b.pods, err = n.sources.Kubelet.pods(ctx)
	b.failed(err)
	return b
}

// record finds what a runtime says of a container; nil if none knows it. The error is about state
// files.
func (n *Names) record(ctx context.Context, e *entry, b *book) (*record, error) {
	o := e.origin
	if !o.sought() {
		return nil, nil
	}
	if r := b.containers[o.ID]; o.ofCRI() && r != nil {
		full, pod := *r, cmp.Or(b.pods[o.Pod], e.record) // as it was known before, if the kubelet does not answer
		if pod != nil {
			full.owner, full.priorityClass, full.priority = pod.owner, pod.priorityClass, pod.priority
		}
		return &full, nil
	}
	if o.inUserSlice() { // what the system's runtimes know is elsewhere
		return n.userRecord(ctx, e, b)
	}
	var errs []error
	docker := o.Runtime == Docker || o.Runtime == Container || o.Runtime == Kubernetes
	if n.sources.Docker != "" && docker {
		r, err := dockerRecord(n.sources.Docker, o.ID)
		if errs = append(errs, err); r != nil {
			return r.inPod(), nil
		}
	}
	if o.Runtime != Podman && o.Runtime != Container {
		return nil, errors.Join(errs...)
	}
	for _, dir := range n.sources.Podman {
		all, err := podmanRecords(dir)
		if errs = append(errs, err); all[o.ID] != nil {
			return all[o.ID], nil
		}
	}
	return nil, errors.Join(errs...)
}

// userRecord is what the podman of the user of a cgroup says of it, whose files are in the user's home: on any file
// system, and as long as the user likes. They are read once in a round, and not without a rest: the user may have a
// thousand cgroups, and others' names wait meanwhile.
func (n *Names) userRecord(ctx context.Context, e *entry, b *book) (*record, error) {
	type answer struct {
		all map[string]*record
		err error
	}
	user := e.origin.UID
	h := n.homes[user]
	if h == nil {
		h = &home{}
		n.homes[user] = h
	}
	if begun := time.Now(); h.round != b && !begun.Before(h.next) {
		a, _ := within(ctx, n, &h.hung, func() answer {
			all, err := n.atHome(user)
			return answer{all, err}
		})
		if h.hung.Load() {
			a.err = fmt.Errorf("read the containers of user %d: the files do not answer", user)
		}
		h.round, h.records, h.err = b, a.all, a.err
		h.next = time.Now().Add(time.Duration(n.rest) * time.Since(begun))
	}
	if r := h.records[e.origin.ID]; r != nil {
		return r, nil
	}
	return nil, h.err
}

// inPod makes the record of a Docker container that the kubelet started (by cri-dockerd) that of
// the pod's container.
func (r *record) inPod() *record {
	if r.labels[labelPod] == "" {
		return r
	}
	r.pod, r.namespace, r.container = r.labels[labelPod], r.labels[labelNamespace], r.labels[labelContainer]
	r.sandbox = r.labels["io.kubernetes.docker.type"] == "podsandbox"
	return r
}

// look finds out what is to be known of one cgroup.
func (n *Names) look(ctx context.Context, k key, b *book) {
	n.mu.Lock()
	e := n.entries[k]
	n.mu.Unlock()
	if e == nil {
		return
	}
	// Only this goroutine writes to an entry, except for its facts under the lock.
	r, unread := n.record(ctx, e, b)
	missing := r == nil && e.origin.sought()
	if r == nil {
		r = e.record // as it was known before: a runtime that does not answer changes no name
		missing = missing && r == nil
	}
	e.record = r
	if missing && len(b.errs) == 0 && !slices.ContainsFunc(n.sources.CRI, exists) && e.origin.Runtime == Kubernetes {
		b.failed(fmt.Errorf("the names of pods are not known: no container runtime has a socket at one of %s", strings.Join(n.sources.CRI, ", ")))
	}
	if (r == nil || !r.sandbox) && !e.origin.Helper && (e.misses == 0 || !missing) {
		n.lookAtProcesses(ctx, k, e)
	}
	now := time.Now()
	if missing {
		e.next = now.Add(min(lastMiss, firstMiss<<min(e.misses, 16)))
		e.misses++
	} else {
		e.next = now.Add(lookAfter[min(e.looks, len(lookAfter)-1)])
		if e.looks < 3 || b.pods != nil || n.sources.Kubelet.URL == "" || !e.origin.ofCRI() { // else each 5 minutes, until the kubelet answers
			e.looks++
		}
	}
	f := facts(e.origin, r, e.process)
	n.mu.Lock()
	defer n.mu.Unlock()
	if delete(n.unread, k); unread != nil && n.entries[k] != nil {
		n.unread[k] = unread
	}
	if settled := !missing || e.settled; settled != e.settled || !reflect.DeepEqual(f, e.facts) {
		e.facts, e.settled, n.changed = f, settled, true
	}
}

// lookAtProcesses reads /proc.
func (n *Names) lookAtProcesses(ctx context.Context, k key, e *entry) {
	p, _ := within(ctx, n, &e.hung, func() (p Process) {
		if pids, err := n.members(k.Place, k.inode); err == nil {
			p = n.processes(pids)
		}
		return p
	})
	if p.Read { // else it has none now
		e.process = p
	}
}

// within returns the result of a look, which has a goroutine of its own, if there is one in the time
// that a question may take: memory of a process and files of a user may keep a reader waiting for as
// long as they like. While it waits, hung is set, and there is no other look of that kind.
func within[T any](ctx context.Context, n *Names, hung *atomic.Bool, look func() T) (v T, returned bool) {
	if hung.Load() || n.hung.Load() >= mostHung {
		return v, false
	}
	done := make(chan T, 1)
	go func() { done <- look() }()
	timer := time.NewTimer(n.sources.Timeout)
	defer timer.Stop()
	select {
	case v = <-done:
		return v, true
	case <-ctx.Done():
	case <-timer.C:
		hung.Store(true)
		n.hung.Add(1)
		go func() {
			<-done
			hung.Store(false)
			n.hung.Add(-1)
		}()
	}
	return v, false
}
