package store

import (
	"cmp"
	"slices"

	"github.com/quell-dev/quell/internal/sample"
)

// packed is a sample in memory until the next flush: its texts as numbers.
type packed struct {
	ts                                            int64 // ms
	machine, job, task, platform, signal, variant uint32
	cpu, cost, coverage                           float32
	extras                                        uint32 // place in pack.extras + 1, 0: none
	class                                         sample.Class
	flags                                         sample.Flags
}

// pack gathers samples between two flushes. names outlives a flush: the same
// machines and tasks come again in the next.
type pack struct {
	names  *names
	rows   []packed
	extras []sample.Extras
}

func (p *pack) add(s *sample.Sample) {
	r := packed{ts: int64(s.TS), cpu: s.CPU, cost: s.Cost, coverage: s.Coverage, class: s.Class, flags: s.Flags}
	// Samples come a machine's tick at a time: most texts are the last one's.
	if n := len(p.rows); n > 0 {
		last := &p.rows[n-1]
		r.machine, r.job, r.platform, r.signal, r.variant = last.machine, last.job, last.platform, last.signal, last.variant
		p.rename(&r.machine, s.Machine)
		p.rename(&r.job, string(s.Job))
		p.rename(&r.platform, string(s.Platform))
		p.rename(&r.signal, string(s.Signal))
		p.rename(&r.variant, s.Variant)
	} else {
		r.machine, r.job, r.platform = p.names.of(s.Machine), p.names.of(string(s.Job)), p.names.of(string(s.Platform))
		r.signal, r.variant = p.names.of(string(s.Signal)), p.names.of(s.Variant)
	}
	r.task = p.names.of(string(s.Task))
	if s.Extras.Len() > 0 {
		p.extras = append(p.extras, s.Extras)
		r.extras = uint32(len(p.extras))
	}
	p.rows = append(p.rows, r)
}

func (p *pack) rename(id *uint32, text string) {
	if p.names.text[*id] != text {
		*id = p.names.of(text)
	}
}

// clear forgets the rows, and the names if they have become too many.
func (p *pack) clear() {
	p.rows, p.extras = p.rows[:0], p.extras[:0]
	if len(p.names.text) > maxNames {
		p.names = newNames()
	}
}

// sort puts rows in a segment's order.
func (p *pack) sort(rows []packed) {
	rank := p.names.rank()
	slices.SortFunc(rows, func(a, b packed) int {
		for _, d := range [...][2]uint32{{a.job, b.job}, {a.platform, b.platform}, {a.task, b.task}, {a.machine, b.machine}, {a.signal, b.signal}} {
			if d[0] != d[1] {
				return cmp.Compare(rank[d[0]], rank[d[1]])
			}
		}
		return cmp.Compare(a.ts, b.ts)
	})
}

// hours splits the rows by the hour that they end in.
func (p *pack) hours() map[sample.Millis][]packed {
	by := map[sample.Millis][]packed{}
	// Nearly all are of one hour or two: those need no copy of their own.
	slices.SortStableFunc(p.rows, func(a, b packed) int { return cmp.Compare(a.ts/hourMS, b.ts/hourMS) })
	for from := 0; from < len(p.rows); {
		hour, to := p.rows[from].ts/hourMS, from
		for to < len(p.rows) && p.rows[to].ts/hourMS == hour {
			to++
		}
		by[sample.Millis(hour*hourMS)] = p.rows[from:to:to]
		from = to
	}
	return by
}

const hourMS = 3_600_000

// unpack fills in a sample.
func (p *pack) unpack(r *packed, s *sample.Sample) {
	t := p.names.text
	*s = sample.Sample{TS: sample.Millis(r.ts), Machine: t[r.machine], Job: sample.JobName(t[r.job]), Task: sample.TaskName(t[r.task]),
		Platform: sample.Platform(t[r.platform]), Signal: sample.SignalName(t[r.signal]), Variant: t[r.variant],
		Class: r.class, CPU: r.cpu, Cost: r.cost, Coverage: r.coverage, Flags: r.flags}
	if r.extras > 0 {
		s.Extras = p.extras[r.extras-1]
	}
}
