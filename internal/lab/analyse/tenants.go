package analyse

import (
	"math"
	"slices"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Tenants is the share of a host's network link that its tenants get as they are added
// one by one, and the latency of a datagram meanwhile (Jemal, "Analysis of the Noisy
// Neighbor Problem in AWS", 2025, chapter 6). Rates are bits/s of whole frames.
type Tenants struct {
	Doses     []TenantDose `json:"doses"`     // figures 6.1 and 6.2
	Latencies []Latency    `json:"latencies"` // figure 6.3
}

// TenantDose is one kind of tenant, by number of tenants. A bound that the study does
// not give is NaN.
type TenantDose struct {
	Levels   []study.Level `json:"levels"` // without the factor that counts tenants
	Host     stat.Float    `json:"host"`   // the link's limit
	Baseline stat.Float    `json:"baseline"`
	Burst    stat.Float    `json:"burst"`
	Points   []TenantPoint `json:"points"` // by number, ascending
	// Shortfall is how much smaller the link is than the sum of the baselines of the
	// largest number of tenants, in percent: the loss that each of them must have.
	Shortfall stat.Float `json:"shortfall_percent"`
}

// The position of a steady window relative to the time that a full credit lasts.
const (
	BurstWithin = "within"
	BurstAfter  = "after"
	BurstAcross = "across"
)

// TenantPoint is the result for one number of tenants.
type TenantPoint struct {
	Tenants int `json:"tenants"`
	// Window is the runs' position relative to the burst, "" if there is none.
	Window  string        `json:"window,omitempty"`
	Offered Interval      `json:"offered"` // per tenant on average, bits/s
	Each    Interval      `json:"each"`    // received per tenant on average, bits/s
	Sum     Interval      `json:"sum"`     // received, of all tenants
	OfHost  Interval      `json:"of_host"` // Sum as a share of the link's limit
	Share   []TenantShare `json:"share"`   // per tenant
	Box     Box           `json:"box"`     // of all tenants in all runs
	// Fair is the smallest bound for each tenant: burst or baseline, and an equal share
	// of the link.
	Fair stat.Float `json:"fair"`
	// BelowBaseline is the paper's loss, in percent: 100·(1 − each/baseline).
	// BelowBurst is the same for the burst, which the paper calls misleading since a
	// burst is not promised for long. NaN if less was offered.
	BelowBaseline Interval `json:"below_baseline_percent"`
	BelowBurst    Interval `json:"below_burst_percent"`
	// Evenness is the smallest tenant's rate divided by the largest's in a run.
	Evenness Interval `json:"evenness"`
	Lost     Interval `json:"lost"` // share of the datagrams
}

// TenantShare is the share of one tenant.
type TenantShare struct {
	Part string   `json:"part"`
	Rate Interval `json:"rate"`
}

// Box is the five numbers of a box plot; the whiskers are the minimum and the maximum.
type Box struct {
	Low    stat.Float `json:"low"`
	Q1     stat.Float `json:"q1"`
	Median stat.Float `json:"median"`
	Q3     stat.Float `json:"q3"`
	High   stat.Float `json:"high"`
	N      int        `json:"n"`
}

// Latency is the round-trip time of a datagram while tenants use the link.
type Latency struct {
	Levels    []study.Level `json:"levels"`
	Part      string        `json:"part"` // the part that pings
	Tenants   int           `json:"tenants"`
	Bandwidth Interval      `json:"bandwidth"` // bits/s received of the tenants
	// Of each run's pings, in seconds.
	Mean Interval `json:"mean"`
	P50  Interval `json:"p50"`
	P90  Interval `json:"p90"`
	P99  Interval `json:"p99"`
	Max  Interval `json:"max"`
	Lost Interval `json:"lost"` // share
	Sent int      `json:"sent"` // pings in all runs
}

// shortfall is how much smaller a link is than n baselines together, in percent;
// negative if the link is larger.
func shortfall(host, baseline float64, n int) float64 { return 100 * (1 - host/(float64(n)*baseline)) }

// NetworkTenants computes the results for the factor that counts tenants; false if no
// run has datagrams.
func NetworkTenants(runs []result.Run, count string) (Tenants, bool) {
	t := Tenants{Doses: []TenantDose{}, Latencies: []Latency{}}
	for _, group := range byCell(valid(runs), study.Main) {
		c := &group[0].Cell
		tenants := reporting(group[0], role.UDPReceived)
		if len(tenants) > 0 {
			rest := without(c.Levels, count)
			i := slices.IndexFunc(t.Doses, func(d TenantDose) bool { return slices.Equal(d.Levels, rest) })
			if i < 0 {
				i = len(t.Doses)
				t.Doses = append(t.Doses, newDose(c, rest, tenants[0]))
			}
			d := &t.Doses[i]
			d.Points = append(d.Points, d.point(group, tenants))
		}
		for _, p := range reporting(group[0], role.PingMean) {
			t.Latencies = append(t.Latencies, latency(group, p.Name(), tenants))
		}
	}
	for i := range t.Doses {
		d := &t.Doses[i]
		slices.SortFunc(d.Points, func(a, b TenantPoint) int { return a.Tenants - b.Tenants })
		d.Shortfall = stat.Float(shortfall(float64(d.Host), float64(d.Baseline), d.Points[len(d.Points)-1].Tenants))
	}
	slices.SortStableFunc(t.Latencies, func(a, b Latency) int { return a.Tenants - b.Tenants })
	return t, len(t.Doses)+len(t.Latencies) > 0
}

// reporting are the parts of a run that report a value: tenants report what was received
// of them.
func reporting(r *result.Run, value string) (all []*study.Part) {
	for i := range r.Cell.Parts {
		if p := &r.Cell.Parts[i]; finite(reported(r, p.Name(), value)) {
			all = append(all, p)
		}
	}
	return all
}

func newDose(c *study.Cell, rest []study.Level, sender *study.Part) TenantDose {
	known := func(r study.Rate) stat.Float {
		if r <= 0 {
			return stat.Float(math.NaN())
		}
		return stat.Float(r)
	}
	d := TenantDose{Levels: rest, Host: known(c.Networks[sender.Environment.Network].Rate), Baseline: known(0), Burst: known(0)}
	if b := sender.Environment.Bandwidth; b != nil {
		d.Baseline, d.Burst = known(b.Baseline), known(b.Burst)
	}
	return d
}

// overRuns is the mean of the finite values over the runs of a group.
func overRuns(group []*result.Run, value func(r *result.Run) float64) Interval {
	var all []float64
	for _, r := range group {
		if v := value(r); finite(v) {
			all = append(all, v)
		}
	}
	return meanInterval(all, "t over runs")
}

// each returns a value of all tenants in a run.
func each(r *result.Run, tenants []*study.Part, value string) []float64 {
	all := make([]float64, len(tenants))
	for i, p := range tenants {
		all[i] = reported(r, p.Name(), value)
	}
	return all
}

// received returns the rates of all tenants in a run.
func received(r *result.Run, tenants []*study.Part) []float64 {
	return each(r, tenants, role.UDPReceived)
}

func sum(x []float64) float64 { return stat.Mean(x) * float64(len(x)) }

// minOffered is the share of a bound that must be offered before a lower rate is attributed
// to the network.
const minOffered = 0.98

// point computes the result for one number of tenants.
func (d *TenantDose) point(group []*result.Run, tenants []*study.Part) TenantPoint {
	n := float64(len(tenants))
	p := TenantPoint{Tenants: len(tenants)}
	p.Offered = overRuns(group, func(r *result.Run) float64 { return stat.Mean(each(r, tenants, role.UDPSent)) })
	p.Each = overRuns(group, func(r *result.Run) float64 { return stat.Mean(received(r, tenants)) })
	p.Sum = overRuns(group, func(r *result.Run) float64 { return sum(received(r, tenants)) })
	p.OfHost = overRuns(group, func(r *result.Run) float64 { return sum(received(r, tenants)) / float64(d.Host) })
	below := func(bound stat.Float) Interval {
		return overRuns(group, func(r *result.Run) float64 {
			if p.Offered.Value < minOffered*float64(bound) {
				return math.NaN()
			}
			return 100 * (1 - stat.Mean(received(r, tenants))/float64(bound))
		})
	}
	p.BelowBaseline, p.BelowBurst = below(d.Baseline), below(d.Burst)
	p.Evenness = overRuns(group, func(r *result.Run) float64 {
		all := received(r, tenants)
		return slices.Min(all) / slices.Max(all)
	})
	p.Lost = overRuns(group, func(r *result.Run) float64 { return stat.Mean(each(r, tenants, role.UDPLost)) })
	var box []float64
	for _, t := range tenants {
		p.Share = append(p.Share, TenantShare{t.Name(), overRuns(group, func(r *result.Run) float64 { return reported(r, t.Name(), role.UDPReceived) })})
	}
	for k, r := range group {
		box = append(box, received(r, tenants)...)
		for _, t := range tenants {
			if w := window(r, t); k == 0 && t == tenants[0] {
				p.Window = w
			} else if w != p.Window {
				p.Window = BurstAcross
			}
		}
	}
	p.Box = boxOf(box)
	p.Fair = stat.Float(d.fair(p.Window, n))
	return p
}

// fair is the smallest bound on one of n tenants; NaN if the bound changes within a
// run.
func (d *TenantDose) fair(window string, n float64) float64 {
	own := d.Baseline
	switch window {
	case BurstWithin:
		own = d.Burst
	case BurstAcross:
		own = stat.Float(math.NaN())
	}
	link := float64(d.Host) / n
	if math.IsNaN(float64(own)) && window != BurstAcross || float64(own) > link { // the link is the only bound
		return link
	}
	return float64(own)
}

// window returns the position of a run relative to a tenant's burst. The credit is full
// when the sender begins, and lasts for b.Lasts() if it sends at its maximum.
func window(r *result.Run, sender *study.Part) string {
	b, rec := sender.Environment.Bandwidth, partOf(r, sender.Name())
	if b == nil || b.Burst == 0 || rec == nil {
		return ""
	}
	switch end := rec.Window.From + b.BurstTime(); {
	case r.Window.To <= end:
		return BurstWithin
	case r.Window.From >= end:
		return BurstAfter
	}
	return BurstAcross
}

// boxOf is the box of the finite values; NaN of none.
func boxOf(all []float64) Box {
	all = slices.DeleteFunc(slices.Clone(all), func(v float64) bool { return !finite(v) })
	slices.Sort(all)
	at := func(q float64) stat.Float { return stat.Float(stat.Quantile(all, q)) }
	return Box{at(0), at(0.25), at(0.5), at(0.75), at(1), len(all)}
}

func latency(group []*result.Run, part string, tenants []*study.Part) Latency {
	said := func(name string) Interval {
		return overRuns(group, func(r *result.Run) float64 { return reported(r, part, name) })
	}
	l := Latency{Levels: group[0].Cell.Levels, Part: part, Tenants: len(tenants), Mean: said(role.PingMean), P50: said(role.PingP50),
		P90: said(role.PingP90), P99: said(role.PingP99), Max: said(role.PingMax), Lost: said(role.PingLost)}
	l.Bandwidth = overRuns(group, func(r *result.Run) float64 {
		if len(tenants) == 0 {
			return 0
		}
		return sum(received(r, tenants))
	})
	count := said(role.PingCount)
	l.Sent = int(math.Round(count.Value * float64(count.N)))
	return l
}
