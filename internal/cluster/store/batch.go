package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Source is a numbering of batches: that of an agent since its start, on one boot of its machine, on one stream.
type Source struct {
	Stream  string `json:"stream"` // "samples", "records"
	Machine string `json:"machine"`
	Boot    string `json:"boot"`
}

func (s Source) String() string {
	return fmt.Sprintf("%s of %s (boot %s)", s.Stream, s.Machine, s.Boot)
}

// Batch is the contents of one message.
type Batch struct {
	Source Source
	// N counts the source's batches from 1. A batch whose number was accepted before is dropped, whatever its contents.
	N uint64
	// Seq is the message's sequence number in its stream, 0 if it came by no stream
	Seq uint64
	// Bytes is the size of the message, about what the contents take in memory; 0: not known.
	Bytes int
	// Shape is equal for two batches of a machine only if their samples have, one by one, the
	// same names and classes; 0: not known.
	Shape       uint64
	Samples     []sample.Sample
	Incidents   []Incident
	Rounds      []Round // of the incidents (AddIncident)
	Suspects    []Suspect
	Actions     []Action
	Audit       []Audit
	Specs       []Spec
	Revocations []Revocation
}

// Mark records which batches of a source were accepted: High is the highest, and bit i of Seen stands for High−1−i.
// Senders number and deliver in order, but a redelivered message may come after its successor. Batches further behind
// than the bits reach count as accepted (the anti-replay window of RFC 4303, section 3.4.3).
type Mark struct {
	High uint64        `json:"high"`
	Seen uint64        `json:"seen,omitempty"`
	At   sample.Millis `json:"at"` // when the newest was accepted
}

// maxJump is how far a number may be ahead of the last one: no agent loses so many batches in one run. A number further
// ahead is not a batch of that run, and would make all that follow look old.
const maxJump = 1 << 24

// jumps reports whether a number is too far ahead of those before.
func (m Mark) jumps(n uint64) bool { return m.High > 0 && n > m.High && n-m.High > maxJump }

// window is how many batches behind High are distinguished.
const window = 64

// accepted reports whether a batch is already in the store, or too old to tell.
func (m Mark) accepted(n uint64) bool {
	switch {
	case n > m.High:
		return false
	case n == m.High:
		return true
	case m.High-n > window:
		return true
	}
	return m.Seen&(1<<(m.High-n-1)) != 0
}

// accept records a batch for which taken is false.
func (m Mark) accept(n uint64, at sample.Millis) Mark {
	if m.At = max(m.At, at); m.At > at.Add(ahead) { // by a clock that was ahead and was set back since
		m.At = at
	}
	if n < m.High {
		m.Seen |= 1 << (m.High - n - 1)
		return m
	}
	by := n - m.High
	switch {
	case m.High == 0 || by > window: // none before, or outside the window
		m.Seen = 0
	default:
		m.Seen = m.Seen<<by | 1<<(by-1)
	}
	m.High = n
	return m
}

// forgetAfter is how long a source is remembered, ms: longer than any agent spools.
const forgetAfter = 30 * 24 * 60 * 60 * 1000

// maxRuns is how many runs of a machine's agent are remembered, the newest: an agent may invent any number of them.
const maxRuns = 256

// begins reports whether a machine may begin another run: it has at most maxRuns between two checkpoints, in which
// all of them are remembered. The caller holds mu.
func (s *Store) begins(run Source) bool {
	if run.Boot == "" { // an import
		return true
	}
	run.Boot = ""
	s.begun[run]++
	return s.begun[run] <= maxRuns
}

func (s *Store) forgetSources(now sample.Millis) {
	clear(s.begun)
	keep := s.opt.Keep[Samples]
	maps.DeleteFunc(s.state.Marks, func(source Source, m Mark) bool {
		if source.Boot == "" { // no run of an agent, but an import: it may be repeated as long as its samples are there
			return keep > 0 && m.At < min(now-forgetAfter, now.Add(-keep))
		}
		return m.At < now-forgetAfter
	})
	runs := map[Source][]Source{} // by stream and machine
	for source := range s.state.Marks {
		of := Source{Stream: source.Stream, Machine: source.Machine}
		runs[of] = append(runs[of], source)
	}
	for _, all := range runs {
		if len(all) <= maxRuns {
			continue
		}
		slices.SortFunc(all, func(a, b Source) int {
			return cmp.Or(cmp.Compare(s.state.Marks[b].At, s.state.Marks[a].At), cmp.Compare(a.Boot, b.Boot))
		})
		for _, source := range all[maxRuns:] {
			delete(s.state.Marks, source)
		}
	}
}
