package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
)

// MaxCgroups is the number of cgroups that are counted at once in a window. Lost counts
// what further cgroups do.
const MaxCgroups = 16 << 10

// Of that, followed tasks have room of their own; the rest is for all other cgroups, which any
// task can make. Of MaxPairs half is for the pairs of so many tasks.
const (
	roomForTasks   = MaxCgroups / 8 * 7
	tasksWithPairs = 90
)

// Record is what a signal's programs keep for each cgroup: R, as bpf2go makes it of the
// C struct, with the signal's methods.
type Record[R any] interface {
	*R
	// Add adds what a further cgroup did.
	Add(*R)
	// Places are the shared resources that the cgroup used, disks or interfaces, by
	// 64-bit numbers of the signal's own; the first 0 ends them. more reports that it
	// used further ones too, or that places are not what the cgroup shares.
	Places() (all []uint64, more bool)
	// Reading returns the reading of a window, with its coverage. Windows sets Reach,
	// Served and, with that, WaitOther.
	Reading() counter.Reading
	// Waited is the sum of the times from the cgroup's requests until they were served.
	Waited() time.Duration
}

// CgroupCounts is what counts, by cgroups' ids as sample.CgroupID makes them; *Programs is
// one.
type CgroupCounts[R any] interface {
	// Open discards what was counted and begins to count; Detach ends that. There is room
	// for these cgroups, and for these pairs of one that waits and one that is served,
	// whatever others do. The value is the task's cgroup, which may be counted in place of
	// the key, and is in place of those that are made below while it counts.
	Open(cgroups map[uint64]uint64, pairs [][2]uint64) error
	Detach() error
	Each(yield func(cgroup uint64, r *R)) error
	// Of returns what one cgroup did so far, R's zero value if it did nothing.
	Of(cgroup uint64) R
	// Served yields how long cgroups were served while others, or they themselves,
	// waited; id 0 belongs to no task. ok is false if that is not reported.
	Served(yield func(waits, by uint64, d time.Duration)) (ok bool, err error)
	// Lost is how much could not be counted since the programs were loaded, Refused how
	// often there was no room to note a served cgroup.
	Lost() uint64
	PairsDropped() uint64
	Close() error
}

// Windows implements counter.Source over such programs, except for Info.
// It knows the owner of each cgroup, what a task's cgroups did together in a window,
// and which places the task has used since it is followed.
type Windows[R any, P Record[R]] struct {
	kernel     CgroupCounts[R]
	tasks      map[sample.TaskKey]*monitored[R]
	number     map[uint64]int // small numbers for the places that tasks have used
	places     []uint64       // by those numbers; 0: free
	free       []int          // the one free for the longest time first
	windowOpen bool
	lost       uint64
	others     counter.Reading
	beyond     places // that others used

	crowded      []sample.TaskKey
	turn         int                       // whose pairs come first
	dropped      uint64                    // pairs, until the last window
	contended    bool                      // pairs were dropped: those of tasks need room of their own
	gone         map[uint64]sample.TaskKey // cgroups of tasks that were removed in this window
	serves       bool                      // served tasks are reported
	unattributed time.Duration             // waits for which the served task is not known
}

// monitored is a followed task.
type monitored[R any] struct {
	target counter.Target
	ids    []uint64 // the cgroups that are the task's in this window; nil: not counted
	sum    R
	used   places                           // since it is followed
	served map[sample.TaskKey]time.Duration // in this window, while it waited; its own key included
}

// places are the places that a task or the others used, by their small numbers.
type places struct {
	known sample.Set
	more  bool // further ones too, which are not reported
}

// Open returns windows over a kernel, which they own. The kernel is closed if it does
// not attach: a kernel or a sandbox may allow loading and refuse the rest.
func Open[R any, P Record[R]](k CgroupCounts[R]) (*Windows[R, P], error) {
	if err := errors.Join(k.Open(nil, nil), k.Detach()); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	serves, err := k.Served(func(uint64, uint64, time.Duration) {})
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return &Windows[R, P]{kernel: k, tasks: map[sample.TaskKey]*monitored[R]{}, number: map[uint64]int{},
		gone: map[uint64]sample.TaskKey{}, serves: serves}, nil
}

// InfoOf returns the counter.Info of a signal over these windows.
func (w *Windows[R, P]) InfoOf(signal sample.SignalName, variant string) counter.Info {
	return counter.Info{Signal: signal, Variant: variant, Accounts: w.serves, CountsLosses: true}
}

// Totals implements counter.Source.
func (w *Windows[R, P]) Totals() counter.Totals {
	return counter.Totals{Others: w.others, Lost: w.lost, PairsDropped: w.kernel.PairsDropped(), Unattributed: w.unattributed, Crowded: w.crowded}
}

// SetCPUs implements counter.Source: the programs run on all CPUs.
func (w *Windows[R, P]) SetCPUs(sample.Set) {}

// Common lists the places that two tasks have both used since they are followed, as far
// as they are reported.
func (w *Windows[R, P]) Common(a, b sample.TaskKey) []uint64 {
	one, other := w.tasks[a], w.tasks[b]
	if one == nil || other == nil {
		return nil
	}
	var both []uint64
	for n, place := range w.places {
		if one.used.known.Has(n) && other.used.known.Has(n) {
			both = append(both, place)
		}
	}
	return both
}

// Add implements counter.Source.
func (w *Windows[R, P]) Add(t counter.Target) error {
	if w.tasks[t.Key] != nil {
		return fmt.Errorf("add %s: already monitored", t.Key)
	}
	w.tasks[t.Key] = &monitored[R]{target: t}
	return nil
}

// Start implements counter.Source.
func (w *Windows[R, P]) Start() error {
	if w.windowOpen {
		return counter.ErrOpen
	}
	clear(w.gone)
	claims := make([]counter.Claim[*monitored[R]], 0, len(w.tasks))
	for _, t := range w.tasks {
		var none R
		t.ids, t.sum = nil, none
		clear(t.served)
		c, ok := counter.ClaimOf(&t.target, t)
		if !ok {
			continue // what is left out would count as a neighbour
		}
		claims = append(claims, c)
	}
	w.crowded = w.crowded[:0]
	kept, crowded := counter.AssignUpTo(claims, roomForTasks)
	owned := kept
	if len(crowded) > 0 {
		owned = counter.Assign(claims) // what has no room of its own may find some
	}
	for id, t := range owned {
		t.ids = append(t.ids, id)
	}
	for t := range crowded {
		w.crowded = append(w.crowded, t.target.Key)
	}
	if n := w.kernel.PairsDropped(); n > w.dropped {
		w.dropped, w.contended = n, true
	}
	if err := w.kernel.Open(tasksOf(kept), w.pairsOfTasks(claims)); err != nil {
		return fmt.Errorf("start window: %w", err)
	}
	w.windowOpen = true
	return nil
}

// tasksOf returns the task's own cgroup of each, or itself if that has no room.
func tasksOf[R any](kept map[uint64]*monitored[R]) map[uint64]uint64 {
	of := make(map[uint64]uint64, len(kept))
	for id, t := range kept {
		of[id] = id
		if own := t.target.Key.CgroupID(); kept[own] == t {
			of[id] = own
		}
	}
	return of
}

// pairsOfTasks are the pairs of tasks' own cgroups, if others took the room for them before:
// of all tasks or, in turns, of as many as half of the room is for.
func (w *Windows[R, P]) pairsOfTasks(claims []counter.Claim[*monitored[R]]) (pairs [][2]uint64) {
	if !w.contended || !w.serves {
		return nil
	}
	slices.SortFunc(claims, func(a, b counter.Claim[*monitored[R]]) int { return cmp.Compare(a.ID, b.ID) })
	n := min(len(claims), tasksWithPairs)
	for i := range n {
		for j := range n {
			pairs = append(pairs, [2]uint64{claims[(w.turn+i)%len(claims)].ID, claims[(w.turn+j)%len(claims)].ID})
		}
	}
	w.turn += n
	return pairs
}

// Stop implements counter.Source.
func (w *Windows[R, P]) Stop(_ counter.WindowEnd, yield func(sample.TaskKey, counter.Reading)) error {
	if !w.windowOpen {
		return counter.ErrNotOpen
	}
	w.windowOpen = false
	if err := w.kernel.Detach(); err != nil {
		return fmt.Errorf("stop window: %w", err)
	}
	owners := w.owners()
	var others R
	err := w.kernel.Each(func(id uint64, r *R) {
		if t := owners[id]; t != nil {
			w.add(&t.sum, &t.used, r)
		} else {
			w.add(&others, &w.beyond, r)
		}
	})
	w.lost = w.kernel.Lost()
	if err := errors.Join(err, w.attribute(owners, nil)); err != nil {
		return fmt.Errorf("stop window: %w", err)
	}
	w.forget()
	w.others = reading[R, P](&others, w.beyond)
	for key, t := range w.tasks {
		if t.ids != nil {
			yield(key, w.reading(t))
		}
	}
	return nil
}

// owners returns the tasks by the cgroups that are theirs in this window.
func (w *Windows[R, P]) owners() map[uint64]*monitored[R] {
	owners := map[uint64]*monitored[R]{}
	for _, t := range w.tasks {
		for _, id := range t.ids {
			owners[id] = t
		}
	}
	return owners
}

// attribute records which tasks were served while tasks, or one task only, waited.
func (w *Windows[R, P]) attribute(owners map[uint64]*monitored[R], only *monitored[R]) error {
	_, err := w.kernel.Served(func(waits, by uint64, d time.Duration) {
		t := owners[waits]
		if d == 0 { // only room was made for it
			return
		}
		if t == nil || only != nil && t != only {
			return
		}
		if t.served == nil {
			t.served = map[sample.TaskKey]time.Duration{}
		}
		if o := owners[by]; o != nil {
			t.served[o.target.Key] += d
		} else {
			t.served[w.gone[by]] += d // or outside any followed task
		}
	})
	return err
}

// Remove implements counter.Source.
func (w *Windows[R, P]) Remove(key sample.TaskKey, _ time.Duration) (counter.Reading, bool) {
	t := w.tasks[key]
	if t == nil {
		return counter.Reading{}, false
	}
	if !w.windowOpen || t.ids == nil {
		delete(w.tasks, key)
		return counter.Reading{}, false
	}
	for _, id := range t.ids {
		r := w.kernel.Of(id)
		w.add(&t.sum, &t.used, &r)
	}
	var err error
	if w.serves { // else the owners of all cgroups would be listed for each of many tasks that end at once
		err = w.attribute(w.owners(), t)
	}
	delete(w.tasks, key)
	for _, id := range t.ids {
		w.gone[id] = key
	}
	r := w.reading(t)
	if err != nil {
		r.Served = nil
	}
	return r, true
}

// Close implements counter.Source.
func (w *Windows[R, P]) Close() error { return w.kernel.Close() }

// add adds what one cgroup did.
func (w *Windows[R, P]) add(sum *R, used *places, r *R) {
	P(sum).Add(r)
	all, more := P(r).Places()
	used.more = used.more || more
	for _, place := range all {
		if place == 0 {
			break
		}
		n, known := w.number[place]
		if !known {
			n = w.allocNumber()
			w.number[place], w.places[n] = n, place
		}
		used.known = used.known.With(n)
	}
}

// allocNumber returns a number for a place.
func (w *Windows[R, P]) allocNumber() int {
	if len(w.free) == 0 {
		w.places = append(w.places, 0)
		return len(w.places) - 1
	}
	n := w.free[0]
	w.free = w.free[1:]
	return n
}

// forget releases the numbers of places that no followed task has used: pods'
// interfaces come and go. What others do there affects no task.
func (w *Windows[R, P]) forget() {
	var used, beyond sample.Set
	for n, place := range w.places {
		for _, t := range w.tasks {
			if t.used.known.Has(n) {
				used = used.With(n)
				break
			}
		}
		switch {
		case place == 0:
		case !used.Has(n):
			delete(w.number, place)
			w.places[n] = 0
			w.free = append(w.free, n)
		case w.beyond.known.Has(n):
			beyond = beyond.With(n)
		}
	}
	w.beyond.known = beyond
}

// reading returns a task's reading, with the tasks that were served while it waited.
func (w *Windows[R, P]) reading(t *monitored[R]) counter.Reading {
	r := reading[R, P](&t.sum, t.used)
	if !w.serves {
		return r
	}
	waited := max(0, P(&t.sum).Waited()-t.served[t.target.Key])
	r.Extras.Set(sample.WaitOther, waited.Seconds())
	r.Served = make([]counter.Served, 0, len(t.served))
	for key, d := range t.served {
		if key != t.target.Key {
			r.Served = append(r.Served, counter.Served{By: key, Time: d})
		}
	}
	slices.SortFunc(r.Served, func(a, b counter.Served) int {
		return cmp.Or(cmp.Compare(b.Time, a.Time), cmp.Compare(a.By.Inode, b.By.Inode), cmp.Compare(a.By.Hierarchy, b.By.Hierarchy))
	})
	// Programs that still ran may have added to the pairs and not to the wait.
	left := waited
	for i := range r.Served {
		r.Served[i].Time = min(r.Served[i].Time, left)
		left -= r.Served[i].Time
	}
	w.unattributed += left
	return r
}

// reading returns the reading of a window.
func reading[R any, P Record[R]](sum *R, used places) counter.Reading {
	r := P(sum).Reading()
	r.Reach = used.known
	switch {
	case used.more:
		r.Reach = nil
	case used.known == nil:
		r.Reach = sample.Set{} // it used no place and can affect no task
	}
	return r
}
