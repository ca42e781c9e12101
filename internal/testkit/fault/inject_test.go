package fault

import (
	"bufio"
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// childEnv is set for the processes that are this program again.
const childEnv = "QUELL_FAULT_CHILD"

type options struct {
	kills, workers, only int
	seed                 uint64
	agent, name          string // the program; the prefix of the cgroups
	faults               bool   // a point is a failing call, not a kill
	bounds
}

// bounds are how late limits may be back.
type bounds struct {
	patience time.Duration // after deadline and next start
	lateness time.Duration // by a living agent after a single fault, besides a delay
}

// hang is a guard against a program that hangs.
const hang = time.Minute

// child is one of the processes that are this program again: a worker, or one that is killed.
func child() error {
	var o options
	var points string
	var killed bool
	f := flag.NewFlagSet("child", flag.ExitOnError)
	f.Uint64Var(&o.seed, "seed", 0, "random seed")
	f.StringVar(&o.agent, "agent", "", "path of quell-agent")
	f.StringVar(&points, "points", "", "a worker's points")
	f.StringVar(&o.name, "name", "", "a worker's cgroups")
	f.BoolVar(&o.faults, "faults", false, "a worker's points are failing calls")
	f.DurationVar(&o.patience, "patience", 0, "bounds")
	f.DurationVar(&o.lateness, "lateness", 0, "bounds")
	f.BoolVar(&killed, "child", false, "run as the process that is killed")
	if err := f.Parse(os.Args[1:]); err != nil {
		return err
	}
	switch {
	case killed && f.Arg(0) == "life":
		return capAndUncap(f.Arg(1), f.Arg(2))
	case killed:
		return restoreAll(f.Arg(1))
	}
	var numbers []int
	if err := json.Unmarshal([]byte(points), &numbers); err != nil {
		return err
	}
	// If the parent asks to end, clean up first. If the parent is gone, a write
	// to it must fail and not end this process. SIGPIPE is ignored otherwise,
	// since a request to an agent that was just killed raises it too.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return work(ctx, o, numbers, os.Stdout)
}

// inject distributes the points over workers and prints the results.
func inject(ctx context.Context, w io.Writer, o options) error {
	h, err := host.Open("/")
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "seed %d: repeat with QUELL_TEST_SEED=%[1]d\n", o.seed)
	dealt := make([][]int, max(1, min(o.workers, o.kills)))
	for n := range o.kills {
		dealt[n%len(dealt)] = append(dealt[n%len(dealt)], n)
	}
	if o.only >= 0 {
		dealt = [][]int{{o.only}}
		o.kills = 1
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	results := make(chan result)
	errs := make(chan error, len(dealt))
	var wg sync.WaitGroup
	for i, numbers := range dealt {
		wg.Go(func() { errs <- o.worker(ctx, fmt.Sprintf("%s-%d", o.name, i), numbers, results) })
	}
	go func() { wg.Wait(); close(results); close(errs) }()
	var t interface {
		add(io.Writer, result)
		print(io.Writer)
		played() int
		verdict() error
	} = newTally(o.kills)
	if o.faults {
		t = newFaultTally(o.kills, o.lateness)
	}
	for r := range results {
		t.add(w, r)
	}
	t.print(w)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if t.played() < o.kills {
		all = append(all, fmt.Errorf("%d of %d points were not played", o.kills-t.played(), o.kills))
	}
	for _, which := range []string{"task", "web", "kept"} { // of workers that were killed
		for i := range dealt {
			_ = workload.RemoveCgroups(filepath.Join(h.Layout().V1["cpu"], fmt.Sprintf("%s-%d-%s", o.name, i, which)))
		}
	}
	return errors.Join(append(all, t.verdict())...)
}

// worker runs one of the workers to its end.
func (o options) worker(ctx context.Context, name string, numbers []int, results chan<- result) error {
	points, err := json.Marshal(numbers)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-points", string(points), "-name", name, "-agent", o.agent, "-seed", fmt.Sprint(o.seed), fmt.Sprintf("-faults=%v", o.faults),
		fmt.Sprintf("-patience=%s", o.patience), fmt.Sprintf("-lateness=%s", o.lateness))
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = hang // as long as a point may take
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start worker: %w", err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return errors.Join(fmt.Errorf("read a worker's result: %w", err), cmd.Wait())
		}
		results <- r
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("worker: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}
