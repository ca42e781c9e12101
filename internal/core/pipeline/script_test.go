package pipeline_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

var update = flag.Bool("update", false, "accept what the scripts print")

// TestScripts runs testdata/*.txt. A script is comments (#) and steps. A step is
// commands, a line of dashes, and the expected output up to an empty line:
//
//	machine KEY=VALUE …           start anew; see world.machine
//	task NAME, CLASS[, never-cap][, protected][, MEAN±SIGMA]
//	tenants N, CLASS, USAGE       N steady tasks
//	samples                       a table follows: names, then a row an interval
//	generate VICTIM[, case N]     see world.generate
//	suspects | caps | incidents   print the last finding's, those in force, those open
//	cap NAME, rate=R, for=D, by=NAME, why=TEXT[, for-victim=NAME]   an operator's cap
//	uncap NAME, why=TEXT
//	mode off|advise|on
//	gone NAME
//	enforcer works | fails CAUSE | holds
//	deliver                       the actions that the enforcer held
//	takeover NAME                 another program changes the limit
//	wait D
//	stop
//
// Columns are two blanks apart. A cell is COST@USAGE, or USAGE if the cost is not
// counted, or - for no reading; !FLAG … may follow. Tasks without a column continue as
// before. A row that begins with N* is repeated N times. What holds for any script is
// checked after every call: see world.check.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d scripts, %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(text))
			if got == string(text) {
				return
			}
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s prints something else:\n%s", file, difference(string(text), got))
		})
	}
}

// runScript returns the script with the current output of its commands.
func runScript(t *testing.T, text string) string {
	var b strings.Builder
	w := newWorld(t)
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i := 0; i < len(lines); {
		if lines[i] == "" || strings.HasPrefix(lines[i], "#") {
			fmt.Fprintln(&b, lines[i])
			i++
			continue
		}
		end := i + slices.Index(lines[i:], "----")
		if end < i {
			t.Fatalf("line %d: no ---- follows", i+1)
		}
		for _, l := range lines[i : end+1] {
			fmt.Fprintln(&b, l)
		}
		w.run(lines[i:end])
		b.WriteString(w.printed())
		for i = end + 1; i < len(lines) && lines[i] != ""; i++ {
		}
	}
	w.end()
	return b.String()
}

// difference shows both texts from the first line that differs.
func difference(want, got string) string {
	a, b := strings.Split(want, "\n"), strings.Split(got, "\n")
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	cut := func(s []string) string { return strings.Join(s[min(i, len(s)):min(i+12, len(s))], "\n") }
	return fmt.Sprintf("line %d\n--- in the file\n%s\n--- now\n%s", i+1, cut(a), cut(b))
}

// run executes the commands of one step.
func (w *world) run(lines []string) {
	w.t.Helper()
	for i := 0; i < len(lines); i++ {
		verb, rest, _ := strings.Cut(lines[i], " ")
		args := strings.Split(rest, ", ")
		table := func() (all []string) { // the indented lines that follow
			for i+1 < len(lines) && strings.HasPrefix(lines[i+1], " ") {
				i++
				all = append(all, lines[i])
			}
			return all
		}
		switch verb {
		case "machine":
			w.machine(strings.Fields(rest))
		case "task":
			w.addTask(args)
		case "tenants":
			n := int(w.number(args[0]))
			for i := range n {
				name := fmt.Sprintf("tenant %02d", i+1)
				w.addTask([]string{name, args[1]})
				w.now.cells[name] = w.cell(args[2])
			}
		case "samples":
			w.samples(table())
		case "generate":
			w.generate(args, table())
		case "suspects", "caps", "incidents":
			w.show(verb)
		case "cap", "uncap":
			w.operator(verb, args)
		case "mode":
			w.setMode(rest)
		case "gone":
			w.gone(rest)
		case "enforcer":
			w.enforcer, w.cause, _ = strings.Cut(rest, " ")
		case "deliver":
			w.deliver()
		case "takeover":
			w.takeover(rest)
		case "wait":
			w.advance(w.now.at.Add(w.duration(rest)))
		case "stop":
			w.stop()
		default:
			w.t.Fatalf("%q: no such command", lines[i])
		}
	}
}

// samples feeds the rows of a table, one per interval.
func (w *world) samples(table []string) {
	if len(table) < 2 {
		w.t.Fatal("samples: want names and rows")
	}
	names := columns(table[0])
	w.said = map[sample.TaskName]string{}
	for _, line := range table[1:] {
		times := 1
		if n, rest, ok := strings.Cut(line, "*"); ok {
			times, line = int(w.number(strings.TrimSpace(n))), rest
		}
		cells := columns(line)
		if len(cells) != len(names) {
			w.t.Fatalf("%q: %d cells for %d names", line, len(cells), len(names))
		}
		for range times {
			for i, name := range names {
				if w.tasks[name] == nil {
					w.t.Fatalf("samples: task %q is not known", name)
				}
				w.now.cells[name] = w.cell(cells[i])
			}
			w.interval()
		}
	}
}

func columns(line string) (cells []string) {
	for c := range strings.SplitSeq(line, "  ") {
		if c = strings.TrimSpace(c); c != "" {
			cells = append(cells, c)
		}
	}
	return cells
}

// cell is what a task does in an interval.
type cell struct {
	absent bool
	cost   float64 // NaN if not counted
	usage  float64
	flags  sample.Flags
	self   bool
	above  bool // the quota is that of a cgroup above the task
}

func (w *world) cell(text string) cell {
	c := cell{cost: nan}
	value, flags, _ := strings.Cut(text, "!")
	if value == "-" {
		c.absent = true
		return c
	}
	for f := range strings.SplitSeq(flags, "!") {
		if f == "self" {
			c.self = true
			continue
		}
		if f == "above" {
			c.above = true
			continue
		}
		flag, err := sample.ParseFlags(f)
		if err != nil {
			w.t.Fatal(err)
		}
		c.flags |= flag
	}
	if cost, usage, ok := strings.Cut(value, "@"); ok {
		c.cost, value = w.number(cost), usage
	}
	c.usage = w.number(value)
	return c
}

func (w *world) number(s string) float64 {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}
