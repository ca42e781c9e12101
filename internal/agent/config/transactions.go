package config

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/format/keyed"
)

// Prometheus selects the task's own counter that counts its transactions.
type Prometheus struct {
	Port   int               `key:"port" help:"port on the loopback interface of the task that serves Prometheus text format" min:"1" max:"65535"`
	Path   string            `key:"path" help:"path of the metrics; empty: /metrics"`
	Metric string            `key:"metric" help:"a counter, or the _count of a histogram or summary"`
	Labels map[string]string `key:"labels" help:"only series that have all of these labels; their values are added"`
}

// Uprobe selects the place in a task's program that is reached once per transaction.
type Uprobe struct {
	Binary  string  `key:"binary" help:"program or library, as the task sees it"`
	Symbol  string  `key:"symbol" help:"function, as nm or go tool nm lists it"`
	Offset  string  `key:"offset" help:"instead of symbol: an instruction's offset in the file, e.g. 0x4a20"`
	BuildID string  `key:"build_id" help:"build ID of the file that the offset is for (readelf -n); other builds are refused"`
	MaxRate float64 `key:"max_rate" help:"hits/s of the whole machine above which the uprobe is removed at once; 0: 2000" min:"0" max:"1000000"`
}

// DefaultMaxRate is Uprobe.MaxRate if that is 0, in hits per second: 0.2 to 0.6 % of a
// CPU on bare metal, up to 2 % in a virtual machine.
const DefaultMaxRate = 2000

// Place is Offset as a number; Validate has checked that it is one.
func (u *Uprobe) Place() uint64 {
	n, _ := strconv.ParseUint(u.Offset, 0, 63)
	return n
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	hexDigits  = regexp.MustCompile(`^([0-9a-fA-F]{2}){4,64}$`)
)

// transactions checks a rule's ways to count transactions.
func (r *Matcher) transactions(key string) []Problem {
	var ps problems
	add := func(name, value, want string) { ps.add(key+"."+name, value, want) }
	absolute := func(name, value string) {
		if !strings.HasPrefix(value, "/") {
			add(name, strconv.Quote(value), "an absolute path")
		}
	}
	if r.Progress != "" {
		absolute("progress", r.Progress)
	}
	var given []string
	for name, is := range map[string]bool{"progress": r.Progress != "", "prometheus": r.Prometheus != nil, "uprobe": r.Uprobe != nil} {
		if is {
			given = append(given, name)
		}
	}
	if slices.Sort(given); len(given) > 1 {
		add(given[1], "given with "+given[0], "one of progress, prometheus, uprobe")
	}
	if p := r.Prometheus; p != nil {
		ps = append(ps, keyed.Check(key+".prometheus.", p)...)
		if p.Path != "" {
			absolute("prometheus.path", p.Path)
		}
		if !metricName.MatchString(p.Metric) {
			add("prometheus.metric", strconv.Quote(p.Metric), "a metric's name, e.g. http_requests_total")
		}
		for name := range p.Labels {
			if !labelName.MatchString(name) {
				add("prometheus.labels", strconv.Quote(name), "a label's name, e.g. handler")
			}
		}
	}
	if u := r.Uprobe; u != nil {
		ps = append(ps, keyed.Check(key+".uprobe.", u)...)
		absolute("uprobe.binary", u.Binary)
		_, err := strconv.ParseUint(u.Offset, 0, 63)
		switch {
		case (u.Symbol == "") == (u.Offset == ""):
			add("uprobe.symbol", strconv.Quote(u.Symbol), "either symbol, or offset and build_id")
		case u.Offset != "" && err != nil:
			add("uprobe.offset", strconv.Quote(u.Offset), "a number, e.g. 0x4a20")
		}
		if u.Offset != "" && !hexDigits.MatchString(u.BuildID) || u.BuildID != "" && u.Offset == "" {
			add("uprobe.build_id", strconv.Quote(u.BuildID), "the build ID that readelf -n prints, together with offset only")
		}
	}
	return ps
}
