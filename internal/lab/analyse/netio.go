package analyse

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/stat"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
)

// NetIO is the result of a study of web servers that share a host (Mei et al.,
// "Performance Measurements and Analysis of Network I/O Applications in Virtualized
// Cloud", sections II-C to IV).
type NetIO struct {
	Bases  []NetBase  `json:"bases"`  // table I
	Pairs  []NetPair  `json:"pairs"`  // figure 3
	Points []NetPoint `json:"points"` // table II, figures 4 and 5
}

// NetBase is the maximum rate at which one server alone serves a file.
type NetBase struct {
	File       string   `json:"file"` // workload of the client
	Rate       Interval `json:"rate"` // good answers/s
	NetIO      Interval `json:"net_io"`
	Response   Interval `json:"response"` // s, mean
	CPU        Interval `json:"cpu"`      // CPU seconds/s of the server
	Bottleneck string   `json:"bottleneck"`
}

// The bottlenecks. A resource is the bottleneck if at least nine tenths of it are used.
const (
	BoundCPU     = "cpu"
	BoundNetwork = "network"
	BoundNeither = "neither"
	bound        = 0.9
)

// NetPair is two servers at once, each under maximum load, or the second idle, as the
// paper's (1, idle): then Parts has one share, and there is nothing to compare it with.
type NetPair struct {
	Case  string     `json:"case"`
	Parts []NetShare `json:"parts"`
	// Score is Σ Tᵢ/Bᵢ, Bᵢ the base case's rate of the file (section III); for two
	// servers 2 means no interference.
	Score Interval `json:"score"`
	// Slowdown is the mean of Bᵢ/Tᵢ (ANTT), Fairness the smallest share divided by the
	// largest.
	Slowdown stat.Float `json:"slowdown"`
	Fairness stat.Float `json:"fairness"`
	// Favoured is the part that keeps more of its base case, "" if the interval of the
	// difference, Advantage, contains 0.
	Favoured  string   `json:"favoured,omitempty"`
	Advantage Interval `json:"advantage"`
}

// NetShare is one server of a pair.
type NetShare struct {
	Part  string   `json:"part"`
	File  string   `json:"file"`
	Rate  Interval `json:"rate"`
	Share Interval `json:"share"` // of the base case's rate
}

// NetPoint is one server and its client, at one rate of one case: the eight measures of
// section III, as far as the environment has them, and some additional ones. Values
// that were not measured are NaN.
type NetPoint struct {
	Case   string `json:"case"`
	Rate   string `json:"rate"`   // the level
	Client string `json:"client"` // the client's part
	Server string `json:"server"`
	File   string `json:"file"`
	// Offered is the requested share of the base case's rate; 0: the maximum.
	Offered    float64  `json:"offered"`
	Throughput Interval `json:"throughput"` // good answers/s
	NetIO      Interval `json:"net_io"`     // bytes/s of the files in good answers; what TCP sent again does not count
	Response   Interval `json:"response"`   // s
	P99        Interval `json:"p99"`        // s
	// Unanswered is the share of requests that failed, or that found no free connection in time:
	// Response and P99 are of the good answers alone.
	Unanswered Interval `json:"unanswered"`
	CPU        Interval `json:"cpu"`        // 1: CPU seconds/s
	Events     Interval `json:"events"`     // 2, per second; EventsAre names their kind
	Switches   Interval `json:"switches"`   // 3, per second, of all servers
	Pages      Interval `json:"pages"`      // 4, per second; PagesAre names their kind
	PerExec    Interval `json:"per_exec"`   // 5, pages per execution
	Waiting    Interval `json:"waiting"`    // 6, share of its threads' time
	Blocked    Interval `json:"blocked"`    // 7
	Executions Interval `json:"executions"` // 8, per second
	EventsAre  string   `json:"events_are"`
	PagesAre   string   `json:"pages_are"`
	// Of the first domain, on Xen.
	DriverCPU     Interval `json:"driver_cpu"`     // CPU seconds/s
	DriverWaiting Interval `json:"driver_waiting"` // share of its virtual CPUs' time
	DriverBlocked Interval `json:"driver_blocked"`
}

// The kinds of events that are counted.
const (
	EventsXen     = "the server's entries to the hypervisor, by Xen's records"
	EventsKVM     = "interrupts that KVM injected, and exits for devices"
	EventsWakeups = "wake-ups (a proxy: there is no hypervisor)"
)

// The kinds of pages that are counted. Xen of the paper's time exchanged a page for each
// packet, whatever the packet's size, so bytes divided by a page's size are no stand-in: they
// order the files of table II the other way round.
const (
	PagesGrants  = "pages of the server that another domain mapped, by Xen's records"
	PagesPackets = "packets of the server's network interface in both directions (a stand-in: Xen exchanged a page for each)"
)

// webClients returns a cell's parts that are active web clients; a pair has several.
func webClients(c *study.Cell) (parts []*study.Part) {
	for i := range c.Parts {
		if p := &c.Parts[i]; p.Workload.Builtin == study.HTTPClient && !p.Idle {
			parts = append(parts, p)
		}
	}
	return parts
}

// atMost reports whether all clients of a cell request the maximum.
func atMost(c *study.Cell) bool {
	return !slices.ContainsFunc(webClients(c), func(p *study.Part) bool { return p.Target > 0 })
}

// serverOf returns the part whose address a client asks, nil if there is none.
func serverOf(c *study.Cell, client *study.Part) *study.Part {
	for i := range c.Parts {
		p := &c.Parts[i]
		if host, _, ok := strings.Cut(p.Address, "/"); ok && host == client.Asks {
			return p
		}
	}
	return nil
}

// alone reports whether a cell is a base case: one client requests the maximum, and
// there is no other server ("VM2 is not created").
func alone(c *study.Cell) bool { return len(webClients(c)) == 1 && servers(c) == 1 && atMost(c) }

func servers(c *study.Cell) (n int) {
	for i := range c.Parts {
		if c.Parts[i].Workload.Builtin == study.HTTPServer {
			n++
		}
	}
	return n
}

// IsBase reports whether a cell is a base case of a study of web servers.
func IsBase(c *study.Cell) bool { return c.Kind == study.Main && alone(c) }

// BaseRate is the mean rate of a workload over the valid runs of its base case for a cell; ok is
// false, and the rate NaN, if there are none. cells are all of the study. With factors other than
// the case and the rate there are several base cases, e.g. one at each placement: those with most
// of the cell's levels count.
func BaseRate(cells []study.Cell, runs []result.Run, c *study.Cell, workload string) (rate float64, ok bool) {
	most, near := -1, map[string]bool{}
	for i := range cells {
		b := &cells[i]
		if !IsBase(b) || webClients(b)[0].Workload.Name != workload {
			continue
		}
		common := 0
		for _, l := range b.Levels {
			if slices.Contains(c.Levels, l) {
				common++
			}
		}
		if common > most {
			most, near = common, map[string]bool{}
		}
		if common == most {
			near[b.Key()] = true
		}
	}
	base := slices.DeleteFunc(valid(runs), func(r *result.Run) bool { return !near[r.CellKey] })
	all := rates(base, "")
	return stat.Mean(all), len(all) > 0
}

// rates returns a part's throughput in each run; "" stands for the first client.
func rates(runs []*result.Run, part string) (all []float64) {
	for _, r := range runs {
		name := part
		if name == "" {
			name = webClients(&r.Cell)[0].Name()
		}
		if p := partOf(r, name); p != nil {
			all = append(all, Throughput(p.Iterations, r.Window.From, r.Window.To))
		}
	}
	return all
}

// NetworkIO computes the results for the factors that name the case and the rate; false
// if no run has a web client.
func NetworkIO(runs []result.Run, caseFactor, rateFactor string) (NetIO, bool) {
	good := valid(runs)
	var n NetIO
	// Of each file, by the levels of other factors, which stored studies may have.
	bases := map[string]map[string][]float64{}
	others := func(c *study.Cell) string { return study.LevelText(c.Levels, caseFactor, rateFactor) }
	for _, group := range byCell(good, study.Main) {
		c := &group[0].Cell
		clients := webClients(c)
		for _, p := range clients {
			n.Points = append(n.Points, netPoint(group, p, c.Level(caseFactor), c.Level(rateFactor)))
		}
		if IsBase(c) {
			point := &n.Points[len(n.Points)-1]
			if bases[others(c)] == nil {
				bases[others(c)] = map[string][]float64{}
			}
			bases[others(c)][point.File] = rates(group, "")
			n.Bases = append(n.Bases, NetBase{File: point.File, Rate: point.Throughput, NetIO: point.NetIO, Response: point.Response, CPU: point.CPU, Bottleneck: bottleneck(group, clients[0], point)})
		}
	}
	for _, group := range byCell(good, study.Main) {
		if c := &group[0].Cell; servers(c) == 2 && len(webClients(c)) > 0 && atMost(c) {
			if p, ok := netPair(group, bases[others(c)], c.Level(caseFactor)); ok {
				n.Pairs = append(n.Pairs, p)
			}
		}
	}
	slices.SortStableFunc(n.Bases, func(a, b NetBase) int { return cmp.Compare(size(a.File), size(b.File)) })
	return n, len(n.Points) > 0
}

// size returns the number in a file's name, as a sort key.
func size(name string) int {
	digits := ""
	for _, r := range name {
		if r >= '0' && r <= '9' {
			digits += string(r)
		}
	}
	n, _ := strconv.Atoi(digits)
	return n
}

// bottleneck names the resource that a server alone has used up. The link carries more than
// the files: headers and handshakes. What reached the client is what it has carried; what a
// queue dropped and TCP sent again is not in it.
func bottleneck(group []*result.Run, client *study.Part, p *NetPoint) string {
	c := &group[0].Cell
	s := serverOf(c, client)
	if s == nil {
		return BoundNeither
	}
	carried := overRuns(group, func(r *result.Run) float64 {
		part := partOf(r, client.Name())
		if part == nil {
			return math.NaN()
		}
		return valueOf(part.Events, result.DomainReceived) / (r.Window.To - r.Window.From).Seconds()
	}).Value
	if !finite(carried) {
		carried = p.NetIO.Value
	}
	link := float64(c.Networks[s.Environment.Network].Rate) / 8
	cpus := float64(max(1, s.Environment.CPUs))
	switch {
	case p.CPU.Value >= bound*cpus:
		return BoundCPU
	case link > 0 && carried >= bound*link:
		return BoundNetwork
	}
	return BoundNeither
}

func netPoint(group []*result.Run, p *study.Part, name, rate string) NetPoint {
	c := &group[0].Cell
	point := NetPoint{Case: name, Rate: rate, Client: p.Name(), File: p.Workload.Name, Offered: float64(p.Target), PagesAre: PagesPackets}
	server := serverOf(c, p)
	if server != nil {
		point.Server = server.Name()
	}
	said := func(name string) Interval {
		return overRuns(group, func(r *result.Run) float64 { return reported(r, point.Client, name) })
	}
	point.Throughput = meanInterval(rates(group, point.Client), "t over runs")
	point.Response, point.P99, point.NetIO = said(role.HTTPLatency), said(role.HTTPP99), said(role.HTTPBytes)
	point.Unanswered = overRuns(group, func(r *result.Run) float64 {
		lost, seconds := reported(r, point.Client, role.HTTPErrors)+reported(r, point.Client, role.HTTPDropped), p.Workload.Time.Seconds()
		if asked := reported(r, point.Client, role.HTTPOffered) * seconds; asked > 0 {
			return lost / asked // an answer may come after the counted time
		}
		return lost / (lost + reported(r, point.Client, role.HTTPRate)*seconds)
	})
	served := func(of func(d domain) float64) Interval {
		return overRuns(group, func(r *result.Run) float64 {
			server := partOf(r, point.Server)
			if server == nil {
				return math.NaN()
			}
			return of(domainOf(r, server))
		})
	}
	point.CPU = served(func(d domain) float64 { return d.part.CPUTime.Seconds() / d.window })
	pages := result.DomainPackets
	if point.Pages = served(func(d domain) float64 { return d.event(result.DomainGrants) / d.seconds }); finite(point.Pages.Value) {
		point.PagesAre, pages = PagesGrants, result.DomainGrants
	} else {
		point.Pages = served(func(d domain) float64 { return d.event(pages) / d.seconds })
	}
	point.Executions = served(domain.executions)
	point.PerExec = served(func(d domain) float64 { return d.event(pages) / d.event(result.DomainExecutions) })
	point.Waiting = served(func(d domain) float64 { return d.event(result.DomainWaiting) / d.threads() })
	point.Blocked = served(func(d domain) float64 {
		return blocked(d.event(result.DomainRunning), d.event(result.DomainWaiting), d.threads())
	})
	point.DriverCPU = served(func(d domain) float64 { return d.event(result.DriverRunning) / d.seconds })
	point.DriverWaiting = served(func(d domain) float64 { return d.event(result.DriverWaiting) / d.driver() })
	point.DriverBlocked = served(func(d domain) float64 {
		return blocked(d.event(result.DriverRunning), d.event(result.DriverWaiting), d.driver())
	})
	for _, e := range []struct {
		are string
		of  func(domain) float64
	}{
		{EventsXen, func(d domain) float64 { return d.event(result.DomainEntries) / d.seconds }},
		{EventsKVM, domain.injected},
		{EventsWakeups, func(d domain) float64 { return d.event(result.DomainWakeups) / d.seconds }},
	} {
		point.EventsAre, point.Events = e.are, served(e.of)
		if finite(point.Events.Value) {
			break
		}
	}
	point.Switches = overRuns(group, func(r *result.Run) float64 {
		sum := 0.0
		for _, q := range r.Cell.Parts {
			if q.Workload.Builtin == study.HTTPServer {
				if s := partOf(r, q.Name()); s != nil {
					sum += domainOf(r, s).executions()
				}
			}
		}
		return sum
	})
	return point
}

// domain is a part in the time in which it was measured as one: the window, or Xen's records.
type domain struct {
	part    *result.Part
	seconds float64
	window  float64 // s, of the CPU time
}

func domainOf(r *result.Run, p *result.Part) domain {
	window := (r.Window.To - r.Window.From).Seconds()
	if span, ok := p.Events[result.DomainSpan]; ok {
		return domain{p, span, window}
	}
	return domain{p, window, window}
}

func valueOf(m map[string]float64, name string) float64 {
	if v, ok := m[name]; ok {
		return v
	}
	return math.NaN()
}

// reported is a value that a part has reported in a run, NaN if there is none.
func reported(r *result.Run, part, name string) float64 {
	if p := partOf(r, part); p != nil {
		return valueOf(p.Values, name)
	}
	return math.NaN()
}

func (d domain) event(name string) float64 { return valueOf(d.part.Events, name) }

// threads is the total time of all threads, in seconds.
func (d domain) threads() float64 { return d.event(result.DomainThreads) * d.seconds }

// driver is the total time of the first domain's virtual CPUs, in seconds.
func (d domain) driver() float64 { return d.event(result.DriverThreads) * d.seconds }

// blocked is the share of all time that was neither running nor waiting.
func blocked(running, waiting, all float64) float64 { return math.Max(0, 1-(waiting+running)/all) }

func (d domain) executions() float64 { return d.event(result.DomainExecutions) / d.seconds }

func (d domain) injected() float64 {
	return (d.event(result.DomainInjected) + d.event(result.DomainKicks)) / d.seconds
}

// netPair compares two servers at once with each alone. The score's interval is from
// the variances of the pair's runs and of each base case's: t with Welch's degrees of
// freedom.
func netPair(group []*result.Run, bases map[string][]float64, name string) (NetPair, bool) {
	p := NetPair{Case: name}
	clients := webClients(&group[0].Cell)
	var shares [][]float64 // by part, then run
	var spread, weight float64
	add := func(v float64, n int) { // a mean of n has variance v
		spread += v
		weight += v * v / float64(n-1)
	}
	known := true
	share := map[string]float64{} // by file: Σ of the shares of its parts
	for _, c := range clients {
		base := bases[c.Workload.Name]
		got := rates(group, c.Name())
		if len(base) == 0 || len(got) != len(group) {
			return p, false
		}
		b := stat.Mean(base)
		var of []float64
		for _, t := range got {
			of = append(of, t/b)
		}
		shares = append(shares, of)
		share[c.Workload.Name] += stat.Mean(of)
		p.Parts = append(p.Parts, NetShare{c.Name(), c.Workload.Name, meanInterval(got, "t over runs"), meanInterval(of, "t over runs")})
	}
	var scores, ahead []float64
	for k := range group {
		sum := 0.0
		for i := range shares {
			sum += shares[i][k]
		}
		if scores = append(scores, sum); len(shares) == 2 {
			ahead = append(ahead, shares[0][k]-shares[1][k])
		}
	}
	if len(scores) > 1 {
		add(variance(scores)/float64(len(scores)), len(scores))
	}
	for file, s := range share {
		base := bases[file]
		if len(base) < 2 {
			known = false
			continue
		}
		b := stat.Mean(base)
		add(s*s*variance(base)/float64(len(base))/(b*b), len(base))
	}
	p.Score = meanInterval(scores, "t of the variances of the pair's runs and of the base cases'")
	p.Score.Low, p.Score.High = math.NaN(), math.NaN()
	if known && len(scores) > 1 {
		h := 0.0
		if spread > 0 {
			h = tQuantile(spread*spread/weight) * math.Sqrt(spread)
		}
		p.Score.Low, p.Score.High = p.Score.Value-h, p.Score.Value+h
	}
	p.Advantage = meanInterval(ahead, "t over runs, of the difference of shares")
	if len(shares) == 1 {
		p.Slowdown, p.Fairness = stat.Float(1/p.Parts[0].Share.Value), stat.Float(math.NaN())
		return p, true
	}
	a, b := p.Parts[0].Share.Value, p.Parts[1].Share.Value
	p.Slowdown, p.Fairness = stat.Float((1/a+1/b)/2), stat.Float(math.Min(a, b)/math.Max(a, b))
	switch {
	case p.Advantage.Low > 0:
		p.Favoured = p.Parts[0].Part
	case p.Advantage.High < 0:
		p.Favoured = p.Parts[1].Part
	}
	return p, true
}
