package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
		t := &task{name: v.name, program: v, cpus: one, victim: true}
		if err := p.start(ctx, t); err != nil {
			return nil, err
		}
		vs = append(vs, t)
	}
	for _, i := range s.innocents {
		if err := p.start(ctx, &task{name: i.name, program: i, cpus: all}); err != nil {
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
// quarter on.
func (p *recorder) stages(ctx context.Context, vs []*task, cpus sample.Set) ([]stretch, error) {
	done := 0
	wait := func(intervals int) error {
		for range intervals {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(interval):
			}
			done++
			p.tell(done)
			p.mu.Lock()
			err := p.fail
			p.mu.Unlock()
			if err != nil {
				return err
			}
		}
		return nil
	}
	var all []stretch
	begin := func(s stretch) { s.from = time.Now(); all = append(all, s) }
	end := func() { all[len(all)-1].to = time.Now() }
	if err := wait(learning / 4); err != nil {
		return nil, err
	}
	begin(stretch{calm: true})
	if err := wait(learning - learning/4); err != nil {
		return nil, err
	}
	end()
	arrivals := map[string]int{}
	for i := range p.scene.stages {
		s := &p.scene.stages[i]
		var there []*task
		st := stretch{}
		for _, a := range s.antagonists {
			name := a.name
			if arrivals[name]++; arrivals[name] > 1 {
				name += "-" + strconv.Itoa(arrivals[name])
			}
			there = append(there, &task{name: name, program: a, cpus: cpus})
			st.antagonists = append(st.antagonists, antagonist{sample.TaskName("/corpus/" + name), a.cause})
		}
		rounds, length := 1, busy
		if s.shape == bursts {
			rounds, length = 3, burst
		}
		for k := range rounds {
			if k > 0 {
				begin(stretch{calm: true})
				if err := wait(burst); err != nil {
					return nil, err
				}
				end()
			}
			begin(st)
			for _, t := range there {
				if err := p.launch(t); err != nil {
					return nil, err
				}
			}
			if s.shape == phase {
				v := vs[s.victim]
				all[len(all)-1].phase = "/corpus/" + v.name
				if err := os.WriteFile(filepath.Join(v.dir, "heavy"), nil, 0o644); err != nil {
					return nil, err
				}
			}
			if s.shape == ramp {
				for n := 1; n <= 4; n++ {
					if n == 3 { // its weight before may be too low to hurt a victim
						end()
						begin(st)
					}
					if err := errors.Join(p.weigh(there[0], float64(n*n)/16), wait(length/4)); err != nil {
						return nil, err
					}
				}
			} else if err := wait(length); err != nil {
				return nil, err
			}
			for _, t := range there {
				if err := p.kill(t); err != nil {
					return nil, err
				}
			}
			if s.shape == phase {
				if err := os.Remove(filepath.Join(vs[s.victim].dir, "heavy")); err != nil {
					return nil, err
				}
			}
			end()
		}
		for _, t := range there {
			if err := p.tree.Remove(t.name); err != nil {
				return nil, err
			}
		}
		begin(stretch{calm: true})
		if err := wait(calm); err != nil {
			return nil, err
		}
		end()
	}
	return all, nil
}

// start runs a program's setup, and then the program until the scene ends.
func (p *recorder) start(ctx context.Context, t *task) error {
	if t.setup != "" {
		cmd, err := p.command(t, t.setup)
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
	cmd := exec.Command("sh", "-c", script)
	cmd.Env = append(os.Environ(), "D="+t.dir, "LC_ALL=C")
	if p.scene.on == onLink {
		cmd = inNamespace(near, "sh", "-c", script)
		cmd.Env = append(os.Environ(), "D="+t.dir, "LC_ALL=C", "LISTEN="+farAddress, "FAR="+strings.Join(inNamespace(far).Args, " "))
	}
	cmd.Dir = t.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd, nil
}

func (t *task) progress() string { return filepath.Join(t.dir, "progress") }

// launch starts a task's program.
func (p *recorder) launch(t *task) error {
	cmd, err := p.command(t, t.run)
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

// weigh sets a task's CPU weight to a multiple of the default weight.
func (p *recorder) weigh(t *task, weight float64) error {
	dir, v1 := p.tree.CPUDir(t.name)
	file, usual := "cpu.weight", 100.0
	if v1 {
		file, usual = "cpu.shares", 1024
	}
	return os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(max(1, int(weight*usual)))), 0)
}

// kill ends all processes in a task's cgroup, and keeps the cgroup.
func (p *recorder) kill(t *task) error {
	p.mu.Lock()
	t.stopped = true
	p.mu.Unlock()
	for until := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		left := 0
		for _, dir := range p.tree.Dirs(t.name) {
			text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			for _, word := range strings.Fields(string(text)) {
				if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
					left++
					_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
				}
			}
		}
		if left == 0 {
			<-t.ended
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("%s does not exit", t.name)
		}
	}
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
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	in, err := trace.NewReader(f)
	if err != nil {
		return nil, err
	}
	named := func(n sample.TaskName) sample.TaskName {
		if rest, ok := strings.CutPrefix(string(n), p.tree.Top()+"/"); ok {
			return sample.TaskName("/corpus/" + rest)
		}
		return n
	}
	var all []sample.Sample
	for {
		var s sample.Sample
		switch err := in.Read(&s); {
		case err == io.EOF && in.Report().Bad > 0:
			return nil, fmt.Errorf("%d bad rows", in.Report().Bad)
		case err == io.EOF:
			return all, nil
		case err != nil:
			return nil, err
		}
		s.Machine, s.Task = p.scene.name, named(s.Task)
		served := make([]sample.Served, len(s.Served))
		for i, o := range s.Served {
			o.By = named(o.By)
			served[i] = o
		}
		if s.Served != nil {
			s.Served = served
		}
		all = append(all, s)
	}
}
