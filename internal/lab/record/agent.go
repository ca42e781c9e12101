package record

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
)

// The files of a recorded run next to its record.
const (
	TraceFile  = "trace.csv"   // the agent's samples; a task's job is its part's name
	CachesFile = "caches.json" // round trips between CPUs, ns, before and after the window
	logFile    = "agent.log"
)

// ScratchPrefix begins the name of an agent's state directory in the run.
const ScratchPrefix = "quell-lab-agent"

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
	*child.Process
	scratch string // its state directory, removed at the end
}

// start runs an agent that follows the run's parts and no other task of the machine.
func start(o lab.Observed, opt Options) (*agent, error) {
	rules, err := rules(o, cmp.Or(opt.Proc, "/proc"))
	if err != nil {
		return nil, err
	}
	scratch, err := workload.Scratch(ScratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("record the run: %w", err)
	}
	a := &agent{scratch: scratch}
	cmd, err := child.Agent(opt.Program, scratch, configuration(filepath.Join(o.Dir, TraceFile), opt.Recording, rules))
	if err == nil {
		a.Process, err = child.Start(cmd, child.Options{Name: "quell-agent", Log: filepath.Join(o.Dir, logFile)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("record the run: %w", err), os.RemoveAll(scratch))
	}
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
	for controller, path := range host.ProcCgroups([]byte(text)) {
		switch {
		case path == "/":
		case controller == "":
			return path
		case controller == "cpu":
			cpu = path
		}
	}
	return cpu
}

func configuration(trace string, r study.Recording, rules []rule) string {
	var b strings.Builder
	b.WriteString(child.Recorder(trace, r.Signals, r.Period) + "rules:\n")
	for _, one := range rules {
		fmt.Fprintf(&b, "  - {match: %q, job: %q, class: %s}\n", one.path, one.job, one.class)
	}
	return b.String()
}

// stop ends the agent, which writes its samples.
func (a *agent) stop() error {
	err := a.Stop(10 * time.Second)
	if err != nil {
		err = fmt.Errorf("record the run: %w", err)
	}
	return errors.Join(err, os.RemoveAll(a.scratch))
}
