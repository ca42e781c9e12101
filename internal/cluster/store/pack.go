package store

import (
	"cmp"
	"io"
	"iter"
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/cluster/store/segment"
	"github.com/quell-dev/quell/internal/core/sample"
)

// row is a sample in memory before the next flush.
type row struct {
	ts                  int64 // ms
	series              uint32
	cpu, cost, coverage float32
	extras              uint32 // index in pack.extras + 1, 0: none
	flags               sample.Flags
}

// rowBuffer gathers samples between two flushes.
type rowBuffer struct {
	index    *index
	rows     []row
	extras   []sample.Extras
	from, to int64 // of rows
}

func newPack(x *index) rowBuffer { return rowBuffer{index: x, from: math.MaxInt64, to: math.MinInt64} }

// add adds a sample of a series.
func (p *rowBuffer) add(series uint32, s *sample.Sample) {
	r := row{ts: int64(s.TS), series: series, cpu: s.CPU, cost: s.Cost, coverage: s.Coverage, flags: s.Flags}
	if s.Extras.Len() > 0 {
		p.extras = append(p.extras, s.Extras)
		r.extras = uint32(len(p.extras))
	}
	p.rows = append(p.rows, r)
	p.from, p.to = min(p.from, r.ts), max(p.to, r.ts)
}

// clear removes the rows.
func (p *rowBuffer) clear(x *index) {
	rows, extras := p.rows[:0], p.extras[:0]
	*p = newPack(x)
	p.rows, p.extras = rows, extras
}

const hourMS = 3_600_000

// hours splits the rows by the hour in which they end.
func (p *rowBuffer) hours() iter.Seq2[sample.Millis, []row] {
	return func(yield func(sample.Millis, []row) bool) {
		rows := p.rows
		if p.from/hourMS != p.to/hourMS { // a copy: p.rows stay in the order of batches
			rows = slices.Clone(rows)
			slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.ts/hourMS, b.ts/hourMS) })
		}
		for from := 0; from < len(rows); {
			hour, to := rows[from].ts/hourMS, from
			for to < len(rows) && rows[to].ts/hourMS == hour {
				to++
			}
			if !yield(sample.Millis(hour*hourMS), rows[from:to]) {
				return
			}
			from = to
		}
	}
}

// write writes rows as a segment: by series, each in time order. k is the index's state when the rows were complete.
func (p *rowBuffer) write(w *segment.Writer, out io.Writer, k *seriesTable, rows []row) error {
	w.Reset(out)
	if few*len(rows) < len(k.series) {
		p.writeFew(w, k, rows)
		return w.Close()
	}
	// Counting sort: first the start of each series' rows in places, then each row's
	// place. It is stable, and rows mostly come in time order already.
	begin := make([]uint32, len(k.series)+1)
	for i := range rows {
		begin[rows[i].series+1]++
	}
	for id := range k.series {
		begin[id+1] += begin[id]
	}
	places := make([]uint32, len(rows))
	next := slices.Clone(begin)
	for i := range rows {
		id := rows[i].series
		places[next[id]] = uint32(i)
		next[id]++
	}
	byTime := func(a, b uint32) int { return cmp.Compare(rows[a].ts, rows[b].ts) }
	for _, id := range p.index.order(k) {
		mine := places[begin[id]:begin[id+1]]
		if len(mine) == 0 {
			continue
		}
		if !slices.IsSortedFunc(mine, byTime) {
			slices.SortStableFunc(mine, byTime)
		}
		series := k.of(id)
		w.Series(&series)
		for _, i := range mine {
			p.writeRow(w, &rows[i])
		}
	}
	return w.Close()
}

func (p *rowBuffer) writeRow(w *segment.Writer, r *row) {
	var extras *sample.Extras
	if r.extras > 0 {
		extras = &p.extras[r.extras-1]
	}
	w.Row(r.ts, r.cpu, r.cost, r.coverage, r.flags, extras)
}

// few is how many times as many series as rows there are from which on rows are sorted without a look at all series. A
// commit may have samples of thousands of hours, and a machine can make millions of series.
const few = 64

func (p *rowBuffer) writeFew(w *segment.Writer, k *seriesTable, rows []row) {
	places := make([]uint32, len(rows))
	for i := range places {
		places[i] = uint32(i)
	}
	slices.SortStableFunc(places, func(a, b uint32) int {
		if x, y := &rows[a], &rows[b]; x.series != y.series {
			return k.compare(x.series, y.series)
		}
		return cmp.Compare(rows[a].ts, rows[b].ts)
	})
	before := uint32(0) // no series
	for _, i := range places {
		r := &rows[i]
		if r.series != before {
			series := k.of(r.series)
			w.Series(&series)
			before = r.series
		}
		p.writeRow(w, r)
	}
}
