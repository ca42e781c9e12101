// Command soak runs the tests of one commit many times in parallel with a CPU load,
// and keeps a record, so that it continues where it was interrupted (make soak-gate).
//
// Each run is made in a fresh clone of the commit, so that edits meanwhile
// change nothing, with GOFLAGS=-count=1, so that no result comes from the test
// cache. A tree with uncommitted changes is refused. The record has a line of
// JSON for each finished run, in a folder for the commit: another commit starts
// anew. An interrupt, also a kill -9, loses only the current run. Processes
// that a killed soak left running are ended by the next one.
//
// It prints a table at the end and exits with 1 unless every run passed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"
)

func main() {
	cache, err := os.UserCacheDir()
	if err != nil {
		fail(err)
	}
	tests := flag.Int("tests", 6, "runs of make test")
	ci := flag.Int("ci", 1, "runs of .ci/run")
	dir := flag.String("dir", filepath.Join(cache, "quell", "soak"), "folder of clones, logs and records")
	deadline := flag.Duration("deadline", 2*time.Hour, "maximum time of a run")
	asJSON := flag.Bool("json", false, "print the table as JSON")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *dir, err = filepath.Abs(*dir); err != nil {
		fail(err)
	}
	s := &soak{
		repo: ".", dir: *dir, deadline: *deadline, progress: os.Stderr,
		plan: []step{{"make test", []string{"make", "test"}, *tests}, {".ci/run", []string{".ci/run"}, *ci}},
		load: []string{"stress-ng", "--cpu", "2", "--quiet"},
	}
	r, err := s.run(ctx)
	if err != nil {
		fail(err)
	}
	if *asJSON {
		err = json.NewEncoder(os.Stdout).Encode(r)
	} else {
		err = r.table(os.Stdout)
	}
	if err != nil {
		fail(err)
	}
	if !r.OK {
		os.Exit(1)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "soak:", err)
	os.Exit(1)
}

// table writes a line for each run, and what failed in it.
func (r *report) table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "run\texit\tseconds\tpassed\tfailed\tskipped\n")
	passed := map[string]int{}
	for _, run := range r.Runs {
		fmt.Fprintf(t, "%s %d\t%d\t%.0f\t%d\t%d\t%d\n", run.What, run.Number, run.Exit, run.Seconds, run.Passed, run.Failed, run.Skipped)
		if run.ok() {
			passed[run.What]++
		}
	}
	err := t.Flush()
	for _, run := range r.Runs {
		if run.ok() {
			continue
		}
		fmt.Fprintf(w, "%s %d failed, see %s\n", run.What, run.Number, run.Log)
		for _, name := range run.FailedTests {
			fmt.Fprintf(w, "  %s\n", name)
		}
	}
	for _, s := range r.plan {
		fmt.Fprintf(w, "%s: %d of %d\n", s.what, passed[s.what], s.runs)
	}
	_, last := fmt.Fprintf(w, "commit %s, load %s, on %s\n", r.Commit, r.Load, r.Machine)
	return errors.Join(err, last)
}
