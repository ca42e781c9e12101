package detect

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// anomalies are those that wait for an analysis: first in, first out over intervals. At most one
// is analysed a second, so a tenant with a thousand tasks in trouble would keep others waiting for a
// quarter of an hour. So each job has a turn of turnOfJob analyses, and all tasks for which no task may
// be capped have turns of turnOfUnhelped together: what is beyond that waits for later turns. A queue as
// short as that is in the order of arrival.
type anomalies struct {
	all  []*anomaly // in the order of arrival
	turn int        // of the newest analysis
	// of are the anomalies by what they are; jobs and unhelped count those that wait.
	of       map[anomalyKey]*anomaly
	jobs     map[sample.JobName]int
	unhelped int
	added    int // the last ones, of the interval that is observed, have no turn yet
}

// Anomalies of a turn: how the numbers were chosen. A job rarely has more tasks on a machine, and 16
// analyses take as many seconds; tasks that are not to be helped are many more.
const (
	turnOfJob      = 16
	turnOfUnhelped = 64
)

type anomalyKey struct {
	signal *series
	victim sample.TaskKey
	kind   Kind
}

type anomaly struct {
	signal *series
	victim sample.TaskKey
	kind   Kind
	at     sample.Millis
	review bool // not an anomaly but a review after a trial's end
	job    sample.JobName
	helped bool // other tasks may be capped for the victim
	turn   int
}

func (a *anomaly) key() anomalyKey { return anomalyKey{a.signal, a.victim, a.kind} }

func newAnomalies() anomalies {
	return anomalies{of: map[anomalyKey]*anomaly{}, jobs: map[sample.JobName]int{}}
}

// add adds an anomaly of a task. One that waits already keeps its place.
func (q *anomalies) add(a anomaly, victim *sample.Task) {
	if old := q.of[a.key()]; old != nil {
		old.at, old.review = a.at, old.review && a.review
		return
	}
	a.job, a.helped = cmp.Or(victim.Job, sample.JobName(victim.Name)), victim.MayBeHelped()
	q.of[a.key()] = &a
	q.all = append(q.all, &a)
	q.added++
}

// settle gives the anomalies of an interval their turns. Within one interval the result must not depend
// on the order of the readings.
func (q *anomalies) settle() {
	added := q.all[len(q.all)-q.added:]
	q.added = 0
	slices.SortFunc(added, func(a, b *anomaly) int {
		return cmp.Or(a.victim.Compare(b.victim), cmp.Compare(a.kind, b.kind))
	})
	for _, a := range added {
		a.turn = q.turn + q.jobs[a.job]/turnOfJob
		if q.jobs[a.job]++; !a.helped {
			a.turn = max(a.turn, q.turn+q.unhelped/turnOfUnhelped)
			q.unhelped++
		}
	}
}

// next takes the anomaly of the earliest turn, of these the one that came first. There must be one.
func (q *anomalies) next() anomaly {
	first := 0
	for i, a := range q.all {
		if a.turn < q.all[first].turn {
			first = i
		}
	}
	a := q.all[first]
	q.turn = a.turn
	q.all = slices.Delete(q.all, first, first+1)
	q.left(a)
	return *a
}

// ended removes the anomalies of a task.
func (q *anomalies) ended(k sample.TaskKey) {
	q.all = slices.DeleteFunc(q.all, func(a *anomaly) bool {
		if a.victim != k {
			return false
		}
		q.left(a)
		return true
	})
}

// left counts an anomaly that no longer waits.
func (q *anomalies) left(a *anomaly) {
	delete(q.of, a.key())
	if q.jobs[a.job]--; q.jobs[a.job] == 0 {
		delete(q.jobs, a.job)
	}
	if !a.helped {
		q.unhelped--
	}
}
