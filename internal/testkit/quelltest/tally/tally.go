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
	Action, Package, Test, Output string
	Elapsed                       float64
}

// test is a test or a subtest.
type test struct {
	pkg, name   string
	output      strings.Builder
	action      string // pass, fail, skip; "" while it runs
	subtests    int    // direct ones that are counted
	failedBelow bool   // a subtest failed
}

// tally counts the tests of one or more runs of go test.
type tally struct {
	w     io.Writer
	tests map[[2]string]*test // by package and name, of the newest run
	order []*test             // of all runs, as they began

	packageOutput  map[string]*strings.Builder // by package: output that belongs to no test
	packages       int                         // that ended
	failedPackages int
	explained      int      // failed packages before the last exit of go test
	unexplained    bool     // it failed and no package did
	failedAlone    []string // packages that failed without a failed test
	figures        []string // logged by tests
}

func newTally(w io.Writer) *tally {
	return &tally{w: w, tests: map[[2]string]*test{}, packageOutput: map[string]*strings.Builder{}}
}

// read handles events until the stream ends. Lines that are no JSON (a linker's
// errors) are passed on.
func (t *tally) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(t.w, "%s", line)
			} else {
				t.handle(e)
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

func (t *tally) handle(e event) {
	switch {
	case e.Action == "build-output":
		fmt.Fprint(t.w, e.Output)
	case e.Action == "exit":
		t.unexplained = t.unexplained || t.failedPackages == t.explained
		t.explained = t.failedPackages
	case e.Action == "build-fail":
		// Each package that imports the broken one has a "fail" of its own.
	case e.Test != "":
		t.handleTest(e)
	case e.Action == "output":
		if t.packageOutput[e.Package] == nil {
			t.packageOutput[e.Package] = &strings.Builder{}
		}
		t.packageOutput[e.Package].WriteString(e.Output)
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		t.endPackage(e)
	}
}

func (t *tally) handleTest(e event) {
	key := [2]string{e.Package, e.Test}
	c := t.tests[key]
	if c == nil || e.Action == "run" && c.action != "" { // a later run of go test says nothing of the one before
		c = &test{pkg: e.Package, name: e.Test}
		t.tests[key] = c
		t.order = append(t.order, c)
		// The seeds of a fuzz target are one test.
		if p := t.parent(c); p != nil && !strings.HasPrefix(c.name, "Fuzz") {
			p.subtests++
		}
	}
	switch e.Action {
	case "output":
		c.output.WriteString(e.Output)
		if m := figure.FindStringSubmatch(e.Output); m != nil {
			t.figures = append(t.figures, c.name+": "+m[1])
		}
	case "pass", "fail", "skip":
		c.action = e.Action
		if e.Action == "fail" {
			if p := t.parent(c); p != nil {
				p.failedBelow = true
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
	t.packages++
	count, failed := 0, false
	for _, c := range t.order {
		if c.pkg != e.Package {
			continue
		}
		count++
		if c.action == "" { // the process died while it ran
			c.action = "fail"
			fmt.Fprint(t.w, c.output.String())
		}
		failed = failed || c.action == "fail"
	}
	if e.Action == "fail" {
		t.failedPackages++
		if out := t.packageOutput[e.Package]; out != nil {
			fmt.Fprint(t.w, out.String())
		}
		if !failed {
			t.failedAlone = append(t.failedAlone, e.Package)
		}
	}
	if count > 0 || e.Action == "fail" {
		verdict := map[string]string{"pass": "ok", "fail": "FAIL", "skip": "?"}[e.Action]
		fmt.Fprintf(t.w, "%-5s %-60s %6.1f s\n", verdict, e.Package, e.Elapsed)
	}
}

// counts reports whether a test is counted: a test with subtests is not, unless
// it failed and none of them did.
func (c *test) counts() bool {
	if strings.HasPrefix(c.name, "Fuzz") && strings.Contains(c.name, "/") {
		return false
	}
	return c.subtests == 0 || c.action == "fail" && !c.failedBelow
}

// figure matches a logged line that is shown even if the test passes.
var figure = regexp.MustCompile(`\bfigure: (.*)`)

// need matches the message of quelltest.Skip.
var need = regexp.MustCompile(`needs ([\w.-]+): (.*)`)

// summary prints the end of the run and reports whether it succeeded.
func (t *tally) summary() bool {
	var passed, unnamed int
	var failed, skipped []string
	byNeed := map[string]int{}
	for _, c := range t.order {
		switch {
		case !c.counts():
		case c.action == "pass":
			passed++
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
	for _, p := range t.failedAlone {
		failed = append(failed, p+" (the package itself)")
	}
	t.list("figures", t.figures)
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
	none := passed+len(failed)+len(skipped) == 0
	switch {
	case t.packages == 0:
		fmt.Fprintln(t.w, "no package was tested")
	case none: // a name that no test has
		fmt.Fprintln(t.w, "no test ran")
	}
	if t.unexplained {
		fmt.Fprintln(t.w, "go test failed by itself")
	}
	fmt.Fprintf(t.w, "%d passed, %d failed, %d skipped\n", passed, len(failed), len(skipped))
	return len(failed) == 0 && unnamed == 0 && !none && !t.unexplained
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
