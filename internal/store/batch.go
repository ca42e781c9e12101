package store

import (
	"fmt"

	"github.com/quell-dev/quell/internal/sample"
)

// Source is who numbers batches: an agent from its start on one boot of its
// machine, on one stream.
type Source struct {
	Stream  string `json:"stream"` // "samples", "records"
	Machine string `json:"machine"`
	Boot    string `json:"boot"`
}

func (s Source) String() string {
	return fmt.Sprintf("%s of %s (boot %s)", s.Stream, s.Machine, s.Boot)
}

// Batch is what came in one message.
type Batch struct {
	Source Source
	// N counts the source's batches from 1. A batch whose number was taken
	// before is dropped, whatever is in it.
	N uint64
	// Seq is the message's place in its stream, 0 if it came by none.
	Seq       uint64
	Samples   []sample.Sample
	Incidents []Incident
	Actions   []Action
	Audit     []Audit
	Specs     []Spec
}

// Mark says which batches of a source were taken: High is the highest, and bit
// i of Seen says that High−1−i was. Senders number in order and deliver in
// order, but a message that was delivered again may come after its successor;
// what is further behind than the bits reach counts as taken (the anti-replay
// window of RFC 4303, section 3.4.3).
type Mark struct {
	High uint64        `json:"high"`
	Seen uint64        `json:"seen,omitempty"`
	At   sample.Millis `json:"at"` // when the newest was taken
}

// window is how many batches behind High are told apart.
const window = 64

// taken reports whether a batch is in the store already, or too old to know.
func (m Mark) taken(n uint64) bool {
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

// take notes a batch for which taken is false.
func (m Mark) take(n uint64, at sample.Millis) Mark {
	m.At = max(m.At, at)
	if n < m.High {
		m.Seen |= 1 << (m.High - n - 1)
		return m
	}
	by := n - m.High
	switch {
	case m.High == 0 || by > window: // nothing before, or out of sight
		m.Seen = 0
	default:
		m.Seen = m.Seen<<by | 1<<(by-1)
	}
	m.High = n
	return m
}
