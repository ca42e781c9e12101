package render

import (
	"cmp"
	"fmt"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

const mega = 1e6

// tenants shows the bandwidth of tenants that share one link, by their number, and the
// latency of a datagram at the same time: figures 6.1 to 6.3 of paper 002.
func (r *Report) tenants(map[string]string) page.Section {
	s := page.Section{ID: "net-tenants", Title: "Tenants of one network link"}
	t := r.Results.Tenants
	if t == nil {
		return s
	}
	s.Exhibits = append(s.Exhibits, first(&s, tenantPoints(t)), first(&s, tenantShares(t)), first(&s, latencies(t)))
	var all []analyse.Interval
	for _, d := range t.Doses {
		for _, p := range d.Points {
			all = append(all, p.Each, p.BelowBaseline)
		}
		if last := d.Points[len(d.Points)-1]; float64(d.Shortfall) > 0 && plot.Finite(last.BelowBaseline.Value) {
			s.Notes = append(s.Notes, fmt.Sprintf("%s: the baselines of %s sum to %s Mbit/s; the link of %s Mbit/s is %s %% too small; the tenants were %s %% below their baseline.", words(d.Levels), plural(last.Tenants, "tenant"),
				number(float64(d.Baseline)*float64(last.Tenants)/mega), number(float64(d.Host)/mega), number(float64(d.Shortfall)), estimate(last.BelowBaseline)))
		}
	}
	for _, l := range t.Latencies {
		all = append(all, l.P50)
	}
	if len(r.Study.Networks) > 0 {
		s.Notes = append(s.Notes, "The link and the tenants' limits are the lab's own shapers: that tenants get their burst, their baseline and a share of the link confirms the shapers, and says nothing of a cloud's network.")
	}
	s.Notes = append(s.Notes,
		"Each tenant sends datagrams to a server of its own across the link. Received datagrams are counted in bits of whole frames, as the kernel's shapers count them. Below baseline is the paper's loss, relative to the rate that a tenant may always send at; below burst is relative to the rate while its credit lasts. "+
			"Both are given only where that much was offered. The burst window is the position of the steady window relative to the time that a full credit lasts: within it, after it, or across its end.",
		"Boxes are of all tenants in all runs, from quartile to quartile; whiskers end at the least and the largest. A fair share is the smaller of a tenant's own limit and an equal share of the link. Evenness is the smallest tenant's rate divided by the largest's in a run. "+
			"Round trips are quantiles of each run's pings; pings without an answer in time are lost and not in the quantiles. "+method(all...))
	return s
}

// tenantTitle is the title of a dose in plots.
func tenantTitle(d *analyse.TenantDose) string { return cmp.Or(study.LevelText(d.Levels), "Tenants") }

// tenantPoints are figures 6.1, a point for each tenant, and 6.2, boxes.
func tenantPoints(t *analyse.Tenants) page.Exhibit {
	e := page.Exhibit{Table: page.Table{Caption: "Throughput by the number of tenants (figures 6.1 and 6.2), Mbit/s",
		Head: []string{"cell", "tenants", "burst window", "offered by each", "received of each", "interval", "least", "quartiles", "largest", "fair share", "below baseline %", "below burst %", "sum", "of the link", "evenness", "datagrams lost"}}}
	if len(t.Doses) > 0 {
		e.Plots = append(e.Plots, tenantSums(t))
	}
	for _, d := range t.Doses {
		boxes := plot.Boxes{Title: tenantTitle(&d) + ": all tenants", X: "tenants", Y: "Mbit/s", About: "A box for each number of tenants, of the received rates; the table below has the numbers."}
		each := plot.Chart{Title: tenantTitle(&d) + ": each tenant", X: "tenants", Y: "Mbit/s", Zero: true, About: "A line for each tenant over their number; the tables below have the numbers."}
		fair := plot.Series{Name: "fair share", Quiet: true, Line: true}
		byTenant := []plot.Series{}
		for _, p := range d.Points {
			n := float64(p.Tenants)
			e.Table.Rows = append(e.Table.Rows, page.Row(words(d.Levels), fmt.Sprint(p.Tenants), p.Window, number(p.Offered.Value/mega), number(p.Each.Value/mega), between(megas(p.Each)),
				number(float64(p.Box.Low)/mega), number(float64(p.Box.Q1)/mega)+", "+number(float64(p.Box.Median)/mega)+", "+number(float64(p.Box.Q3)/mega), number(float64(p.Box.High)/mega),
				number(float64(p.Fair)/mega), estimate(p.BelowBaseline), estimate(p.BelowBurst), estimate(megas(p.Sum)), percentage(p.OfHost.Value), number(p.Evenness.Value), percentage(p.Lost.Value)))
			boxes.Boxes = append(boxes.Boxes, plot.Box{Name: fmt.Sprint(p.Tenants), Low: float64(p.Box.Low) / mega, Q1: float64(p.Box.Q1) / mega, Median: float64(p.Box.Median) / mega, Q3: float64(p.Box.Q3) / mega, High: float64(p.Box.High) / mega})
			fair.Add(n, float64(p.Fair)/mega)
			for k, share := range p.Share {
				if k == len(byTenant) {
					byTenant = append(byTenant, plot.Series{Name: "tenant " + fmt.Sprint(k+1), Index: k, Mark: plot.Dot, Line: true})
				}
				byTenant[k].AddInterval(n, bounds(megas(share.Rate)))
			}
		}
		for _, l := range []plot.Level{{Name: "baseline", At: float64(d.Baseline) / mega}, {Name: "burst", At: float64(d.Burst) / mega}} {
			if plot.Finite(l.At) {
				boxes.Levels = append(boxes.Levels, l)
			}
		}
		// With more lines than can be distinguished only the boxes are drawn.
		if len(byTenant) <= mostLines {
			each.Series = append([]plot.Series{fair}, byTenant...)
			e.Plots = append(e.Plots, each.Draw())
		}
		e.Plots = append(e.Plots, boxes.Draw())
	}
	return e
}

// tenantSums draws the total of all tenants, with the link's limit.
func tenantSums(t *analyse.Tenants) plot.Plot {
	c := plot.Chart{Title: "All tenants together", X: "tenants", Y: "Mbit/s", Zero: true, About: "The sum of all tenants' received rates by their number, and the limit of their link; the table below has the numbers."}
	limit := plot.Series{Name: "the link's limit", Quiet: true, Line: true}
	for k, d := range t.Doses {
		one := plot.Series{Name: tenantTitle(&d), Index: k, Mark: plot.Dot, Line: true}
		for _, p := range d.Points {
			one.AddInterval(float64(p.Tenants), bounds(megas(p.Sum)))
		}
		for _, p := range []analyse.TenantPoint{d.Points[0], d.Points[len(d.Points)-1]} {
			limit.Add(float64(p.Tenants), float64(d.Host)/mega)
		}
		c.Series = append(c.Series, one)
	}
	c.Series = append([]plot.Series{limit}, c.Series...)
	return c.Draw()
}

// mostLines is the largest number of tenants that have individual lines.
const mostLines = 8

// megas scales an estimate to millions.
func megas(i analyse.Interval) analyse.Interval { return times(1/mega, i) }

// tenantShares shows every tenant individually.
func tenantShares(t *analyse.Tenants) page.Exhibit {
	e := page.Exhibit{Table: page.Table{Caption: "Each tenant, Mbit/s", Long: true, Head: []string{"cell", "tenants", "tenant", "received", "interval"}}}
	for _, d := range t.Doses {
		for _, p := range d.Points {
			for _, share := range p.Share {
				e.Table.Rows = append(e.Table.Rows, page.Row(words(d.Levels), fmt.Sprint(p.Tenants), share.Part, number(share.Rate.Value/mega), between(megas(share.Rate))))
			}
		}
	}
	return e
}

// latencies are figure 6.3: round trips against the bandwidth that is used at the same
// time.
func latencies(t *analyse.Tenants) page.Exhibit {
	e := page.Exhibit{Table: page.Table{Caption: "Round trips by bandwidth in use (figure 6.3), ms",
		Head: []string{"cell", "part", "bandwidth, Mbit/s", "mean", "interval", "p50", "interval", "p90", "interval", "p99", "interval", "largest", "lost", "pings"}}}
	const milli = 1000
	for _, l := range t.Latencies {
		cells := page.Row(words(l.Levels), l.Part, number(l.Bandwidth.Value/mega))
		for _, v := range []analyse.Interval{l.Mean, l.P50, l.P90, l.P99} {
			cells = append(cells, page.Row(number(milli*v.Value), between(times(milli, v)))...)
		}
		e.Table.Rows = append(e.Table.Rows, append(cells, page.Row(number(milli*l.Max.Value), percentage(l.Lost.Value), fmt.Sprint(l.Sent))...))
	}
	c := plot.Chart{Title: "Round trip by bandwidth", X: "bandwidth used by the tenants, Mbit/s", Y: "ms", Zero: true, About: "Mean, median and 99th percentile of the round trips, a point for each cell; the table below has the numbers."}
	for k, of := range []struct {
		name  string
		value func(l *analyse.Latency) analyse.Interval
	}{{"mean", func(l *analyse.Latency) analyse.Interval { return l.Mean }}, {"median", func(l *analyse.Latency) analyse.Interval { return l.P50 }}, {"99th percentile", func(l *analyse.Latency) analyse.Interval { return l.P99 }}} {
		one := plot.Series{Name: of.name, Index: k, Mark: plot.Dot}
		for _, l := range t.Latencies {
			one.AddInterval(l.Bandwidth.Value/mega, bounds(times(milli, of.value(&l))))
		}
		c.Series = append(c.Series, one)
	}
	if len(t.Latencies) > 0 {
		e.Plots = append(e.Plots, c.Draw())
	}
	return e
}

// tenantValues adds all numbers of the analysis, for Values.
func tenantValues(t *analyse.Tenants, add func(analysis, quantity, cell, part, at, unit string, i analyse.Interval)) {
	const kind = "net-tenants"
	for _, d := range t.Doses {
		c := study.LevelText(d.Levels)
		add(kind, "shortfall of the link", c, "", "", "%", noBounds(float64(d.Shortfall)))
		for _, p := range d.Points {
			at := fmt.Sprint(p.Tenants)
			for _, v := range []struct {
				name, unit string
				of         analyse.Interval
			}{{"offered", "bit/s", p.Offered}, {"each", "bit/s", p.Each}, {"sum", "bit/s", p.Sum}, {"of the link", "", p.OfHost}, {"below baseline", "%", p.BelowBaseline},
				{"below burst", "%", p.BelowBurst}, {"evenness", "", p.Evenness}, {"lost", "", p.Lost}, {"fair share", "bit/s", noBounds(float64(p.Fair))}} {
				add(kind, v.name, c, "", at, v.unit, v.of)
			}
			for _, v := range []struct {
				name string
				of   stat.Float
			}{{"least", p.Box.Low}, {"lower quartile", p.Box.Q1}, {"median", p.Box.Median}, {"upper quartile", p.Box.Q3}, {"largest", p.Box.High}} {
				of := noBounds(float64(v.of))
				of.N = p.Box.N
				add(kind, v.name, c, "", at, "bit/s", of)
			}
			for _, share := range p.Share {
				add(kind, "tenant", c, share.Part, at, "bit/s", share.Rate)
			}
		}
	}
	for _, l := range t.Latencies {
		c := study.LevelText(l.Levels)
		add(kind, "bandwidth beside", c, l.Part, "", "bit/s", l.Bandwidth)
		add(kind, "pings lost", c, l.Part, "", "", l.Lost)
		for _, v := range []struct {
			at string
			of analyse.Interval
		}{{"mean", l.Mean}, {"p50", l.P50}, {"p90", l.P90}, {"p99", l.P99}, {"max", l.Max}} {
			add(kind, "round trip", c, l.Part, v.at, "s", v.of)
		}
	}
}

// tenantOrder sorts the doses in the study's order; runs are shuffled.
func (r *Report) tenantOrder() *analyse.Tenants {
	t := r.Results.Tenants
	if t == nil {
		return nil
	}
	o := *t
	o.Doses = sorted(r, t.Doses, func(d *analyse.TenantDose) []study.Level { return d.Levels })
	o.Latencies = sorted(r, t.Latencies, func(l *analyse.Latency) []study.Level { return l.Levels })
	return &o
}
