// Figures plays the demo many times and compares the results with what quell promises
// for it: `make demo-figures`. It takes about half an hour, so it is not a test. It
// prints a line per run and a summary, and exits with 1 if a promise is not kept.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/quell-dev/quell/internal/people/demo"
)

// Promises for the runs with an antagonist.
const (
	maxRelativeCost = 0.5 // relative cost under the cap (the paper's median: 0.63)
	mostIntervals   = 4   // from the antagonist's start to the accusation, without trials
	mostTrial       = 19  // additionally for each trial: its length, and the antagonist's next burst
	mostSeconds     = 0.5 // from the third outlier to the accusation: the same tick
	mayAbstain      = 1   // of 20
)

func main() {
	quell := flag.String("quell", "bin/quell", "the quell program")
	cpu := flag.Int("cpu", 20, "runs on channel cpu")
	alone := flag.Int("alone", 20, "runs without the antagonist")
	cache := flag.Int("cache", 5, "runs on channel cache without a flip")
	patience := flag.Duration("patience", 20*time.Minute, "how long to wait for CPUs that share a cache")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := play(ctx, os.Stdout, *quell, *cpu, *alone, *cache, *patience); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

func play(ctx context.Context, w io.Writer, quell string, cpu, alone, cache int, patience time.Duration) error {
	fmt.Fprintln(w, "| channel | seed | named | correlation | runner-up | trials | s to incident | intervals | alone | contended | capped | relative | left |")
	fmt.Fprintln(w, "|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	var errs []error
	var all tally
	for seed := range cpu {
		r, err := run(ctx, quell, seed+1, "--channel", "cpu")
		if err != nil {
			return err
		}
		all.add(w, r)
	}
	errs = append(errs, all.promise(w, "cpu"))
	var none tally
	for seed := range alone {
		r, err := run(ctx, quell, seed+1, "--channel", "cpu", "--no-antagonist")
		if err != nil {
			return err
		}
		none.add(w, r)
	}
	if none.wrong+none.left > 0 {
		errs = append(errs, fmt.Errorf("without an antagonist: %d accusations, %d left something behind", none.wrong, none.left))
	}
	fmt.Fprintf(w, "\nwithout an antagonist: %d runs, %d accusations\n\n", none.runs, none.wrong)
	var shared tally
	flips, deadline := 0, time.Now().Add(patience)
	for seed := 1; shared.runs < cache && time.Now().Before(deadline); seed++ {
		r, err := run(ctx, quell, seed, "--channel", "cache")
		var exit *exec.ExitError
		switch {
		case errors.As(err, &exit) && exit.ExitCode() == 2: // they share no cache now
			if err := wait(ctx, 3*time.Second); err != nil {
				return err
			}
		case err != nil:
			return err
		case r.Flips > 0:
			flips++
			fmt.Fprintf(w, "| cache | %d | (the cache was lost) |\n", seed)
		default:
			shared.add(w, r)
		}
	}
	fmt.Fprintf(w, "\ncache: %d runs ended because the cache was lost, not counted\n", flips)
	if shared.runs < cache {
		errs = append(errs, fmt.Errorf("cache: only %d of %d runs kept the cache within %s", shared.runs, cache, patience))
	}
	errs = append(errs, shared.promise(w, "cache"))
	return errors.Join(errs...)
}

// run plays one demo. It returns an error if a run has no result.
func run(ctx context.Context, quell string, seed int, args ...string) (*demo.Result, error) {
	log := filepath.Join(os.TempDir(), fmt.Sprintf("quell-figures-%d-agent.log", os.Getpid()))
	cmd := exec.CommandContext(ctx, quell, append([]string{"demo", "--json", "--seed", strconv.Itoa(seed), "--agent-log", log}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	var story bytes.Buffer
	cmd.Stderr = &story
	out, err := cmd.Output()
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	var r demo.Result
	if json.Unmarshal(lines[len(lines)-1], &r) == nil {
		return &r, os.Remove(log) // exit 1 is a verdict, too
	}
	return nil, fmt.Errorf("seed %d: %w (the agent's log: %s): %s", seed, err, log, bytes.TrimSpace(story.Bytes()))
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// tally is the sum over runs of one kind.
type tally struct {
	runs, right, abstained, wrong, left, late, slow int
	relative                                        []float64
}

func (t *tally) add(w io.Writer, r *demo.Result) {
	t.runs++
	if len(r.LeftBehind) > 0 {
		t.left++
	}
	switch {
	case r.Named == "":
		t.abstained++
	case r.Named != r.Antagonist:
		t.wrong++
	default:
		t.right++
		t.relative = append(t.relative, float64(r.RelativeCost))
		if float64(r.IntervalsToIncident) > float64(mostIntervals+r.Trials*mostTrial) {
			t.late++
		}
		if float64(r.SecondsToIncident) > mostSeconds {
			t.slow++
		}
	}
	second := "-"
	if r.RunnerUp != nil {
		second = fmt.Sprintf("%s %.2f", filepath.Base(string(r.RunnerUp.Task)), r.RunnerUp.Correlation)
	}
	named := "none"
	if r.Named != "" {
		named = filepath.Base(string(r.Named))
	}
	fmt.Fprintf(w, "| %s | %d | %s | %.2f | %s | %d | %.3f | %.2f | %.3g | %.3g | %.3g | %.2f | %d |\n", r.Channel, r.Seed, named,
		r.Correlation, second, r.Trials, r.SecondsToIncident, r.IntervalsToIncident, r.CostAlone, r.CostContended, r.CostCapped, r.RelativeCost, len(r.LeftBehind))
}

// promise prints the summary and returns which promises were not kept.
func (t *tally) promise(w io.Writer, channel string) error {
	if t.runs == 0 {
		return nil
	}
	slices.Sort(t.relative)
	above := 0
	for _, r := range t.relative {
		if !(r <= maxRelativeCost) {
			above++
		}
	}
	median, worst := 0.0, 0.0
	if n := len(t.relative); n > 0 {
		median, worst = t.relative[n/2], t.relative[n-1]
	}
	fmt.Fprintf(w, "\n%s: %d runs, %d right, %d abstained, %d wrong; relative cost median %.2f, worst %.2f; %d later than %d intervals and %d a trial, %d slower than %.1f s\n\n",
		channel, t.runs, t.right, t.abstained, t.wrong, median, worst, t.late, mostIntervals, mostTrial, t.slow, mostSeconds)
	if t.wrong+t.left+above+t.late+t.slow > 0 || t.abstained > mayAbstain {
		return fmt.Errorf("%s: %d wrong, %d abstained, %d left something behind, %d above a relative cost of %.1f, %d late, %d slow",
			channel, t.wrong, t.abstained, t.left, above, maxRelativeCost, t.late, t.slow)
	}
	return nil
}
