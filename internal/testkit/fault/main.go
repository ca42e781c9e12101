// Fault kills quell at critical moments, on the kernel's real quota files and
// on real journals, and checks that every limit comes back: `make fault`.
//
// Half of the points kill quell-agent as it is shipped, with caps on, half a
// loop of package enforce. The moments are found by ptrace: the process is
// stopped before each system call, and a call that is about to change the
// journal or a limit shows the phase of the cap's life. The tested programs are
// not instrumented. Other points kill at random times, untraced.
//
// It exits with 1 if a limit was left, or if another process's limit was overwritten.
package main

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
	"strconv"
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
	agent, points, name  string
}

func main() {
	var o options
	var child bool
	flag.IntVar(&o.kills, "kills", int(environment("QUELL_TEST_KILLS", 1000)), "number of points to kill at")
	flag.Uint64Var(&o.seed, "seed", environment("QUELL_TEST_SEED", uint64(time.Now().UnixNano())), "random seed; repeats a run as far as the kernel's timing allows")
	flag.StringVar(&o.agent, "agent", "bin/quell-agent", "path of quell-agent")
	flag.IntVar(&o.workers, "workers", 6, "points in parallel")
	flag.IntVar(&o.only, "only", -1, "play only this point")
	flag.StringVar(&o.points, "points", "", "internal: a worker's points")
	flag.StringVar(&o.name, "name", "", "internal: a worker's cgroups")
	flag.BoolVar(&child, "child", false, "internal: run as the process that is killed")
	flag.Parse()
	var err error
	switch {
	case child && flag.Arg(0) == "life":
		err = capAndUncap(flag.Arg(1), flag.Arg(2))
	case child:
		err = restoreAll(flag.Arg(1))
	case o.points != "":
		var numbers []int
		if err = json.Unmarshal([]byte(o.points), &numbers); err == nil {
			// If the parent asks to end, clean up first. If the parent is gone, a write
			// to it must fail and not end this process. SIGPIPE is ignored otherwise,
			// since a request to an agent that was just killed raises it too.
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
			err = work(ctx, o.seed, numbers, o.agent, o.name, os.Stdout)
		}
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = inject(ctx, os.Stdout, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fault:", err)
		os.Exit(1)
	}
}

func environment(name string, otherwise uint64) uint64 {
	if n, err := strconv.ParseUint(os.Getenv(name), 10, 64); err == nil {
		return n
	}
	return otherwise
}

// inject distributes the points over workers and prints the results.
func inject(ctx context.Context, w io.Writer, o options) error {
	h, err := host.Open("/")
	if err != nil {
		return err
	}
	if o.agent, err = filepath.Abs(o.agent); err == nil {
		_, err = os.Stat(o.agent)
	}
	if err != nil {
		return fmt.Errorf("find the agent (make bin/quell-agent): %w", err)
	}
	name := fmt.Sprintf("quell-test-fault-%d", os.Getpid())
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
		wg.Go(func() { errs <- o.worker(ctx, fmt.Sprintf("%s-%d", name, i), numbers, results) })
	}
	go func() { wg.Wait(); close(results); close(errs) }()
	t := newTally(o.kills)
	for r := range results {
		t.add(w, r)
	}
	t.print(w)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if t.points < o.kills {
		all = append(all, fmt.Errorf("%d of %d points were not played", o.kills-t.points, o.kills))
	}
	for _, which := range []string{"task", "web", "kept"} { // of workers that were killed
		for i := range dealt {
			_ = workload.RemoveCgroups(filepath.Join(h.Layout().V1["cpu"], fmt.Sprintf("%s-%d-%s", name, i, which)))
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
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-points", string(points), "-name", name, "-agent", o.agent, "-seed", fmt.Sprint(o.seed))
	cmd.Env = append(os.Environ(), childEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second // as long as a point may take
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
