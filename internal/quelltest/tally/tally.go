package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is a line of go test -json (go doc test2json, go help buildjson).
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// test is what is known of one test or subtest.
type test struct {
	pkg, name string
	output    strings.Builder
	action    string   // pass, fail, skip; "" while it runs
	children  int      // subtests that count for themselves
	failed    bool     // one of the children failed
	args      []string // go test's, of the run it was in
	second    bool     // it failed before
}

type tally struct {
	w     io.Writer
	tests map[[2]string]*test
	order []*test
	other map[string]*strings.Builder // output by package that belongs to no test
	shown []string                    // figures that tests logged
	lost  []string                    // packages that failed with no failed test
	seen  int                         // packages that ended
	args  []string                    // go test's, of this run

	failures int             // packages that failed, in all runs
	serious  map[string]bool // packages with a failure that no second run excuses
}

func newTally(w io.Writer) *tally {
	return &tally{w: w, tests: map[[2]string]*test{}, other: map[string]*strings.Builder{}, serious: map[string]bool{}}
}

// read takes events until the stream ends. Lines that are no JSON (a linker's
// complaint) are passed on.
func (t *tally) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(t.w, "%s", line)
			} else {
				t.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (t *tally) take(e event) {
	switch {
	case e.Action == "build-output":
		fmt.Fprint(t.w, e.Output)
	case e.Action == "build-fail":
		// The packages that needed it say "fail" themselves.
	case e.Test != "":
		t.takeTest(e)
	case e.Action == "output":
		if t.other[e.Package] == nil {
			t.other[e.Package] = &strings.Builder{}
		}
		t.other[e.Package].WriteString(e.Output)
		t.serious[e.Package] = t.serious[e.Package] || serious.MatchString(e.Output)
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		t.endPackage(e)
	}
}

func (t *tally) takeTest(e event) {
	key := [2]string{e.Package, e.Test}
	c := t.tests[key]
	if c == nil {
		c = &test{pkg: e.Package, name: e.Test, args: t.args}
		t.tests[key] = c
		t.order = append(t.order, c)
		// The seeds of a fuzz target are one test.
		if p := t.parent(c); p != nil && !strings.HasPrefix(c.name, "Fuzz") {
			p.children++
		}
	}
	switch e.Action {
	case "output":
		c.output.WriteString(e.Output)
		t.serious[e.Package] = t.serious[e.Package] || serious.MatchString(e.Output)
		if m := figure.FindStringSubmatch(e.Output); m != nil {
			t.shown = append(t.shown, c.name+": "+m[1])
		}
	case "pass", "fail", "skip":
		c.action = e.Action
		if e.Action == "fail" {
			if p := t.parent(c); p != nil {
				p.failed = true
			}
			fmt.Fprintf(t.w, "%s", c.output.String())
		}
		if e.Action != "skip" {
			c.output.Reset()
		}
	}
}

func (t *tally) parent(c *test) *test {
	i := strings.LastIndexByte(c.name, '/')
	if i < 0 {
		return nil
	}
	return t.tests[[2]string{c.pkg, c.name[:i]}]
}

func (t *tally) endPackage(e event) {
	t.seen++
	verdict := map[string]string{"pass": "ok", "fail": "FAIL", "skip": "?"}[e.Action]
	count, broken := 0, false
	for _, c := range t.order {
		if c.pkg != e.Package {
			continue
		}
		count++
		if c.action == "" { // the process died under it, and whoever was to come never ran
			c.action = "fail"
			t.serious[e.Package] = true
			fmt.Fprint(t.w, c.output.String())
		}
		broken = broken || c.action == "fail"
	}
	if e.Action == "fail" {
		t.failures++
		if out := t.other[e.Package]; out != nil {
			fmt.Fprint(t.w, out.String())
			out.Reset()
		}
		if !broken {
			t.lost = append(t.lost, e.Package)
		}
	}
	if count > 0 || e.Action == "fail" {
		fmt.Fprintf(t.w, "%-5s %-60s %6.1f s\n", verdict, e.Package, e.Elapsed)
	}
}

// serious is what a test prints that no second run makes good.
var serious = regexp.MustCompile(`^panic: |^fatal error: |WARNING: DATA RACE|race detected during execution`)

// maxSecond is how many tests may have failed for a second run: more is no accident.
const maxSecond = 4

// second is the runs that try again what failed, one for each test, or subtest of
// the first level, and forgets how those went.
func (t *tally) second() (all [][]string) {
	if len(t.lost) > 0 {
		return nil
	}
	var roots []*test
	for _, c := range t.order {
		if c.action != "fail" || strings.Count(c.name, "/") > 1 || c.failed && strings.Count(c.name, "/") == 0 {
			continue
		}
		if t.serious[c.pkg] {
			return nil
		}
		roots = append(roots, c)
	}
	if len(roots) > maxSecond {
		return nil
	}
	for _, c := range roots {
		for _, d := range t.order {
			above, below := strings.HasPrefix(c.name, d.name+"/"), strings.HasPrefix(d.name, c.name+"/")
			if d.pkg == c.pkg && (d == c || above || below) && d.action != "skip" {
				d.second = d.second || d.action == "fail"
				d.action, d.failed = "", false
			}
		}
		var levels []string
		for level := range strings.SplitSeq(c.name, "/") {
			levels = append(levels, "^"+regexp.QuoteMeta(level)+"$")
		}
		all = append(all, append(flags(c.args), "-count=1", "-run", strings.Join(levels, "/"), c.pkg))
	}
	return all
}

// flags is go test's arguments without the packages at their end.
func flags(args []string) []string {
	n := len(args)
	for n > 0 && strings.Contains(args[n-1], "/") && (n < 2 || args[n-2] != "-run") {
		n--
	}
	return args[:n:n]
}

// counts reports whether a test counts by itself: a group counts through its
// subtests, unless it failed and none of them did.
func (c *test) counts() bool {
	if strings.HasPrefix(c.name, "Fuzz") && strings.Contains(c.name, "/") {
		return false
	}
	return c.children == 0 || c.action == "fail" && !c.failed
}

// figure is a line that a test logs for people to see, also where it passes.
var figure = regexp.MustCompile(`\bfigure: (.*)`)

var need = regexp.MustCompile(`needs ([\w.-]+): (.*)`)

// summary prints the end of the run and reports whether all is well.
func (t *tally) summary() bool {
	var passed, unnamed int
	var failed, second, skipped []string
	byNeed := map[string]int{}
	for _, c := range t.order {
		switch {
		case !c.counts():
		case c.action == "pass":
			passed++
			if c.second {
				second = append(second, c.pkg+" "+c.name)
			}
		case c.action == "fail":
			failed = append(failed, c.pkg+" "+c.name)
		case c.action == "skip":
			m := need.FindStringSubmatch(c.output.String())
			if m == nil {
				unnamed++
				m = []string{"", "?", "names no capability, which counts as a failure"}
			}
			byNeed[m[1]]++
			skipped = append(skipped, fmt.Sprintf("%s %s: needs %s: %s", c.pkg, c.name, m[1], m[2]))
		}
	}
	for _, p := range t.lost {
		failed = append(failed, p+" (the package itself)")
	}
	t.list("figures", t.shown)
	t.list("failed, then passed alone", second)
	t.list("failed", failed)
	t.list("skipped", skipped)
	if len(byNeed) > 0 {
		var needs []string
		for n, count := range byNeed {
			needs = append(needs, fmt.Sprintf("%s (%d)", n, count))
		}
		slices.Sort(needs)
		fmt.Fprintf(t.w, "missing here: %s\n", strings.Join(needs, ", "))
	}
	if t.seen == 0 {
		fmt.Fprintln(t.w, "no package was tested")
	}
	fmt.Fprintf(t.w, "%d passed, %d failed, %d skipped\n", passed, len(failed), len(skipped))
	return len(failed) == 0 && unnamed == 0 && t.seen > 0
}

func (t *tally) list(title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(t.w, "%s:\n", title)
	for _, l := range lines {
		fmt.Fprintf(t.w, "  %s\n", l)
	}
}
