package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/lab/role"
)

// endOfRun separates the outputs of a command's runs; the length of the run in seconds
// follows it.
const endOfRun = "quell-lab run took "

// RunCommand runs a user's command repeatedly: each run is one iteration (see RunKernel).
// It waits for a line on standard input, and ends the running command when that closes.
// The command's output is passed on. A run that fails ends RunCommand with an error.
func RunCommand(ctx context.Context, argv []string) error {
	return runCommand(ctx, argv, os.Stdin, os.Stdout, os.Stderr)
}

func runCommand(ctx context.Context, argv []string, in io.Reader, out, errs io.Writer) error {
	if len(argv) == 0 {
		return errors.New("run command: no program given")
	}
	ctx, cancel, ok := role.Barrier(ctx, in)
	defer cancel()
	if !ok {
		return nil // cancelled
	}
	for {
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Stdout, cmd.Stderr = out, errs
		// The command gets its own process group, so that its children end with it.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		from := monotonic()
		err := cmd.Run()
		to := monotonic()
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
			return fmt.Errorf("run %s: %w; install it there: into a guest's image with quell lab image build --packages or --bench", argv[0], err)
		}
		if err != nil {
			return fmt.Errorf("run %s: %w", argv[0], err)
		}
		took := strconv.FormatFloat(time.Duration(to-from).Seconds(), 'f', 6, 64)
		if _, err := fmt.Fprintf(out, "\n%s%s\n%s%d %d 1\n", endOfRun, took, role.IterationLine, from, to); err != nil {
			return fmt.Errorf("report iteration: %w", err)
		}
	}
}

// MeanMetric is the mean of ParseMetric over the complete runs in the output of RunCommand: after
// the first early ones, which are its warm-up, only so many count, if most is not 0. A rate counts
// by the length of its run, so that the mean is all work ÷ all time. The parser "time" is the
// length of a run in seconds; Lines has no figure, so the result is 0.
func MeanMetric(how string, output []byte, early, most int) (mean float64, values map[string]float64, err error) {
	if how == Lines {
		return 0, nil, nil
	}
	n, weights := 0, 0.0
	rest := string(output)
	for run := 0; most == 0 || n < most; run++ {
		text, after, ok := strings.Cut(rest, "\n"+endOfRun)
		if !ok {
			break
		}
		took, more, ok := strings.Cut(after, "\n")
		if !ok {
			break
		}
		if rest = more; run < early {
			continue
		}
		seconds, err := number(took)
		v := seconds
		var said map[string]float64
		if err == nil && how != "time" {
			v, said, err = ParseMetric(how, []byte(text))
		}
		if err != nil {
			return 0, nil, err
		}
		n++
		weight := 1.0
		if slices.Contains(rateParsers, how) {
			weight = max(seconds, 1e-6) // what it is printed to
		}
		weights += weight
		// The mean so far moves by the n-th part of what the n-th differs from it.
		mean += (v - mean) * weight / weights
		if values == nil {
			values = said
		}
		for name, v := range said {
			values[name] += (v - values[name]) * weight / weights
		}
	}
	switch {
	case n == 0 && early > 0:
		return 0, nil, errors.New("the command did not complete once after its warm-up: give it more time or less work")
	case n == 0:
		return 0, nil, errors.New("the command did not complete once: give it more time or less work")
	}
	return mean, values, nil
}
