package env

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/network"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The environments also run the test binary: as the holder, and as a workload that
// prints iterations until it is ended.
const childEnv = "QUELL_ENV_CHILD"

var _ interface{ Inside() lab.Watchable } = (*qemuGuest)(nil)

func TestMain(m *testing.M) {
	role := os.Getenv(childEnv)
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "play-") {
		role = os.Args[1]
		os.Args = os.Args[1:]
	}
	switch role {
	case "play-hold":
		die(WaitAndExec(os.Args[1:]))
	case "play-agent":
		die(AgentMain(os.Args[1:], nil))
	case "play-qemu":
		die(fakeQEMU(os.Args[1:]))
	case "play-enter":
		die(network.Enter(os.Args[1], os.Args[2:]))
	case "play-get":
		die(get(os.Args[1]))
	case "play-signal":
		die(signalQEMU(os.Args[1]))
	case "play-work":
		work()
	case "play-lab":
		die(labThatIsKilled())
	default:
		quelltest.Main(m)
	}
}

func die(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// get prints the status of an answer.
func get(url string) error {
	r, err := http.Get(url)
	if err != nil {
		return err
	}
	fmt.Println(r.Status)
	return r.Body.Close()
}

// work is like quell's own workloads: it waits for a line if told to, prints where it
// runs, and then iterations of some milliseconds.
func work() {
	if len(os.Args) > 1 && os.Args[1] == "waits" {
		if line(os.Stdin) != nil {
			os.Exit(0)
		}
		go func() {
			_, _ = os.Stdin.Read(make([]byte, 1))
			os.Exit(0)
		}()
	}
	fmt.Println("pid", os.Getpid())
	for {
		from := host.Monotonic()
		for host.Monotonic()-from < 5e6 {
		}
		fmt.Printf("%s%d %d 1\n", role.IterationLine, from, host.Monotonic())
	}
}

const testPrefix = "quell-test-lab"

// said is output as it arrives.
type said struct{ quelltest.Output }

func (s *said) lines(prefix string) []string {
	var all []string
	for l := range strings.Lines(s.String()) {
		if strings.HasPrefix(l, prefix) {
			all = append(all, strings.TrimSpace(l))
		}
	}
	return all
}

func openMaker(t *testing.T) *Maker {
	t.Helper()
	quelltest.Need(t, quelltest.Root)
	m, err := Open(Options{Hold: []string{os.Args[0], "play-hold"}, Agent: []string{os.Args[0], "play-agent"}, Prefix: testPrefix,
		Console: func(part, line string) { t.Logf("%s| %s", part, line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func part(d study.Driver) *study.Part {
	return &study.Part{Role: "fg", Environment: study.Environment{Name: "ve", Driver: d, CPUs: 1}}
}

func makeEnv(t *testing.T, m *Maker, p *study.Part) lab.Environment {
	t.Helper()
	e, err := m.Make(t.Context(), p)
	var lack *lab.LackError
	if errors.As(err, &lack) {
		quelltest.Skip(t, "lab-"+string(p.Environment.Driver), err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 2 { // a second Close does nothing
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return e
}

func lastCPU(t *testing.T) int {
	t.Helper()
	set, err := host.Affinity(0)
	if err != nil {
		t.Fatal(err)
	}
	all := set.Numbers()
	return all[len(all)-1]
}

// A part waits at the barrier until it is released, is where it was placed, counts its
// CPU time, stands still while it is frozen, and is gone afterwards.
func TestNative(t *testing.T) {
	for _, driver := range []study.Driver{study.Bare, study.Cgroup} {
		for _, waits := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, waits %t", driver, waits), func(t *testing.T) {
				m := openMaker(t)
				e := makeEnv(t, m, part(driver))
				play(t, m, e, os.Args[0], waits)
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				for _, dir := range e.(*native).dirs {
					if _, err := os.Stat(dir); !os.IsNotExist(err) {
						t.Errorf("%s is still there: %v", dir, err)
					}
				}
			})
		}
	}
}

// play checks an environment against the interface's contract.
func play(t *testing.T, m *Maker, e lab.Environment, exe string, waits bool) {
	t.Helper()
	on := sample.SetOf(lastCPU(t))
	if err := e.Pin([]sample.Set{on}); err != nil {
		t.Fatal(err)
	}
	placed := func(when string) {
		t.Helper()
		got, err := e.Pinned()
		if err != nil || len(got) != 1 || got[0].String() != on.String() {
			t.Errorf("%s it may run on %v, %v, want %s", when, got, err, on)
		}
	}
	placed("before it is started")
	job := lab.Job{Name: "fg", Argv: []string{exe, "play-work"}, WaitsForStart: waits, Stdout: &said{}, Stderr: &said{}}
	if waits {
		job.Argv = append(job.Argv, "waits")
	}
	out := job.Stdout.(*said)
	before := time.Now()
	p, err := e.Start(t.Context(), job)
	if err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it has threads", func() bool { ids, err := e.Threads(); return err == nil && len(ids) > 0 })
	placed("held")
	if out.String() != "" {
		t.Errorf("it has begun: %q", out)
	}
	at, within, err := p.Begin()
	if err != nil || at.Before(before) || within < 0 {
		t.Fatalf("began at %v within %v: %v", at, within, err)
	}
	quelltest.Until(t, "it says iterations", func() bool { return len(out.lines(role.IterationLine)) > 3 })
	placed("running")
	var from, to, units int64
	if _, err := fmt.Sscanf(out.lines(role.IterationLine)[0], role.IterationLine+"%d %d %d", &from, &to, &units); err != nil {
		t.Fatal(err)
	}
	slack := within + 50*time.Millisecond
	if begin := p.Clock(from); begin.Before(at.Add(-slack)) || begin.After(time.Now().Add(slack)) {
		t.Errorf("its first iteration is at %v after it was let go", begin.Sub(at))
	}
	used := func() time.Duration {
		u, err := e.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return u.Total()
	}
	quelltest.Until(t, "it wants to run", func() bool { ready, err := e.Ready(); return err == nil && ready })
	if err := e.Freeze(true); err != nil {
		t.Fatal(err)
	}
	if ready, err := e.Ready(); ready || err != nil {
		t.Errorf("frozen, it wants to run: %t, %v", ready, err)
	}
	// A task counts as frozen just before it leaves its CPU, where it may be interrupted once more.
	quelltest.Until(t, "it has left its CPU", func() bool { return offCPU(t, e) })
	stopped := used()
	if stopped <= 0 {
		t.Error("it used no CPU time")
	}
	burn(30 * time.Millisecond)
	if now := used(); now != stopped {
		t.Errorf("it used %v while frozen", now-stopped)
	}
	if err := e.Freeze(false); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it runs on", func() bool { return used() > stopped+10*time.Millisecond })
	if p.Err() != nil {
		t.Errorf("it runs and has failed: %v", p.Err())
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	<-p.Done()
	if p.Err() != nil {
		t.Errorf("it was stopped and has failed: %v", p.Err())
	}
}

// offCPU reports whether every thread in an environment sleeps and has left its CPU: the kernel
// says where a thread sleeps only then (proc_pid_wchan(5)).
func offCPU(t *testing.T, e lab.Environment) bool {
	t.Helper()
	ids, err := boxOf(e).Threads()
	if err != nil {
		t.Fatal(err)
	}
	return !slices.ContainsFunc(ids, func(id int) bool {
		where, err := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", id))
		return err == nil && string(where) == "0"
	})
}

// burn uses CPU time for d without sleeping.
func burn(d time.Duration) {
	for begin := time.Now(); time.Since(begin) < d; {
	}
}

// A container is like any other environment, and sees the host's programs.
func TestContainer(t *testing.T) {
	for _, waits := range []bool{true, false} {
		t.Run(fmt.Sprintf("waits %t", waits), func(t *testing.T) {
			quelltest.Need(t, "lxc-start")
			m := openMaker(t)
			e := makeEnv(t, m, part(study.LXC))
			play(t, m, e, os.Args[0], waits)
			out := &said{}
			p, err := e.Start(t.Context(), lab.Job{Argv: []string{"sh", "-c", "echo host $(hostname) pid $$; exit 3"}, Stdout: out})
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := p.Begin(); err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			if !strings.HasPrefix(out.String(), "host quell pid ") || p.Err() == nil || !strings.Contains(p.Err().Error(), "3") {
				t.Errorf("it said %q and ended with %v", out, p.Err())
			}
			var lack *lab.LackError
			if _, err := e.Start(t.Context(), lab.Job{Argv: []string{"/no/such/program"}, WaitsForStart: true}); !errors.As(err, &lack) {
				t.Errorf("a program that is missing: %v", err)
			}
			c := e.(*container)
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			left, err := filepath.Glob("/sys/fs/cgroup/*/" + c.tree.Top() + "/*")
			if err != nil || len(left) > 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

// A container sees its study's command and its folder, wherever that is on the host, and has a /tmp of
// its own also if the command is there.
func TestContainerOfACommand(t *testing.T) {
	quelltest.Need(t, "lxc-start")
	alone, err := os.CreateTemp("/tmp", "quell-test-run-*")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(alone.Name())
	if err := alone.Close(); err != nil {
		t.Fatal(err)
	}
	m := openMaker(t)
	for _, program := range []string{filepath.Join(t.TempDir(), "run"), alone.Name()} {
		if err := os.WriteFile(program, []byte("#!/bin/sh\necho it runs >/tmp/text && cat /tmp/text\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(program, 0o755); err != nil {
			t.Fatal(err)
		}
		p := part(study.LXC)
		p.Workload.Command = []string{program}
		e := makeEnv(t, m, p)
		out := &said{}
		q, err := e.Start(t.Context(), lab.Job{Argv: p.Workload.Command, Stdout: out})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := q.Begin(); err != nil {
			t.Fatal(err)
		}
		<-q.Done()
		if out.String() != "it runs\n" || q.Err() != nil {
			t.Errorf("%s: it said %q and ended with %v", program, out, q.Err())
		}
	}
}

// A container whose agent answers and that is not where it belongs is an error, and nothing of
// it is left: the agent is told to end.
func TestContainerElsewhere(t *testing.T) {
	bin := t.TempDir()
	elsewhere := "#!/bin/sh\nwhile [ $# -gt 1 ]; do [ \"$1\" != -f ] || config=$2; shift; done\nexec " + os.Args[0] + " play-agent socket ${config%/config}/lab/" + socketName + "\n"
	if err := os.WriteFile(filepath.Join(bin, "lxc-start"), []byte(elsewhere), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	m := openMaker(t)
	made := make(chan error, 1)
	go func() {
		_, err := m.Make(t.Context(), part(study.LXC))
		made <- err
	}()
	var err error
	quelltest.Until(t, "the container's end", func() bool {
		select {
		case err = <-made:
			return true
		default:
			return false
		}
	})
	if err == nil || !strings.Contains(err.Error(), "LXC did not place the container in cgroup") {
		t.Error(err)
	}
}

func TestFailuresAreTold(t *testing.T) {
	m := openMaker(t)
	e := makeEnv(t, m, part(study.Cgroup))
	var lack *lab.LackError
	if _, err := e.Start(t.Context(), lab.Job{Argv: []string{"no-such-program-anywhere"}}); !errors.As(err, &lack) {
		t.Errorf("a program that is missing: %v", err)
	}
	if err := e.Pin([]sample.Set{sample.SetOf(0), sample.SetOf(0)}); !errors.As(err, &lack) {
		t.Errorf("two sets for one cgroup: %v", err)
	}
	p, err := e.Start(t.Context(), lab.Job{Argv: []string{"false"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if p.Err() == nil {
		t.Error("false has not failed")
	}
	// A held program that is never released ends without an error.
	p, err = e.Start(t.Context(), lab.Job{Argv: []string{"false"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(); err != nil || p.Err() != nil {
		t.Errorf("stopped at the barrier: %v, %v", err, p.Err())
	}
}

// A frozen part can be closed, together with the processes that it started.
func TestCloseFrozen(t *testing.T) {
	m := openMaker(t)
	e := makeEnv(t, m, part(study.Cgroup))
	p, err := e.Start(t.Context(), lab.Job{Argv: []string{"sh", "-c", "setsid sleep 1000 & setsid sleep 1000 & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	// Processes, since what holds it at the barrier has several threads too.
	quelltest.Until(t, "it has children", func() bool {
		procs, err := os.ReadFile(filepath.Join(boxOf(e).all, "cgroup.procs"))
		return err == nil && len(strings.Fields(string(procs))) == 3
	})
	ids, err := e.Threads()
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Freeze(true); err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		quelltest.Until(t, "it is gone", func() bool { return errors.Is(unix.Kill(id, 0), unix.ESRCH) || zombie(id) })
	}
}

func zombie(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || strings.Contains(string(text), ") Z ")
}

func TestMemoryLimit(t *testing.T) {
	m := openMaker(t)
	p := part(study.Cgroup)
	p.Environment.Memory = 64 << 20
	e := makeEnv(t, m, p)
	path := e.(*native).file("memory.max", "memory.limit_in_bytes")
	text, err := os.ReadFile(path)
	if err != nil || strings.TrimSpace(string(text)) != strconv.Itoa(64<<20) {
		t.Errorf("%s says %q, %v", path, text, err)
	}
}
