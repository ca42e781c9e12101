package detect

import (
	"math"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// crowd observes a victim and n suspects for ten intervals, the last three bad, and returns
// the anomaly that results.
func crowd(t testing.TB, n int) (*Detector, *twin, anomaly) {
	p := paper(t, Quell)
	p.Outliers, p.Pace = 3, 0
	d, w := New(p), &twin{p: p, sig: signal(t, sample.CPI)}
	for at := minute; at <= 10*minute; at += minute {
		d.Observe(w.sig, at, crowded(n, at))
		w.observe(at, crowded(n, at))
	}
	a := d.queue.next()
	return d, w, a
}

func crowded(n int, at sample.Millis) []Reading {
	i := int(at / minute)
	row := []Reading{victim(1, 1+3*float64((i%10)/7))}
	for s := range n {
		r := suspect(uint64(s+2), 0.1+0.5*math.Abs(math.Sin(float64(s*i))))
		r.Reach = sample.SetOf(0, 1, s%4)
		row = append(row, r)
	}
	row[0].Reach = sample.SetOf(0, 1)
	return row
}

// CPI², section 4.2: a correlation analysis takes about 100 µs.
func BenchmarkIdentify1000x10(b *testing.B) {
	d, w, a := crowd(b, 1000)
	slot := a.signal.index[a.victim]
	var naive, quell time.Duration
	turns, naiveTurns := 0, 0
	b.ReportAllocs()
	for b.Loop() {
		start := time.Now()
		d.analyse(a, slot)
		quell += time.Since(start)
		if turns++; turns%256 == 1 { // alternating, since the machine is shared
			b.StopTimer()
			start = time.Now()
			w.analyse(a.victim.Inode, w.newest().readings)
			naive += time.Since(start)
			naiveTurns++
			b.StartTimer()
		}
	}
	each := float64(quell) / float64(turns)
	b.ReportMetric(float64(naive)/float64(naiveTurns)/each, "naive/quell")
	b.ReportMetric(each/1000, "ns/suspect")
}

// BenchmarkEvidence1000x60 measures the additional time of the switch Evidence: an hour of
// intervals of a thousand suspects, without and with costs of their own, by which their work is known.
func BenchmarkEvidence1000x60(b *testing.B) {
	b.Run("usage", func(b *testing.B) { benchmarkEvidence(b, false) })
	b.Run("work", func(b *testing.B) { benchmarkEvidence(b, true) })
}

func benchmarkEvidence(b *testing.B, own bool) {
	d := New(paper(b, EvidenceMethod))
	sig := signal(b, sample.CPI)
	for at := minute; at <= 60*minute; at += minute {
		row := crowded(1000, at)
		for i := range row[1:] {
			if own {
				row[i+1].Cost = 1 + 0.1*math.Abs(math.Sin(float64(i)*float64(at)))
			}
		}
		d.Observe(sig, at, row)
	}
	a := anomaly{signal: d.series[sig.Name], victim: sample.TaskKey{Inode: 1}, kind: Neighbour, at: 60 * minute}
	slot := a.signal.index[a.victim]
	var took [2]time.Duration
	turns := 0
	b.ReportAllocs()
	for b.Loop() {
		turns++
		for i, on := range [2]bool{false, true} {
			d.params.Switches.Evidence = on
			start := time.Now()
			d.analyse(a, slot)
			took[i] += time.Since(start)
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "evidence/correlation")
	b.ReportMetric(float64(took[1])/float64(turns)/1e6, "ms")
}

func TestAnAnalysisAllocatesNothing(t *testing.T) {
	d, _, a := crowd(t, 100)
	slot := a.signal.index[a.victim]
	if n := testing.AllocsPerRun(100, func() {
		if f := d.analyse(a, slot); len(f.Suspects) == 0 {
			t.Error("nothing was found")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The same with switch Evidence, over an hour; only the words about an accused suspect are made.
func TestAnAnalysisByEvidenceAllocatesNothing(t *testing.T) {
	d := New(paper(t, EvidenceMethod))
	sig := signal(t, sample.CPI)
	for at := minute; at <= 60*minute; at += minute {
		row := crowded(100, at)
		if at == 50*minute {
			row[5].Flags = sample.Capped // the regression takes part
		}
		d.Observe(sig, at, row)
	}
	a := anomaly{signal: d.series[sig.Name], victim: sample.TaskKey{Inode: 1}, kind: Neighbour, at: 60 * minute}
	slot, words := a.signal.index[a.victim], 0
	n := testing.AllocsPerRun(100, func() {
		words = 0
		for _, s := range d.analyse(a, slot).Suspects {
			if s.Why != "" {
				words++
			}
		}
	})
	if words > 3 || n > 6*float64(words) { // the string, its three numbers, and what the race detector adds
		t.Errorf("%v allocations, words about %d suspects", n, words)
	}
}

func TestObservingAllocatesNothingOnceTheWindowIsFull(t *testing.T) {
	d, _, _ := crowd(t, 100)
	sig := signal(t, sample.CPI)
	var rows [][]Reading
	for i := range sample.Millis(10) {
		rows = append(rows, crowded(100, i*minute))
	}
	at, found := 11*minute, 0
	interval := func() {
		d.Observe(sig, at, rows[at/minute%10])
		if _, ok := d.Next(at); ok {
			found++
		}
		at += minute
	}
	for range 70 { // the look back is an hour
		interval()
	}
	if n := testing.AllocsPerRun(100, interval); n != 0 {
		t.Errorf("%v allocations an interval", n)
	}
	if found < 10 {
		t.Errorf("%d findings, the intervals were to hold some", found)
	}
}
