package record

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
)

// The files of a recorded run next to its record.
const (
	TraceFile  = "trace.csv"   // the agent's samples; a task's job is its part's name
	CachesFile = "caches.json" // round trips between CPUs, ns, before and after the window
	logFile    = "agent.log"
)

// tick is the agent's loop period, which is the precision of the window ends.
const tick = 50 * time.Millisecond

// patience is how long the agent may take to exit.
const patience = 10 * time.Second

// Options say how to record.
type Options struct {
	// Program is quell-agent; it is run with "--config FILE".
	Program string
	// Proc is where processes' cgroups are read; "" is /proc.
	Proc string
	study.Recording
}

// agent is a quell-agent that runs in parallel with a run.
type agent struct {
	cmd     *exec.Cmd
	ended   chan error
	scratch string // its state directory, removed at the end
	log     string
}

// start runs an agent that follows the run's parts and no other task of the machine.
func start(o lab.Observed, opt Options) (*agent, error) {
	rules, err := rules(o, cmp.Or(opt.Proc, "/proc"))
	if err != nil {
		return nil, err
	}
	scratch, err := os.MkdirTemp("", "quell-lab-agent-")
	if err != nil {
		return nil, fmt.Errorf("record the run: %w", err)
	}
	a := &agent{scratch: scratch, log: filepath.Join(o.Dir, logFile), ended: make(chan error, 1)}
	fail := func(err error) (*agent, error) {
		return nil, errors.Join(fmt.Errorf("record the run: %w", err), os.RemoveAll(scratch))
	}
	conf := filepath.Join(scratch, "agent.yaml")
	if err := os.WriteFile(conf, configuration(scratch, filepath.Join(o.Dir, TraceFile), opt.Recording, rules), 0o600); err != nil {
		return fail(err)
	}
	log, err := os.Create(a.log)
	if err != nil {
		return fail(err)
	}
	defer log.Close()
	a.cmd = exec.Command(opt.Program, "--config", conf)
	a.cmd.Stderr = log
	// The agent is ended if the lab is killed.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := a.cmd.Start(); err != nil {
		return fail(err)
	}
	go func() { a.ended <- a.cmd.Wait() }()
	return a, nil
}

// rule maps the cgroup of a part to a task with the part's name.
type rule struct{ path, job, class string }

// rules find the cgroup of each part. A part without threads, because nothing runs in it,
// is not a task.
func rules(o lab.Observed, proc string) ([]rule, error) {
	var all []rule
	for i, e := range o.Envs {
		threads, err := e.Threads()
		if err != nil {
			return nil, fmt.Errorf("record the run: %w", err)
		}
		for _, tid := range threads {
			text, err := os.ReadFile(filepath.Join(proc, strconv.Itoa(tid), "cgroup"))
			if err != nil {
				continue // it has ended
			}
			if path := identity(string(text)); path != "" {
				class := "batch"
				if i < len(o.Cell.Parts) && o.Cell.Parts[i].Measure {
					class = "latency-sensitive"
				}
				all = append(all, rule{path, o.Names[i], class})
				break
			}
		}
	}
	if len(all) == 0 {
		return nil, errors.New("record the run: no part runs in a cgroup of its own")
	}
	return all, nil
}

// identity is the path by which the agent identifies the task of a process, from its
// /proc/PID/cgroup (cgroups(7)): the path in cgroup2 or, where that is the root, the path
// in v1's cpu hierarchy; "" where it is in neither.
func identity(text string) string {
	cpu := ""
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(f) < 3 || f[2] == "/":
		case f[0] == "0" && f[1] == "":
			return f[2]
		case strings.Contains(","+f[1]+",", ",cpu,"):
			cpu = f[2]
		}
	}
	return cpu
}

func configuration(dir, trace string, r study.Recording, rules []rule) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "state_dir: %q\nsocket: %q\nlisten: \"\"\nlog_level: warn\nrecord: %q\nsignals: [%s]\n",
		dir, filepath.Join(dir, "agent.sock"), trace, strings.Join(r.Signals, ", "))
	// No task is capped and no signal is paused because it is expensive: this is a
	// measurement.
	fmt.Fprintf(&b, "tick: %s\nsampling: {duration: %s, period: %s, max_tax: 0}\n", min(tick, r.Period), r.Period, r.Period)
	fmt.Fprintf(&b, "detect: {outlier_window: %s, window: %s}\nenforce: {mode: \"off\"}\nrules:\n", 5*r.Period, 10*r.Period)
	for _, one := range rules {
		fmt.Fprintf(&b, "  - {match: %q, job: %q, class: %s}\n", one.path, one.job, one.class)
	}
	return b.Bytes()
}

// stop ends the agent, which writes its samples. An agent that does not exit, or exited
// by itself, is an error with the end of its log.
func (a *agent) stop() error {
	var err error
	if sent := a.cmd.Process.Signal(syscall.SIGTERM); sent != nil && !errors.Is(sent, os.ErrProcessDone) {
		err = sent
	}
	select {
	case end := <-a.ended:
		err = errors.Join(err, end)
	case <-time.After(patience):
		err = errors.Join(err, fmt.Errorf("it did not exit within %s of SIGTERM", patience), a.cmd.Process.Kill(), <-a.ended)
	}
	if err != nil {
		text, _ := os.ReadFile(a.log)
		err = fmt.Errorf("record the run: quell-agent: %w; its log: %s", err, last(text))
	}
	return errors.Join(err, os.RemoveAll(a.scratch))
}

// last is the end of a log in one line.
func last(text []byte) string {
	const most = 400
	text = bytes.TrimSpace(text)
	if len(text) > most {
		text = text[len(text)-most:]
	}
	return strings.ReplaceAll(string(text), "\n", " | ")
}
