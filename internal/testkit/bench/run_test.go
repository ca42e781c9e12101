package bench

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// run is one run of the whole measurement.
type run struct {
	tree           *tree
	crowd          crowd
	agent          string // the shipped program
	scratch        string
	cpu            int // for the switch tax
	cpus           int
	warmUp, window time.Duration
	starts         int
	kept           kept
	keepIn         string
	progress       io.Writer
	began          time.Time
}

// kept holds what has been measured, also by an earlier run that was interrupted.
type kept struct {
	Of      string // what was measured, and how: figures of another agent are not of the same run
	Results []result
	Taxes   []switchOverhead
}

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.progress, "%5.0f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

// errMissed is the error of a run whose figures miss a target.
var errMissed = errors.New("a target was missed")

// TestCost is the measurement, by make bench-agent: with the argument "measure", which
// flags follow.
func TestCost(t *testing.T) {
	if flag.Arg(0) != "measure" {
		return // the other tests measure something small
	}
	// The processes that it starts end with the thread that started them.
	runtime.LockOSThread()
	if err := measure(flag.Args()[1:]); err != nil {
		t.Error(err)
	}
}

func measure(args []string) error {
	f := flag.NewFlagSet("measure", flag.ContinueOnError)
	r := &run{progress: os.Stderr, began: time.Now()}
	f.StringVar(&r.agent, "agent", "bin/quell-agent", "path of quell-agent")
	f.DurationVar(&r.window, "window", time.Minute, "length of a measurement; of the default agent at least 60 s, its cycle")
	f.DurationVar(&r.warmUp, "warm-up", 15*time.Second, "time that a contender runs before it is measured")
	sizes := f.String("cgroups", "10,100,1000,2000,4000,10000", "numbers of cgroups; all but -full and 100 are measured for half of -window")
	full := f.Int("full", 1000, "number of cgroups with which all contenders are measured")
	rounds := f.Int("rounds", 2, "rounds of all contenders with -full cgroups")
	taxRounds := f.Int("tax-rounds", 3, "rounds of the switch overhead; 0: none")
	trips := f.Int("trips", 20_000, "round trips in one measurement of the switch overhead")
	bin := f.String("bin", "bin/rivals", "folder of the rivals, where they are also built")
	with := f.String("rivals", "build", "build: build the missing rivals in -bin; have: use only those in -bin; none")
	f.StringVar(&r.keepIn, "keep", "bin/bench-agent.json", "file for the figures, written after each measurement")
	resume := f.Bool("resume", false, "continue from the figures in -keep")
	quick := f.Bool("quick", false, "10, 100 and 1000 cgroups, short windows, one round, no builds: about 4 min, rough figures")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if *quick {
		given := map[string]bool{}
		f.Visit(func(x *flag.Flag) { given[x.Name] = true })
		for name, value := range map[string]string{"cgroups": "10,100,1000", "rounds": "1", "tax-rounds": "2", "rivals": "have", "warm-up": "5s", "window": "20s"} {
			if given[name] {
				continue
			}
			if err := f.Set(name, value); err != nil {
				return err
			}
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var ns []int
	for s := range strings.SplitSeq(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("-cgroups: invalid number %q", s)
		}
		ns = append(ns, n)
	}
	slices.Sort(ns)
	of, err := r.identity(*full, *trips)
	if err != nil {
		return err
	}
	if r.kept.Of = of; *resume {
		if err := r.resume(); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
	}
	if *with == "build" {
		if err := buildRivals(ctx, *bin); err != nil {
			return err
		}
	}
	var others []contender
	if *with != "none" {
		others = rivals(*bin)
	}
	if err := r.prepare(); err != nil {
		return err
	}
	err = errors.Join(r.all(ctx, ns, *full, *rounds, *taxRounds, *trips, others), r.crowd.end(), r.tree.remove(), os.RemoveAll(r.scratch))
	if err != nil {
		return err
	}
	return r.report(os.Stdout, others)
}

// identity says which agent is measured, where and how.
func (r *run) identity(full, trips int) (string, error) {
	program, err := os.ReadFile(r.agent)
	if err != nil {
		return "", fmt.Errorf("quell-agent not found (run make bin/quell-agent): %w", err)
	}
	_, where, _ := strings.Cut(machine(runtime.NumCPU()), "; ") // without the date
	return fmt.Sprintf("agent %.6x; %s; window %s, warm-up %s, full at %d, %d trips", sha256.Sum256(program), where, r.window, r.warmUp, full, trips), nil
}

// resume reads what an earlier run has kept, if it was of the same agent, measured in the same way.
func (r *run) resume() error {
	text, err := os.ReadFile(r.keepIn)
	if err != nil {
		return err
	}
	var had kept
	if err := json.Unmarshal(text, &had); err != nil {
		return err
	}
	if had.Of != r.kept.Of {
		return fmt.Errorf("%s has figures of %q, this is %q: begin anew, without -resume", r.keepIn, had.Of, r.kept.Of)
	}
	r.kept = had
	return nil
}

// prepare checks and collects what the run needs from the machine.
func (r *run) prepare() error {
	if os.Geteuid() != 0 {
		return errors.New("not root: bench makes cgroups and opens counters; run it as root")
	}
	h, err := host.Open("/")
	if err != nil {
		return err
	}
	mount := h.Layout().Unified
	if mount == "" {
		return errors.New("no cgroup2 file system is mounted: mount -t cgroup2 none /sys/fs/cgroup/unified")
	}
	topology, err := h.Topology()
	if err != nil {
		return err
	}
	cpus := topology.Online.Numbers()
	r.cpu, r.cpus = cpus[len(cpus)-1], len(cpus)
	if r.agent, err = filepath.Abs(r.agent); err != nil {
		return err
	}
	if r.scratch, err = os.MkdirTemp("", "quell-bench-"); err != nil {
		return err
	}
	if r.tree, err = newTree(mount); err != nil {
		return errors.Join(err, os.RemoveAll(r.scratch))
	}
	r.crowd.t = r.tree
	return nil
}

// all measures everything that has not been measured yet.
func (r *run) all(ctx context.Context, sizes []int, full, rounds, taxRounds, trips int, others []contender) error {
	if taxRounds > 0 && len(r.kept.Taxes) == 0 {
		taxes, err := r.measureOverhead(ctx, taxRounds, trips)
		if err != nil {
			return err
		}
		r.kept.Taxes = taxes
		if err := r.keep(); err != nil {
			return err
		}
	}
	for _, n := range sizes {
		r.say("%d cgroups", n)
		if err := r.crowd.grow(n); err != nil {
			return err
		}
		for _, turn := range turns(n, full, rounds, others) {
			if err := r.turn(ctx, turn, n); err != nil {
				return err
			}
		}
	}
	return nil
}

// turn is a set of contenders that are measured in parallel.
type turn struct {
	all   []contender
	round int
	short bool // half the time: every 10 s of a sweep are alike
	awake bool // the tasks are awake
}

// most is the number of cgroups for which the bounds on memory and descriptors are.
const most = 10_000

// turns returns what is measured over n cgroups. The sweep in parallel with the
// floor is the pair that is judged; only this pair is measured repeatedly.
func turns(n, full, rounds int, others []contender) []turn {
	pair := []contender{sweepEvery10s(), floor()}
	all := []turn{{all: pair, short: n != full}}
	if n != full && n != 100 && n != most { // 100: at least the density that the paper reports
		return all
	}
	byDefault := turn{all: []contender{defaultAgent()}}
	if n != full {
		return append(all, byDefault)
	}
	for _, c := range others {
		if c.absent == nil && c.heavy {
			all = append(all, turn{all: []contender{c}})
		} else if c.absent == nil {
			byDefault.all = append(byDefault.all, c)
		}
	}
	all = append(all, byDefault)
	for round := 1; round < rounds; round++ {
		all = append(all, turn{all: pair, round: round})
	}
	awoken := slices.Clone(pair)
	for i := range awoken {
		awoken[i].name += awake
	}
	return append(all, turn{all: awoken, short: true, awake: true})
}

// turn measures the contenders of a turn that have not been measured yet.
func (r *run) turn(ctx context.Context, t turn, n int) error {
	left := slices.DeleteFunc(slices.Clone(t.all), func(c contender) bool {
		return slices.ContainsFunc(r.kept.Results, func(x result) bool { return x.Contender == c.name && x.Cgroups == n && x.Round == t.round })
	})
	if len(left) == 0 {
		return nil
	}
	if t.awake {
		awakeCtx, sleep := context.WithCancel(ctx)
		var awakener sync.WaitGroup
		awakener.Go(func() { r.crowd.keepAwake(awakeCtx) })
		defer awakener.Wait()
		defer sleep()
	}
	var all []*started
	defer func() {
		for _, s := range all {
			s.stop()
		}
	}()
	for _, c := range left {
		s, err := r.start(c, n)
		if err != nil {
			return err
		}
		all = append(all, s)
		if err := s.begun(ctx, r); err != nil {
			return err
		}
		if strings.HasPrefix(c.name, "quell-agent") { // the cost of its start is not measured
			first := 0.0 // windows that belong to the start: in these the default agent looks at each task's processes
			if c.name == defaultName {
				first = 2
			}
			err := s.await(ctx, func(m map[string]float64) bool {
				return int(m["quell_tasks"]) >= n && m["quell_intervals_total"] >= first
			})
			if err != nil {
				return err
			}
		}
	}
	window := r.window
	if t.short {
		window /= 2
	}
	if slices.ContainsFunc(left, func(c contender) bool { return c.name == defaultName }) {
		window = max(window, time.Minute) // its cycle: a part of it has one of its windows, or none
	}
	results, err := r.measure(ctx, all, n, t.round, window)
	if err != nil {
		return err
	}
	for _, x := range results {
		r.say("%d cgroups: %s: %.3f %% of a core (load %.1f)", n, x.Contender, 100*x.share(), x.Load)
	}
	r.kept.Results = append(r.kept.Results, results...)
	return r.keep()
}

// keep writes what has been measured.
func (r *run) keep() error {
	text, err := json.MarshalIndent(r.kept, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.keepIn), 0o755); err != nil {
		return err
	}
	return os.WriteFile(r.keepIn, text, 0o644)
}

// report prints all results in Markdown.
func (r *run) report(w io.Writer, others []contender) error {
	fmt.Fprintf(w, "%s\n\n", machine(r.cpus))
	if most := mostLoad(r.kept.Results); most > 1.5 {
		fmt.Fprintf(w, "**The machine had other load** (load average up to %.1f): CPU times are approximate, scrape times and the switch overhead are unreliable.\n\n", most)
	}
	all := rows(r.kept.Results)
	printRows(w, all)
	for _, c := range others {
		if c.absent != nil {
			fmt.Fprintf(w, "\n%s was not measured: %v\n", c.name, c.absent)
		}
	}
	if len(r.kept.Taxes) > 0 {
		fmt.Fprintln(w)
		printOverheads(w, r.kept.Taxes)
	}
	fmt.Fprintln(w)
	if !printTargets(w, targets(all, r.kept.Taxes, r.cpus)) {
		return errMissed
	}
	return nil
}

func mostLoad(results []result) (most float64) {
	for _, r := range results {
		most = max(most, r.Load)
	}
	return most
}

// machine describes the machine that the figures come from.
func machine(cpus int) string {
	model := "unknown CPU"
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(text)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	release := "?"
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		release = unix.ByteSliceToString(u.Release[:])
	}
	pmu := "no PMU: no counters are open"
	if hasPMU() {
		pmu = "hardware counters"
	}
	return fmt.Sprintf("%s; %d × %s; Linux %s; %s; %s", time.Now().Format(time.DateOnly), cpus, model, release, runtime.Version(), pmu)
}
