package store

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/cluster/store/segment"
	"github.com/quell-dev/quell/internal/core/sample"
)

// series is a segment.Series as indices into texts.
type series [len(segment.Series{})]uint32

// seriesTable is the series by number, 0 being none, and their texts. Both only grow, so a copy may be read without the
// store's lock. There are hundreds of thousands of series. They are stored as numbers and not as strings because the
// garbage collector visits each string.
type seriesTable struct {
	series []series
	texts  []string
}

// of returns the series with a number.
func (k *seriesTable) of(id uint32) (s segment.Series) {
	for i, place := range k.series[id] {
		s[i] = k.texts[place]
	}
	return s
}

// is reports whether a sample belongs to the series with a number. The fields that differ
// most often are compared first.
func (k *seriesTable) is(id uint32, m *sample.Sample) bool {
	s, t := &k.series[id], k.texts
	return t[s[segment.Task]] == string(m.Task) && t[s[segment.Job]] == string(m.Job) && t[s[segment.Machine]] == m.Machine &&
		t[s[segment.Platform]] == string(m.Platform) && t[s[segment.Signal]] == string(m.Signal) && t[s[segment.Variant]] == m.Variant &&
		t[s[segment.Class]] == m.Class.String()
}

// compare orders series as files do.
func (k *seriesTable) compare(a, b uint32) int {
	for i, place := range k.series[a] {
		if other := k.series[b][i]; place != other {
			if d := strings.Compare(k.texts[place], k.texts[other]); d != 0 {
				return d
			}
		}
	}
	return 0
}

// lastBatch is the series of a machine's last batch: mostly those of its next one too.
type lastBatch struct {
	shape  uint64 // of the batch; 0: series do not count
	series []uint32
	last   uint32 // the last series

	parts  [4]int64 // hours of the machine's samples and days of its records, the newest first
	passed int      // how many there were
}

// maxParts is how many hours and days the samples and records of a machine may be of in an hour. Each is a file.
// An agent sends what it has spooled in 30 days in order: that are 720 hours.
const maxParts = 2000

// takes reports whether a machine may send something of an hour or a day. Without an agent t is nil.
func (t *lastBatch) takes(part int64) bool {
	if t == nil || slices.Contains(t.parts[:], part) {
		return true
	}
	if t.passed == maxParts {
		return false
	}
	t.passed++
	copy(t.parts[1:], t.parts[:])
	t.parts[0] = part
	return true
}

func (x *index) machine(name string) *lastBatch {
	t := x.batches[name]
	if t == nil {
		t = &lastBatch{}
		x.batches[x.texts[x.place(name)]] = t
	}
	return t
}

// before returns the machine's last batch, and whether its series are those of b. If not, it has room for them.
func (x *index) before(b *Batch) (t *lastBatch, known bool) {
	if len(b.Samples) == 0 {
		return nil, false
	}
	t = x.machine(b.Source.Machine)
	if b.Shape != 0 && t.shape == b.Shape && len(t.series) == len(b.Samples) {
		return t, true
	}
	t.shape = b.Shape
	t.series = slices.Grow(t.series[:0], len(b.Samples))[:len(b.Samples)]
	return t, false
}

// index gives each series a number, so that a sample in memory is a few numbers and sorting is counting. It records
// which series followed which: an agent sends its tasks in the same order every tick, so one comparison nearly always
// identifies the series of a sample.
type index struct {
	seriesTable
	seed    maphash.Seed
	ids     map[uint64]uint32     // by hash, the newest with that hash
	older   []uint32              // by number, the previous one with the same hash
	after   []uint32              // by number, the series that followed it
	places  map[string]uint32     // of texts, each once; not of tasks, which are as many as the series
	text    strings.Builder       // memory for texts
	size    int                   // bytes of texts
	batches map[string]*lastBatch // by machine

	// sorted has the numbers in the order of files. It belongs to the committing goroutine and may lack new ones.
	sorted []uint32
	born   sample.Millis
}

// An index is replaced when it is an hour old or very large, because tasks come and go, and because
// an agent can report a new task with each sample.
const (
	indexAge   = hourMS
	indexMax   = 8 << 20   // series
	indexBytes = 128 << 20 // of texts, and as many more as tasks of real names have
	seriesText = 256       // bytes of a series' texts: more than a path of Kubernetes has
)

// textRoom is the size of the memory blocks that texts share.
const textRoom = 64 << 10

func newIndex(now sample.Millis) *index {
	return &index{seed: maphash.MakeSeed(), ids: map[uint64]uint32{}, places: map[string]uint32{}, batches: map[string]*lastBatch{},
		older: make([]uint32, 1), seriesTable: seriesTable{series: make([]series, 1), texts: make([]string, 1)}, after: make([]uint32, 1), born: now}
}

// next is the index that takes the place of this one. One that was very large is replaced within the hour: the hours and
// days that machines have sent count on, else a machine that makes it large could send any number of them.
func (x *index) next(now sample.Millis) *index {
	n := newIndex(now)
	if now-x.born > indexAge {
		return n
	}
	n.born = x.born
	for machine, t := range x.batches {
		to := n.machine(machine)
		to.parts, to.passed = t.parts, t.passed
	}
	return n
}

func (x *index) old(now sample.Millis) bool {
	return now-x.born > indexAge || len(x.series) > indexMax || x.size > max(indexBytes, seriesText*len(x.series))
}

// number returns the number of a sample's series; before is the previous sample's series.
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

// add assigns a number to a new series. It keeps no reference to want's memory, which may be that of a whole message.
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

// place returns the index of a text, which is stored once.
func (x *index) place(s string) uint32 {
	place, ok := x.places[s]
	if !ok {
		place = x.keep(s)
		x.places[x.texts[place]] = place
	}
	return place
}

// keep copies a text and returns its index.
func (x *index) keep(s string) uint32 {
	if x.text.Cap()-x.text.Len() < len(s) {
		x.text = strings.Builder{}
		x.text.Grow(max(textRoom, len(s)))
	}
	x.text.WriteString(s)
	x.size += len(s)
	all := x.text.String()
	x.texts = append(x.texts, all[len(all)-len(s):])
	return uint32(len(x.texts) - 1)
}

// order returns the numbers of series in the order of files.
func (x *index) order(k *seriesTable) []uint32 {
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
