package store

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/store/segment"
)

// series is what a segment.Series says, as places among texts.
type series [len(segment.Series{})]uint32

// known is series by number, of which 0 is none, and the texts that they are made of. Both only
// grow, so who has taken it may read it without the store's lock. There are hundreds
// of thousands of series: they are numbers and not strings for the garbage
// collector's sake, which looks at each string.
type known struct {
	series []series
	texts  []string
}

// of returns the series of a number.
func (k *known) of(id uint32) (s segment.Series) {
	for i, place := range k.series[id] {
		s[i] = k.texts[place]
	}
	return s
}

// is reports whether a sample belongs to the series of a number. What differs
// most often is compared first.
func (k *known) is(id uint32, m *sample.Sample) bool {
	s, t := &k.series[id], k.texts
	return t[s[segment.Task]] == string(m.Task) && t[s[segment.Job]] == string(m.Job) && t[s[segment.Machine]] == m.Machine &&
		t[s[segment.Platform]] == string(m.Platform) && t[s[segment.Signal]] == string(m.Signal) && t[s[segment.Variant]] == m.Variant &&
		t[s[segment.Class]] == m.Class.String()
}

// compare orders series by the order of files.
func (k *known) compare(a, b uint32) int {
	for i, place := range k.series[a] {
		if other := k.series[b][i]; place != other {
			if d := strings.Compare(k.texts[place], k.texts[other]); d != 0 {
				return d
			}
		}
	}
	return 0
}

// index gives each series a number, so that a sample in memory is a few numbers
// and sorting is counting. It remembers which series came after which: an
// agent sends its tasks in the same order every tick, so that nearly always one
// comparison tells whose a sample is.
type index struct {
	known
	seed   maphash.Seed
	ids    map[uint64]uint32 // by hash, the newest of that hash
	older  []uint32          // by number, the one before it of the same hash
	after  []uint32          // by number, the series that came next
	places map[string]uint32 // of texts, each once; not tasks, of which there are as many as series
	text   strings.Builder   // room for texts
	last   map[string]uint32 // of each machine, the series that came last

	// sorted has the numbers in the order of files. It belongs to who commits, and
	// may lack new ones.
	sorted []uint32
	born   sample.Millis
}

// An index is made anew when it is an hour old, or has become very large: tasks
// come and go.
const (
	indexAge = hourMS
	indexMax = 8 << 20
)

// textRoom is how much memory texts share.
const textRoom = 64 << 10

func newIndex(now sample.Millis) *index {
	return &index{seed: maphash.MakeSeed(), ids: map[uint64]uint32{}, places: map[string]uint32{}, last: map[string]uint32{},
		older: make([]uint32, 1), known: known{series: make([]series, 1), texts: make([]string, 1)}, after: make([]uint32, 1), born: now}
}

func (x *index) old(now sample.Millis) bool { return now-x.born > indexAge || len(x.series) > indexMax }

// number returns the number of a sample's series, given that of the sample before.
func (x *index) number(before uint32, s *sample.Sample) uint32 {
	guess := x.after[before]
	if guess != 0 && x.is(guess, s) {
		return guess
	}
	var want segment.Series
	want.Of(s)
	hash := maphash.Comparable(x.seed, want)
	id := x.ids[hash]
	for id != 0 && !x.is(id, s) {
		id = x.older[id]
	}
	if id == 0 {
		id = x.add(hash, &want)
	}
	x.after[before] = id
	return id
}

// add gives a new series its number. It holds on to no memory of want's: that may
// be a whole message's.
func (x *index) add(hash uint64, want *segment.Series) uint32 {
	var s series
	for i := range want {
		if i == segment.Task {
			s[i] = x.keep(want[i])
		} else {
			s[i] = x.place(want[i])
		}
	}
	id := uint32(len(x.series))
	x.older = append(x.older, x.ids[hash])
	x.ids[hash] = id
	x.series, x.after = append(x.series, s), append(x.after, 0)
	return id
}

// place returns the place of a text that is there once.
func (x *index) place(s string) uint32 {
	place, ok := x.places[s]
	if !ok {
		place = x.keep(s)
		x.places[x.texts[place]] = place
	}
	return place
}

// keep copies a text, and returns its place.
func (x *index) keep(s string) uint32 {
	if x.text.Cap()-x.text.Len() < len(s) {
		x.text = strings.Builder{}
		x.text.Grow(max(textRoom, len(s)))
	}
	x.text.WriteString(s)
	all := x.text.String()
	x.texts = append(x.texts, all[len(all)-len(s):])
	return uint32(len(x.texts) - 1)
}

// order returns the numbers of series in the order of files.
func (x *index) order(k *known) []uint32 {
	had := len(x.sorted)
	if had == len(k.series)-1 {
		return x.sorted
	}
	fresh := make([]uint32, 0, len(k.series)-1-had)
	for id := had + 1; id < len(k.series); id++ {
		fresh = append(fresh, uint32(id))
	}
	slices.SortFunc(fresh, k.compare)
	merged := make([]uint32, 0, len(k.series)-1)
	for _, id := range x.sorted {
		for len(fresh) > 0 && k.compare(fresh[0], id) < 0 {
			merged, fresh = append(merged, fresh[0]), fresh[1:]
		}
		merged = append(merged, id)
	}
	x.sorted = append(merged, fresh...)
	return x.sorted
}
