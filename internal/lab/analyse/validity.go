package analyse

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Validity is how well a signal agrees with the application's own performance figures,
// over runs.
type Validity struct {
	Signal string `json:"signal"`
	// Part is the role whose signal it is. Workload is the measured one: it runs in the
	// part or, for a web server, in its client.
	Part     string     `json:"part"`
	Workload string     `json:"workload"`
	Pearson  Interval   `json:"pearson"` // with the time per unit of work; for requests, their latency
	Spearman Interval   `json:"spearman"`
	P        stat.Float `json:"p"`
	// Tail is the correlation with the 95th percentile of requests' latencies or,
	// without requests, of the iterations' times.
	Tail Interval `json:"tail"`
	N    int      `json:"n"`
	// Drift is the change of the signal by itself, in percent per hour: 100 times the
	// slope of its logarithm over time within equal cells, all of the study's together.
	// NaN if no two equal runs are driftOver apart. Truly is the same for the time per
	// unit of work: drift that both have in common is the machine's and not the
	// signal's.
	Drift    Interval `json:"drift"`
	AppDrift Interval `json:"truly"`
}

// signalPrefix is the prefix of the names of events that are quell's own signals.
const signalPrefix = "signal."

// tailShare is the percentile of Tail.
const tailShare = 0.95

// signalRun is a signal of a part in one run.
type signalRun struct {
	cell            string
	at              time.Time
	cost, unit, end float64 // the signal; mean time per unit of work; its 95th percentile, NaN without iterations
}

// Validities correlates the counted signals with the measured parts' time per unit of
// work, and computes the drift of both. The performance of a web server is measured by
// its client; the signals are then the server's.
func Validities(runs []result.Run, seed uint64) []Validity {
	type key struct{ signal, part, workload string }
	all := map[key][]signalRun{}
	for _, r := range valid(runs) {
		for p, rec := range measured(r) {
			t, end, ok := appPerformance(r, rec, &p.Workload)
			if !ok {
				continue
			}
			of := p
			if server := serverOf(&r.Cell, p); server != nil {
				if of, rec = server, partOf(r, server.Name()); rec == nil {
					continue
				}
			}
			for name, cost := range rec.Events {
				if signal, ok := strings.CutPrefix(name, signalPrefix); ok {
					k := key{signal, of.Role, p.Workload.Name}
					all[k] = append(all[k], signalRun{cellIdentity(&r.Cell), r.Start, cost, t, end})
				}
			}
		}
	}
	inOrder := func(a, b key) int {
		return cmp.Or(cmp.Compare(a.signal, b.signal), cmp.Compare(a.part, b.part), cmp.Compare(a.workload, b.workload))
	}
	var out []Validity
	for _, k := range slices.SortedFunc(maps.Keys(all), inOrder) {
		of := all[k]
		var cost, unit, costs, ends []float64
		for _, w := range of {
			cost, unit = append(cost, w.cost), append(unit, w.unit)
			if !math.IsNaN(w.end) {
				costs, ends = append(costs, w.cost), append(ends, w.end)
			}
		}
		pairs := []Pairs{{cost, unit}}
		out = append(out, Validity{Signal: k.signal, Part: k.part, Workload: k.workload, N: len(of),
			Pearson: CorrelationInterval(pairs, stat.Pearson), Spearman: CorrelationInterval(pairs, stat.Spearman),
			P: stat.Float(PermutationP(cost, unit, stat.Pearson, perms, seed)), Tail: CorrelationInterval([]Pairs{{costs, ends}}, stat.Pearson),
			Drift: drift(of, func(w *signalRun) float64 { return w.cost }), AppDrift: drift(of, func(w *signalRun) float64 { return w.unit })})
	}
	return out
}

// appPerformance returns the application's own performance figures of a run: the mean time per
// unit of work and its 95th percentile, NaN if unknown. A web client measures each
// request, if any was answered; every other workload measures iterations, or has a figure of its run.
func appPerformance(r *result.Run, p *result.Part, w *study.Workload) (unit, end float64, ok bool) {
	if w.Builtin == study.HTTPClient {
		latency, ok := p.Values[role.HTTPLatency]
		return latency, valueOf(p.Values, role.HTTPP95), ok
	}
	unit, ok = unitTime(r, p, &w.Metric)
	if w.Metric.OfRun() && !r.Simulated {
		return unit, math.NaN(), ok
	}
	return unit, tail(within(p.Iterations, r.Window)), ok
}

// cellIdentity is a name that is equal for cells in which the same ran: controls repeat
// cells of the study.
func cellIdentity(c *study.Cell) string {
	same := *c
	if same.Kind == study.AA || same.Kind == study.Sentinel {
		same.Kind = study.Main
	}
	return same.Key()
}

// tail is the 95th percentile of the iterations' times per unit of work, NaN without any.
func tail(its []result.Iteration) float64 {
	var times []float64
	for _, it := range its {
		if it.Units > 0 {
			times = append(times, (it.To-it.From).Seconds()/it.Units)
		}
	}
	slices.Sort(times)
	return stat.Quantile(times, tailShare)
}

// driftOver is the minimum distance of equal runs for a drift: over less time an hour
// would be extrapolated from noise.
const driftOver = 10 * time.Minute

// workDrift is the drift of the time per unit of work, of a run with several measured parts of their geometric mean.
// Equal runs are repetitions, A-A pairs and above all sentinels.
func workDrift(runs []result.Run) Interval {
	var all []signalRun
	for _, r := range valid(runs) {
		sum, n := 0.0, 0.0
		for p, rec := range measured(r) {
			if t, ok := unitTime(r, rec, &p.Workload.Metric); ok {
				sum, n = sum+math.Log(t), n+1
			} else {
				sum = math.NaN()
			}
		}
		if !r.Simulated {
			all = append(all, signalRun{cell: cellIdentity(&r.Cell), at: r.Start, unit: math.Exp(sum / n)})
		}
	}
	return drift(all, func(w *signalRun) float64 { return w.unit })
}

// drift is the common slope over time of a value's logarithm, in percent per hour. Each
// cell has a level of its own: least squares about the cells' means, with one degree of
// freedom less for each cell.
func drift(all []signalRun, of func(w *signalRun) float64) Interval {
	out := Interval{Value: math.NaN(), Low: math.NaN(), High: math.NaN(), Level: level, Method: "least squares within equal cells", N: len(all)}
	groups := map[string][]*signalRun{}
	for i := range all {
		if v := of(&all[i]); v > 0 {
			groups[all[i].cell] = append(groups[all[i].cell], &all[i])
		}
	}
	var xx, xy, yy, n, apart float64
	for _, cell := range sortedKeys(groups) {
		g := groups[cell]
		if len(g) < 2 {
			continue
		}
		x, y := make([]float64, len(g)), make([]float64, len(g))
		for i, w := range g {
			x[i], y[i] = w.at.Sub(g[0].at).Hours(), math.Log(of(w))
		}
		apart = max(apart, slices.Max(x)-slices.Min(x))
		mx, my := stat.Mean(x), stat.Mean(y)
		for i := range x {
			xx += (x[i] - mx) * (x[i] - mx)
			xy += (x[i] - mx) * (y[i] - my)
			yy += (y[i] - my) * (y[i] - my)
		}
		n += float64(len(g) - 1)
	}
	if df := n - 1; df >= 1 && apart >= driftOver.Hours() {
		slope := xy / xx
		h := tQuantile(df) * math.Sqrt(max(0, yy-slope*xy)/df/xx)
		out.Value, out.Low, out.High = 100*slope, 100*(slope-h), 100*(slope+h)
	}
	return out
}
