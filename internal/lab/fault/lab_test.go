package fault

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
)

// studyText is a study of two parts on two CPUs.
type studyText struct {
	repetitions int
	length      time.Duration
	load        bool   // hold the second part at 30 %
	knob        string // value to set, "" for none
	foreign     string // limit of foreign CPU time, "" for none
}

func (t studyText) String() string {
	var b strings.Builder
	load, set, foreign := "", "", "100%"
	if t.load {
		load = ", load: {target: $load, tolerance: 100%}"
	}
	if t.knob != "" {
		set = fmt.Sprintf("preconditions: {set: {stat_interval: %q}}\n", t.knob)
	}
	if t.foreign != "" {
		foreign = t.foreign
	}
	fmt.Fprintf(&b, `version: 1
study: fault
%senvironments: {ve: {driver: cgroup, cpus: 1}}
workloads: {work: {builtin: primes, options: -work=1}}
roles:
  fg: {workload: work, environment: ve, measure: true}
  bg: {workload: work, environment: ve%s}
factors:
`, set, load)
	if t.load {
		b.WriteString("  load: [\"30%\"]\n")
	}
	fmt.Fprintf(&b, `  placement:
    - {name: apart, cpus: {fg: "0", bg: "1"}}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: %d}
run: {for: %s, retries: 0, cooldown: 10ms, max_foreign_cpu: %s, max_steal: 100%%}
`, t.repetitions, t.length, foreign)
	return b.String()
}

// lab is a running `quell lab`.
type lab struct {
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer for its output.
func (l *lab) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lab) output() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(l.text.String())
}

func (s *testbed) start(ctx context.Context, words ...string) (*lab, error) {
	return s.launch(exec.CommandContext(ctx, s.quell, append([]string{"lab"}, words...)...))
}

func (s *testbed) launch(cmd *exec.Cmd) (*lab, error) {
	l := &lab{cmd: cmd, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout, cmd.Stderr = l, l
	}
	// Processes that it starts may keep its output open.
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // its state is in ProcessState
		close(l.done)
	}()
	return l, nil
}

// wait reports whether the lab ends within d.
func (l *lab) wait(d time.Duration) bool {
	select {
	case <-l.done:
		return true
	case <-time.After(d):
		return false
	}
}

// child is a process that a lab started.
type child struct {
	pid  int
	name string
	born uint64 // its start time, to distinguish it from a later process
}

func (c child) lives() bool {
	s, err := stat(c.pid)
	return err == nil && s.Start == c.born && s.State != 'Z'
}

// children returns the present children of the lab, and their descendants.
func (l *lab) children() (all []child) {
	var walk func(pid int)
	walk = func(pid int) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				continue
			}
			for _, word := range strings.Fields(string(text)) {
				if n, err := strconv.Atoi(word); err == nil {
					if s, err := stat(n); err == nil {
						all = append(all, child{n, s.Name, s.Start})
						walk(n)
					}
				}
			}
		}
	}
	walk(l.cmd.Process.Pid)
	return all
}

func stat(pid int) (host.ProcessStat, error) {
	return host.ReadProcessStat(fmt.Sprintf("/proc/%d/stat", pid))
}
