package render

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/format/page"
	"github.com/quell-dev/quell/internal/format/plot"
	"github.com/quell-dev/quell/internal/lab/analyse"
	"github.com/quell-dev/quell/internal/lab/study"
)

// networkIO shows how web servers affect each other: Mei et al.'s tables I and II and
// their figures 3 to 5.
func (r *Report) networkIO(map[string]string) page.Section {
	s := page.Section{ID: "net-io", Title: "Web servers on one host"}
	n := r.Results.NetIO
	if n == nil {
		return s
	}
	s.Exhibits = append(s.Exhibits, first(&s, netBases(n)), first(&s, netPairs(n)), first(&s, netPoints(n)))
	var all []analyse.Interval
	for _, b := range n.Bases {
		all = append(all, b.Rate)
	}
	for _, p := range n.Pairs {
		all = append(all, p.Score, p.Advantage)
	}
	s.Notes = append(s.Notes,
		"A base case is one server alone at maximum load; its rate is B. The combined score of two servers at once is Σ T/B, where T is the rate of each server: 2 is no interference, 1 means that they share one resource. With the second server idle the score is T/B of the first, and 1 is no interference. The favoured server keeps more of its base case than the other, with an interval that excludes 0.",
		"The score, the eight measures and the figures are the paper's (Mei et al., sections II to IV); intervals are ours. "+
			"Response and p99 are of the good answers; unanswered requests failed, took longer than the client's timeout, or found no free connection in that time. "+
			"Net I/O is that of the files in good answers, so what TCP sent again does not count. Switches are the sum of the servers' executions. "+driver(n)+kinds(n),
		method(all...))
	return s
}

// onXen reports whether Xen's first domain was measured.
func onXen(n *analyse.NetIO) bool {
	return slices.ContainsFunc(n.Points, func(p analyse.NetPoint) bool { return p.DriverCPU.Value > 0 })
}

func driver(n *analyse.NetIO) string {
	if onXen(n) {
		return "The first domain is Xen's driver domain; where the load generators run in it too, its figures include theirs. "
	}
	return "The paper's figures 4d to 4f are of Xen's driver domain, which no server here has. "
}

// kinds says what counts as an event and as a page, each definition once.
func kinds(n *analyse.NetIO) string {
	var events, pages []string
	for _, p := range n.Points {
		if !slices.Contains(events, p.EventsAre) {
			events = append(events, p.EventsAre)
		}
		if !slices.Contains(pages, p.PagesAre) {
			pages = append(pages, p.PagesAre)
		}
	}
	return "Events are " + strings.Join(events, "; or ") + ". Pages are " + strings.Join(pages, "; or ") + "."
}

// netBases is table I.
func netBases(n *analyse.NetIO) page.Exhibit {
	t := page.Table{Caption: "Maximum of one server alone (table I)", Head: []string{"file", "bottleneck", "answers/s", "interval", "net I/O, KB/s", "response, ms", "CPU, %"}}
	for _, b := range n.Bases {
		t.Rows = append(t.Rows, page.Row(b.File, b.Bottleneck, number(b.Rate.Value), between(b.Rate), number(b.NetIO.Value/1024), number(1000*b.Response.Value), number(100*b.CPU.Value)))
	}
	return page.Exhibit{Table: t}
}

// netPairs is figure 3, with the favoured server.
func netPairs(n *analyse.NetIO) page.Exhibit {
	t := page.Table{Caption: "Two servers at once, each at maximum load (figure 3)",
		Head: []string{"case", "combined score", "interval", "T₁, answers/s", "T₁/B₁", "T₂, answers/s", "T₂/B₂", "favoured", "difference of shares", "mean slowdown", "fairness"}}
	bars := plot.Bars{Title: "Combined score Σ T/B", About: "A bar for each pair of files; the table below has the numbers.", Unit: "combined score", Series: []string{"score"}}
	for _, p := range n.Pairs {
		var shares []page.Cell
		for k := range 2 {
			if k < len(p.Parts) {
				shares = append(shares, page.Row(number(p.Parts[k].Rate.Value), estimate(p.Parts[k].Share))...)
			} else {
				shares = append(shares, page.Row("idle", "")...)
			}
		}
		favoured := "neither"
		for _, s := range p.Parts {
			if s.Part == p.Favoured {
				favoured = s.File + " (" + s.Part + ")"
			}
		}
		t.Rows = append(t.Rows, slices.Concat(page.Row(p.Case, number(p.Score.Value), between(p.Score)), shares,
			page.Row(favoured, estimate(p.Advantage), number(float64(p.Slowdown)), number(float64(p.Fairness)))))
		bars.Groups = append(bars.Groups, plot.Group{Name: p.Case, Values: []plot.Interval{bounds(p.Score)}})
	}
	e := page.Exhibit{Table: t}
	if len(t.Rows) > 0 {
		e.Plots = append(e.Plots, bars.Draw())
	}
	return e
}

// curve is one of the figures over the request rate.
type curve struct {
	title, unit string
	scale       float64
	of          func(p *analyse.NetPoint) analyse.Interval
}

func curves() []curve {
	return []curve{
		{"Throughput (figure 4a)", "answers/s", 1, func(p *analyse.NetPoint) analyse.Interval { return p.Throughput }},
		{"Switches (4b)", "switches/s", 1, func(p *analyse.NetPoint) analyse.Interval { return p.Switches }},
		{"Events (same course as 4b)", "events/s", 1, func(p *analyse.NetPoint) analyse.Interval { return p.Events }},
		{"Pages per execution (4c)", "pages", 1, func(p *analyse.NetPoint) analyse.Interval { return p.PerExec }},
		{"Executions", "executions/s", 1, func(p *analyse.NetPoint) analyse.Interval { return p.Executions }},
		{"First domain's CPU (4d)", "%", 100, func(p *analyse.NetPoint) analyse.Interval { return p.DriverCPU }},
		{"First domain blocked (4e)", "%", 100, func(p *analyse.NetPoint) analyse.Interval { return p.DriverBlocked }},
		{"First domain waiting (4f)", "%", 100, func(p *analyse.NetPoint) analyse.Interval { return p.DriverWaiting }},
		{"Server's CPU (4g)", "%", 100, func(p *analyse.NetPoint) analyse.Interval { return p.CPU }},
		{"Server blocked (4h)", "%", 100, func(p *analyse.NetPoint) analyse.Interval { return p.Blocked }},
		{"Server waiting (4i)", "%", 100, func(p *analyse.NetPoint) analyse.Interval { return p.Waiting }},
		{"Net I/O (figure 5)", "KB/s", 1.0 / 1024, func(p *analyse.NetPoint) analyse.Interval { return p.NetIO }},
		{"Response time, mean", "ms", 1000, func(p *analyse.NetPoint) analyse.Interval { return p.Response }},
	}
}

// netPoints is table II at every rate, and figures 4 and 5.
func netPoints(n *analyse.NetIO) page.Exhibit {
	e := page.Exhibit{Table: page.Table{Caption: "The eight measures of each server at each rate (table II)", Long: true,
		Head: []string{"case", "rate", "server", "file", "answers/s", "net I/O, KB/s", "response, ms", "p99, ms", "unanswered, %", "CPU, %", "events/s", "switches/s", "pages/s", "pages/execution", "waiting, %", "blocked, %", "executions/s"}}}
	for _, group := range grouped(n.Points, func(p *analyse.NetPoint) string { return p.Case }) {
		for _, p := range group {
			e.Table.Rows = append(e.Table.Rows, page.Row(p.Case, p.Rate, p.Server, p.File, estimate(p.Throughput), number(p.NetIO.Value/1024), number(1000*p.Response.Value), number(1000*p.P99.Value), number(100*p.Unanswered.Value),
				number(100*p.CPU.Value), number(p.Events.Value), number(p.Switches.Value), number(p.Pages.Value), number(p.PerExec.Value), number(100*p.Waiting.Value), number(100*p.Blocked.Value), number(p.Executions.Value)))
			if onXen(n) {
				last := &e.Table.Rows[len(e.Table.Rows)-1]
				*last = append(*last, page.Row(number(100*p.DriverCPU.Value), number(100*p.DriverWaiting.Value), number(100*p.DriverBlocked.Value))...)
			}
		}
	}
	if onXen(n) {
		e.Table.Head = append(e.Table.Head, "first domain: CPU, %", "waiting, %", "blocked, %")
	}
	for _, c := range curves() {
		chart := plot.Chart{Title: c.title, X: "requested rate, % of the base case", Y: c.unit, Zero: true,
			About: c.title + " over the requested rate, a line for each case and server; the table below has the numbers."}
		for _, client := range grouped(n.Points, func(p *analyse.NetPoint) string { return p.Case + " " + p.Client }) {
			points := slices.DeleteFunc(client, func(p *analyse.NetPoint) bool { return p.Offered == 0 || math.IsNaN(c.of(p).Value) })
			if len(points) < 2 {
				continue
			}
			slices.SortFunc(points, func(a, b *analyse.NetPoint) int { return cmp.Compare(a.Offered, b.Offered) })
			line := plot.Series{Name: points[0].Case + " " + points[0].Server, Index: len(chart.Series), Mark: plot.Dot, Line: true}
			for _, p := range points {
				line.AddInterval(100*p.Offered, bounds(times(c.scale, c.of(p))))
			}
			chart.Series = append(chart.Series, line)
		}
		if len(chart.Series) > 0 {
			e.Plots = append(e.Plots, chart.Draw())
		}
	}
	return e
}

// netValues adds all numbers of the analysis, for Values.
func netValues(n *analyse.NetIO, add func(analysis, quantity, cell, part, at, unit string, i analyse.Interval)) {
	const kind = "net-io"
	for _, b := range n.Bases {
		add(kind, "base rate", "", "", b.File, "1/s", b.Rate)
		add(kind, "base net I/O", "", "", b.File, "B/s", b.NetIO)
		add(kind, "base response", "", "", b.File, "s", b.Response)
		add(kind, "base CPU", "", "", b.File, "CPU s/s", b.CPU)
	}
	for _, p := range n.Pairs {
		add(kind, "score", p.Case, "", "", "", p.Score)
		add(kind, "advantage", p.Case, "", "", "", p.Advantage)
		add(kind, "slowdown", p.Case, "", "", "", noBounds(float64(p.Slowdown)))
		add(kind, "fairness", p.Case, "", "", "", noBounds(float64(p.Fairness)))
		for _, s := range p.Parts {
			add(kind, "share", p.Case, s.Part, s.File, "", s.Share)
		}
	}
	for _, p := range n.Points {
		for _, v := range []struct {
			name, unit string
			of         analyse.Interval
		}{{"throughput", "1/s", p.Throughput}, {"net I/O", "B/s", p.NetIO}, {"response", "s", p.Response}, {"p99", "s", p.P99}, {"unanswered", "", p.Unanswered}, {"CPU", "CPU s/s", p.CPU}, {"events", "1/s", p.Events},
			{"switches", "1/s", p.Switches}, {"pages", "1/s", p.Pages}, {"pages per execution", "", p.PerExec}, {"waiting", "", p.Waiting}, {"blocked", "", p.Blocked}, {"executions", "1/s", p.Executions}} {
			add(kind, v.name, p.Case, p.Client, p.Rate, v.unit, v.of)
		}
		if onXen(n) {
			add(kind, "first domain's CPU", p.Case, p.Client, p.Rate, "CPU s/s", p.DriverCPU)
			add(kind, "first domain's waiting", p.Case, p.Client, p.Rate, "", p.DriverWaiting)
			add(kind, "first domain's blocked", p.Case, p.Client, p.Rate, "", p.DriverBlocked)
		}
	}
}

// netOrder sorts the cases in the order of the study. Results are not in that order,
// because runs are shuffled.
func (r *Report) netOrder() *analyse.NetIO {
	n := r.Results.NetIO
	if n == nil {
		return nil
	}
	o := *n
	levels := func(name, rate string) []study.Level {
		var ls []study.Level
		for _, f := range r.Study.Factors {
			for _, v := range []string{name, rate} {
				if slices.Contains(f.Levels, v) || slices.ContainsFunc(f.Sets, func(s study.Set) bool { return s.Name == v }) {
					ls = append(ls, study.Level{Factor: f.Name, Value: v})
				}
			}
		}
		return ls
	}
	o.Pairs = sorted(r, n.Pairs, func(p *analyse.NetPair) []study.Level { return levels(p.Case, "") })
	o.Points = sorted(r, n.Points, func(p *analyse.NetPoint) []study.Level { return levels(p.Case, p.Rate) })
	return &o
}
