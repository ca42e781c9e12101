package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/lab/workload"
)

// sceneRecording is the recording of a scene.
type sceneRecording struct {
	scene     *scene
	samples   []sample.Sample
	stretches []stretch
	judgement
	rates  map[string]float64 // pieces of work a second of each victim, in the first calm stretch
	others float64            // CPU-s/s used outside the scene's tasks
}

// recorder plays scenes on this machine, one at a time.
type recorder struct {
	agent string         // quell-agent
	tell  func(done int) // reports the scene's intervals that are done

	tree  *workload.Tree
	scene *scene
	mu    sync.Mutex
	fail  error // error of a program that ended prematurely
}

// task is a program in a cgroup.
type task struct {
	name string
	*program
	dir     string
	cpus    sample.Set
	victim  bool // its program counts its work
	stopped bool
	cmd     *exec.Cmd
	ended   chan struct{}

	mu   sync.Mutex
	work work // of a victim
}

// prefix is the prefix of the scenes' cgroups.
const prefix = "quell-corpus"

// play plays a scene. Everything it creates is removed, also if ctx ends.
func (p *recorder) play(ctx context.Context, s *scene) (_ *sceneRecording, err error) {
	if _, err := workload.Sweep(prefix); err != nil {
		return nil, err
	}
	p.scene, p.fail = s, nil
	if s.on == onLink {
		if err := makeLink(s.htb); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, removeLink()) }() // after the tasks have ended
	}
	if p.tree, err = workload.OpenTree(prefix, workload.TreeOptions{}); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.tree.Close()) }()
	// The victims' CPU is the last one: the first usually serves interrupts.
	online := []int{0, 1}
	all, one := sample.SetOf(online...), sample.SetOf(online[len(online)-1])
	if s.float {
		one = all
	}
	var vs []*task
	for _, v := range s.victims {
		t := &task{name: v.Name, program: v, cpus: one, victim: true}
		if err := p.start(ctx, t); err != nil {
			return nil, err
		}
		vs = append(vs, t)
	}
	for _, i := range s.innocents {
		if err := p.start(ctx, &task{name: i.Name, program: i, cpus: all}); err != nil {
			return nil, err
		}
	}
	a, file, err := p.startAgent(vs)
	if err != nil {
		return nil, err
	}
	stretches, err := p.stages(ctx, vs, one)
	if err = errors.Join(err, a.Stop(time.Minute)); err != nil {
		return nil, err
	}
	rec := &sceneRecording{scene: s}
	if rec.samples, err = p.samples(file); err != nil {
		return nil, err
	}
	rec.stretches = stretches
	done := map[string]work{}
	for _, v := range vs {
		v.mu.Lock()
		done[v.name] = slices.Clone(v.work)
		v.mu.Unlock()
	}
	rec.computeLabels(done)
	return rec, nil
}

// stages plays the stages and returns the stretches, from the end of learning's first
// quarter on. After an error it does nothing more.
func (p *recorder) stages(ctx context.Context, vs []*task, cpus sample.Set) (all []stretch, err error) {
	try := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	done := 0
	wait := func(intervals int) {
		for range intervals {
			if err != nil {
				return
			}
			select {
			case <-ctx.Done():
				err = ctx.Err()
				return
			case <-time.After(interval):
			}
			done++
			p.tell(done)
			p.mu.Lock()
			err = p.fail
			p.mu.Unlock()
		}
	}
	begin := func(s stretch) { s.from = time.Now(); all = append(all, s) }
	end := func() { all[len(all)-1].to = time.Now() }
	rest := func(intervals int) {
		begin(stretch{calm: true})
		wait(intervals)
		end()
	}
	wait(learning / 4)
	rest(learning - learning/4)
	arrivals := map[string]int{}
	for i := range p.scene.stages {
		s := &p.scene.stages[i]
		var there []*task
		st := stretch{}
		for _, a := range s.antagonists {
			name := a.Name
			if arrivals[name]++; arrivals[name] > 1 {
				name += "-" + strconv.Itoa(arrivals[name])
			}
			there = append(there, &task{name: name, program: a, cpus: cpus})
			st.antagonists = append(st.antagonists, antagonist{sample.TaskName("/corpus/" + name), a.Cause})
		}
		heavy := filepath.Join(vs[s.victim].dir, "heavy")
		if s.shape == phase {
			st.phase = "/corpus/" + vs[s.victim].name
		}
		rounds, length := 1, busy
		if s.shape == bursts {
			rounds, length = 3, burst
		}
		for k := range rounds {
			if k > 0 {
				rest(burst)
			}
			begin(st)
			for _, t := range there {
				try(func() error { return p.launch(t) })
			}
			switch s.shape {
			case phase:
				try(func() error { return os.WriteFile(heavy, nil, 0o644) })
				wait(length)
			case ramp:
				for n := 1; n <= 4; n++ {
					if n == 3 { // its weight before may be too low to hurt a victim
						end()
						begin(st)
					}
					try(func() error { return p.tree.Weigh(there[0].name, float64(n*n)/16) })
					wait(length / 4)
				}
			default:
				wait(length)
			}
			for _, t := range there {
				try(func() error { return p.kill(t) })
			}
			if s.shape == phase {
				try(func() error { return os.Remove(heavy) })
			}
			end()
		}
		for _, t := range there {
			try(func() error { return p.tree.Remove(t.name) })
		}
		rest(calm)
	}
	return all, err
}

// start runs a program's setup, and then the program until the scene ends.
func (p *recorder) start(ctx context.Context, t *task) error {
	if t.Setup != "" {
		cmd, err := p.command(t, t.Setup)
		if err != nil {
			return err
		}
		var text bytes.Buffer
		cmd.Stdout, cmd.Stderr = &text, &text
		cmd.WaitDelay = time.Second // processes it leaves running may keep its output open
		if err := p.tree.Launch(t.name, cmd, t.cpus); err != nil {
			return err
		}
		if err := cmd.Wait(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
			return fmt.Errorf("set up %s: %w: %s", t.name, err, text.String())
		}
	}
	return errors.Join(p.launch(t), ctx.Err())
}

// command creates the directory of a task, if needed, and a command in it.
func (p *recorder) command(t *task, script string) (*exec.Cmd, error) {
	t.dir = filepath.Join(p.tree.Scratch(), t.name)
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return nil, err
	}
	cmd, env := exec.Command("sh", "-c", script), append(os.Environ(), "D="+t.dir, "LC_ALL=C")
	if p.scene.on == onLink {
		cmd, env = inNamespace(near, "sh", "-c", script), append(env, "LISTEN="+farAddress, "FAR="+strings.Join(inNamespace(far).Args, " "))
	}
	cmd.Dir, cmd.Env = t.dir, env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func (t *task) progress() string { return filepath.Join(t.dir, "progress") }

// launch starts a task's program.
func (p *recorder) launch(t *task) error {
	cmd, err := p.command(t, t.Run)
	if err != nil {
		return err
	}
	var out, in *os.File
	var file *os.File
	if t.victim {
		if out, in, err = os.Pipe(); err != nil {
			return err
		}
		defer in.Close()
		cmd.Stdout = in
		if file, err = os.Create(t.progress()); err != nil {
			return err
		}
	}
	if err := p.tree.Launch(t.name, cmd, t.cpus); err != nil {
		return err
	}
	t.cmd, t.ended, t.stopped = cmd, make(chan struct{}), false
	if out != nil {
		go t.count(out, file)
	}
	go func() {
		defer close(t.ended)
		err := cmd.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		if !t.stopped && p.fail == nil {
			p.fail = fmt.Errorf("%s: %w", t.name, errors.Join(err, errors.New("exited before the scene ended")))
		}
	}()
	return nil
}

// count records when each piece of work is done, and updates the task's progress file.
func (t *task) count(out io.ReadCloser, file *os.File) {
	defer out.Close()
	defer file.Close()
	var buf [4096]byte
	var number [8]byte
	for {
		n, err := out.Read(buf[:])
		now := time.Now()
		pieces := bytes.Count(buf[:n], []byte("\n"))
		t.mu.Lock()
		for range pieces {
			t.work = append(t.work, now)
		}
		binary.LittleEndian.PutUint64(number[:], uint64(len(t.work)))
		t.mu.Unlock()
		if pieces > 0 {
			_, _ = file.WriteAt(number[:], 0)
		}
		if err != nil {
			return
		}
	}
}

// kill ends all processes in a task's cgroup, and keeps the cgroup.
func (p *recorder) kill(t *task) error {
	p.mu.Lock()
	t.stopped = true
	p.mu.Unlock()
	if err := p.tree.Kill(t.name); err != nil {
		return err
	}
	<-t.ended
	return nil
}

// startAgent starts an agent that records all tasks of the scene in a trace, by every
// signal that the machine has.
func (p *recorder) startAgent(vs []*task) (a *child.Process, file string, err error) {
	dir := filepath.Join(p.tree.Scratch(), "agent")
	file = filepath.Join(dir, "trace.csv")
	signals := []string{"cpi", "cpt", "cps", "runq", "io"}
	if p.scene.on == onLink {
		signals = append(signals, "net")
	}
	var b strings.Builder
	b.WriteString(child.Recorder(file, signals, interval) + "rules:\n")
	for _, v := range vs {
		fmt.Fprintf(&b, "  - {match: %q, job: %q, class: latency-sensitive, progress: %q}\n", p.tree.Path(v.name), v.name, v.progress())
	}
	fmt.Fprintf(&b, "  - {match: %q, job: \"$1\", class: batch}\n", p.tree.Top()+"/*")
	cmd, err := child.Agent(p.agent, dir, b.String())
	if err != nil {
		return nil, "", err
	}
	a, err = child.Start(cmd, child.Options{Name: "quell-agent", Log: filepath.Join(dir, "log")})
	return a, file, err
}

// samples reads the agent's trace and gives tasks the names that are the same in every
// recording.
func (p *recorder) samples(file string) ([]sample.Sample, error) {
	all, err := trace.Load(file)
	if err != nil {
		return nil, err
	}
	rename := func(n *sample.TaskName) {
		if rest, ok := strings.CutPrefix(string(*n), p.tree.Top()+"/"); ok {
			*n = sample.TaskName("/corpus/" + rest)
		}
	}
	for i := range all {
		s := &all[i]
		s.Machine = p.scene.name
		rename(&s.Task)
		for k := range s.Served {
			rename(&s.Served[k].By)
		}
	}
	return all, nil
}
