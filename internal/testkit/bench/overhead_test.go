package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// The tax is the additional cost of a switch between two cgroups under the agent. Two
// processes in two cgroups pass a byte back and forth over pipes on one CPU. A round trip
// is two switches, two wake-ups and four system calls; half of it counts as one switch.

// overheadSets are the sets of signals that add cost to a switch.
var overheadSets = [...][]string{{"cpi"}, {"cpi", "runq"}, {"cpi", "cps"}}

// duty is the duty cycle that an average is taken over: the paper's and the default.
const duty = 10.0 / 60

// switchOverhead is the cost with one set of signals, in ns per switch: the fastest of all pieces.
type switchOverhead struct {
	Signals             string
	Off, Between, Inner float64
	// Shipped is a switch in a window at the default sampling.max_tax, which lets a
	// signal rest if a switch would cost too much. Rests reports that cpi rested.
	Shipped float64
	Rests   bool
	// Bpftrace is a switch while bpftrace adds up CPU time by cgroup; 0 without bpftrace.
	Bpftrace float64
}

func (t switchOverhead) between() float64 { return t.Between - t.Off }
func (t switchOverhead) inner() float64   { return t.Inner - t.Off }
func (t switchOverhead) shipped() float64 { return t.Shipped - t.Off }

// average returns the mean over windows and pauses with the shipped settings.
func (t switchOverhead) average() float64 { return t.between() + duty*(t.Shipped-t.Between) }

// measureOverhead measures all states in turn, once per round.
func (r *run) measureOverhead(ctx context.Context, rounds, trips int) (_ []switchOverhead, err error) {
	game, err := r.newPingPong()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, game.end()) }()
	taxes := make([]switchOverhead, len(overheadSets))
	for i, set := range overheadSets {
		taxes[i] = switchOverhead{Signals: strings.Join(set, " + "), Off: math.Inf(1), Between: math.Inf(1), Inner: math.Inf(1), Shipped: math.Inf(1), Bpftrace: math.Inf(1)}
	}
	for round := range rounds {
		r.say("switch overhead: round %d of %d", round+1, rounds)
		for i, set := range overheadSets {
			// As often as each of its states: more tries would give a lower minimum.
			off, err := game.best(trips)
			if err != nil {
				return nil, err
			}
			taxes[i].Off = min(taxes[i].Off, off)
			other, err := r.underBpftrace(ctx, game, trips)
			if err != nil {
				return nil, err
			}
			taxes[i].Bpftrace = min(taxes[i].Bpftrace, other)
			for _, state := range []struct {
				window time.Duration
				until  string // this metric is at least 1
				into   *float64
			}{
				// Its first window closes after a second; no other opens for an hour.
				{time.Second, "quell_intervals_total", &taxes[i].Between},
				{10 * time.Minute, "quell_ticks_total", &taxes[i].Inner},
			} {
				ns, _, err := r.underAgent(ctx, game, set, trips, state.until, "sampling.max_tax=0",
					"sampling.period=1h", "sampling.duration="+state.window.String())
				if err != nil {
					return nil, err
				}
				*state.into = min(*state.into, ns)
			}
			// The agent decides which signals rest when a window ends. Windows without
			// a pause are compared with the tax that is allowed at the duty cycle.
			allowed := config.Default().Sampling.MaxOverhead / duty
			ns, rests, err := r.underAgent(ctx, game, set, trips, "quell_ticks_total", fmt.Sprintf("sampling.max_tax=%g", allowed),
				"sampling.period=1s", "sampling.duration=1s")
			if err != nil {
				return nil, err
			}
			taxes[i].Shipped, taxes[i].Rests = min(taxes[i].Shipped, ns), rests
		}
	}
	return taxes, nil
}

// settled is the number of windows that must pass under a game until it is
// known which signals rest.
const settled = 3

// underAgent returns the cost of a switch while an agent follows both
// processes, and whether its cpi signal rests.
func (r *run) underAgent(ctx context.Context, g *pingPong, signals []string, trips int, until string, set ...string) (_ float64, rests bool, err error) {
	c := contender{name: "quell-agent", commands: func(r *run, _ int) ([][]string, string, error) {
		settings := append([]string{"sampling.phase=fixed", "signals=" + strings.Join(signals, ","), "detect.outlier_window=3h", "detect.window=3h"}, set...)
		return r.agentCommand("tax", gameName+"/*", settings...)
	}}
	s, err := r.start(c, 0)
	if err != nil {
		return 0, false, err
	}
	defer s.stop()
	err = s.await(ctx, func(m map[string]float64) bool { return m[until] >= 1 && m["quell_tasks"] == 2 })
	if err != nil {
		return 0, false, err
	}
	m, err := s.metrics(ctx)
	for end := m["quell_intervals_total"] + settled; err == nil && slices.Contains(set, "sampling.period=1s") && m["quell_intervals_total"] < end; {
		if _, err = g.best(trips); err == nil {
			m, err = s.metrics(ctx)
		}
	}
	if err != nil {
		return 0, false, err
	}
	ns, err := g.best(trips)
	return ns, m[`quell_signal_resting{signal="cpi"}`] == 1, err
}

// begun waits until a contender has begun to work, if that can be told.
func (s *started) begun(ctx context.Context, r *run) error {
	if s.ready == nil {
		return nil
	}
	err := s.procs[0].Until(ctx, time.Minute, "begin", func() (bool, error) { return s.ready(r) })
	if err != nil {
		return fmt.Errorf("start %s: %w", s.name, err)
	}
	return nil
}

// underBpftrace returns the cost of a switch while bpftrace counts; 0 without bpftrace.
func (r *run) underBpftrace(ctx context.Context, g *pingPong, trips int) (float64, error) {
	c := byBpftrace()
	if c.absent != nil {
		return 0, nil
	}
	s, err := r.start(c, 0)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	if err := s.begun(ctx, r); err != nil {
		return 0, err
	}
	return g.best(trips)
}

// await waits until ready holds for the agent's metrics.
func (s *started) await(ctx context.Context, ready func(map[string]float64) bool) error {
	err := s.procs[0].Until(ctx, 4*time.Minute, "be ready", func() (bool, error) {
		m, err := s.metrics(ctx)
		return err == nil && ready(m), nil // at first it does not listen
	})
	if err != nil {
		return fmt.Errorf("%w: %s", err, s.tail())
	}
	return nil
}

// metrics reads the agent's metrics by name; the name includes the labels.
func (s *started) metrics(ctx context.Context) (map[string]float64, error) {
	text, _, err := s.get(ctx)
	if err != nil {
		return nil, err
	}
	m := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if v, err := strconv.ParseFloat(value, 64); err == nil {
				m[name] = v
			}
		}
	}
	return m, nil
}

// pingPong is the two processes. For each line with a number of round trips the
// player answers with the ns per round trip of the fastest piece.
type pingPong struct {
	procs []*exec.Cmd
	ask   io.WriteCloser
	tell  *bufio.Reader
}

const gameName = "tax"

func (r *run) newPingPong() (*pingPong, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var ends []*os.File
	defer func() {
		for _, f := range ends {
			f.Close()
		}
	}()
	pipe := func() (in, out *os.File) {
		in, out, e := os.Pipe()
		err = errors.Join(err, e)
		ends = append(ends, in, out)
		return in, out
	}
	thereR, thereW := pipe()
	backR, backW := pipe()
	if err != nil {
		return nil, err
	}
	g := &pingPong{}
	start := func(role string, files ...*os.File) *exec.Cmd {
		cmd := exec.Command(self, "play", role, strconv.Itoa(r.cpu))
		cmd.Stderr, cmd.ExtraFiles = os.Stderr, files
		// A preemption signal costs the same in all states, but need not occur equally often.
		cmd.Env = append(os.Environ(), "GODEBUG=asyncpreemptoff=1", "GOGC=off")
		return cmd
	}
	player := start("first", backR, thereW)
	in, err := player.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := player.StdoutPipe()
	if err != nil {
		return nil, err
	}
	g.ask, g.tell = in, bufio.NewReader(out)
	for name, cmd := range map[string]*exec.Cmd{"a": player, "b": start("second", thereR, backW)} {
		if err := r.tree.start(filepath.Join(gameName, name), cmd); err != nil {
			return nil, errors.Join(fmt.Errorf("start ping-pong: %w", err), g.end())
		}
		g.procs = append(g.procs, cmd)
	}
	return g, nil
}

// piece is the number of round trips that are timed together; the fastest piece
// counts. It takes 1 to 2 ms, so that many pieces run undisturbed by other work
// of the CPU and of the machine below it.
const piece = 250

// plays is the number of measurements per result; the fastest counts. Where a
// switch is expensive, under a PMU that traps, one is enough.
const (
	plays  = 3
	enough = time.Second
)

// best returns ns per switch.
func (g *pingPong) best(trips int) (float64, error) {
	least := math.Inf(1)
	begin := time.Now()
	for i := 0; i < plays && (i == 0 || time.Since(begin) < enough); i++ {
		if _, err := fmt.Fprintln(g.ask, trips); err != nil {
			return 0, fmt.Errorf("ping-pong: %w", err)
		}
		line, err := g.tell.ReadString('\n')
		if err != nil {
			return 0, fmt.Errorf("ping-pong: %w", err)
		}
		ns, err := strconv.ParseFloat(strings.TrimSpace(line), 64)
		if err != nil {
			return 0, fmt.Errorf("ping-pong: %w", err)
		}
		least = min(least, ns/2)
	}
	return least, nil
}

// end closes the first process's input. Its end closes the second's pipe.
func (g *pingPong) end() error {
	var errs []error
	errs = append(errs, g.ask.Close())
	for _, p := range g.procs {
		errs = append(errs, p.Wait())
	}
	return errors.Join(errs...)
}

// runPlay is one of the two processes: descriptor 3 is read, 4 is written.
func runPlay(args []string) error {
	if len(args) != 2 {
		return errors.New("play: want ROLE CPU")
	}
	cpu, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("play: %w", err)
	}
	runtime.LockOSThread()
	if err := host.SetAffinity(0, sample.SetOf(cpu)); err != nil {
		return fmt.Errorf("play: pin to CPU %d: %w", cpu, err)
	}
	var b [1]byte
	if args[0] == "second" {
		for {
			if n, err := rawIO(unix.SYS_READ, 3, &b); n == 0 || err != nil {
				return err
			}
			if _, err := rawIO(unix.SYS_WRITE, 4, &b); err != nil {
				return err
			}
		}
	}
	// The end of this process closes the pipes, which ends the other process.
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		trips, err := strconv.Atoi(input.Text())
		if err != nil || trips < 1 {
			return fmt.Errorf("play: invalid number of round trips %q", input.Text())
		}
		least := math.Inf(1)
		for ; trips > 0; trips -= piece {
			n := min(trips, piece)
			begin := time.Now()
			for range n {
				if _, err := rawIO(unix.SYS_WRITE, 4, &b); err != nil {
					return err
				}
				if _, err := rawIO(unix.SYS_READ, 3, &b); err != nil {
					return err
				}
			}
			least = min(least, float64(time.Since(begin).Nanoseconds())/float64(n))
		}
		fmt.Println(least)
	}
	return input.Err()
}
