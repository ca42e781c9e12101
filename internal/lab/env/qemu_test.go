package env

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// static builds this test's binary so that a guest can run it, with the Makefile's flags, so that
// what is compiled for the programs is used again.
func static(t *testing.T) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), "env.test")
	cmd := exec.Command("go", "test", "-c", "-trimpath", "-buildvcs=false", "-o", exe, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return exe
}

// A guest is like any other environment: its virtual CPUs are placed, also one by one,
// its clock is known, and it stands still while it is frozen.
func TestGuest(t *testing.T) {
	quelltest.Need(t, quelltest.Root, "qemu-system-x86_64")
	var missing *guest.MissingError
	if _, err := guest.Find(nativeArch()); errors.As(err, &missing) {
		quelltest.Skip(t, "guest-kernel", err)
	}
	exe := static(t)
	m, err := Open(Options{Hold: []string{exe, "play-hold"}, Agent: []string{exe, "play-agent"}, Prefix: testPrefix,
		Console: func(part, line string) { t.Logf("%s| %s", part, line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	p := part(study.QEMU)
	p.Environment.CPUs, p.Environment.Memory, p.Environment.Accel = 2, 256<<20, []string{"tcg"}
	begin := time.Now()
	e := makeEnv(t, m, p)
	g := e.(*qemuGuest)
	before, unsure := g.Clock()
	t.Logf("booted in %v, clock ±%v", time.Since(begin), unsure)
	ids, err := e.Threads()
	if err != nil || len(ids) != 2 || ids[0] == ids[1] {
		t.Errorf("threads %v, %v, want two", ids, err)
	}
	cpu := lastCPU(t)
	apart := []sample.Set{sample.SetOf(cpu), sample.SetOf(0, cpu)}
	if err := e.Pin(apart); err != nil {
		t.Fatal(err)
	}
	if got, err := e.Pinned(); err != nil || len(got) != 2 || got[0].String() != apart[0].String() || got[1].String() != apart[1].String() {
		t.Errorf("pinned on %v, %v, want %v", got, err, apart)
	}
	if err := e.Pin(make([]sample.Set, 3)); err == nil {
		t.Error("three sets for two virtual CPUs")
	}
	play(t, m, e, exe, true)
	// After it was frozen for a while, its clock still agrees with the host's.
	if err := g.measure(t.Context()); err != nil {
		t.Fatal(err)
	}
	after, still := g.Clock()
	drift := after - before
	if drift.Abs() > 100*time.Millisecond+unsure+still {
		t.Errorf("its clock has drifted by %v, known to ±%v and ±%v", drift, unsure, still)
	}
	t.Logf("drift %v in %v, clock ±%v", drift, time.Since(begin), still)
	var lack *lab.LackError
	if _, err := e.Start(t.Context(), lab.Job{Argv: []string{"/no/such/program"}, WaitsForStart: true}); !errors.As(err, &lack) {
		t.Errorf("a program that is missing: %v", err)
	}
	// All that QEMU itself has used since its start is the part's, or it would count as foreign.
	stat, err := host.ReadProcessStat(fmt.Sprintf("/proc/%d/stat", g.qemu.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if u, err := e.Usage(); err != nil || u.Total() < stat.Used-100*time.Millisecond { // it forked outside
		t.Errorf("the part has used %v, QEMU alone %v: %v", u.Total(), stat.Used, err)
	}
	held := lab.Job{Argv: []string{exe, "play-work"}, Stdout: &said{}}
	q, err := e.Start(t.Context(), held)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := q.Begin(); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "a held program works", func() bool { return len(held.Stdout.(*said).lines(role.IterationLine)) > 0 })
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	<-q.Done()
	if q.Err() == nil {
		t.Error("its guest is gone and it has not failed")
	}
}

// An accelerator that does not work is skipped, and so is a study that allows no other.
func TestAccelerators(t *testing.T) {
	m := openMaker(t)
	m.accel["kvm"] = errors.New("it does not work here")
	p := part(study.QEMU)
	p.Environment.Accel = []string{"kvm"}
	var lack *lab.LackError
	if _, err := m.Make(t.Context(), p); !errors.As(err, &lack) || !strings.Contains(err.Error(), "does not work here") {
		t.Errorf("%v", err)
	}
	both, bare := p.Environment, study.Environment{Driver: study.Bare}
	both.Accel = nil
	stamp := m.Stamp(t.Context(), map[string]study.Environment{"a": both, "b": both, "c": bare})
	if !slices.Contains(stamp, "accel=tcg") || len(stamp) > 2 {
		t.Errorf("stamped %v", stamp)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.Environment.Accel = []string{"tcg"}
	if _, err := m.Make(ctx, p); err == nil {
		t.Error("booted after its context ended")
	}
	if left := m.trees[false]; left != nil && len(left.Leftovers()) > len(left.Dirs(""))+3 {
		t.Errorf("left %v", left.Leftovers())
	}
}

// Once an accelerator has worked, a guest that does not boot is a failed run: it is not emulated under
// another stamp, and the machine lacks nothing. Neither is lacking where KVM is all that is allowed.
func TestGuestThatDoesNotBoot(t *testing.T) {
	m, p := fakeGuest(t, "panics")
	m.accel["tcg"] = nil
	p.Environment.Accel = []string{"tcg", "kvm"}
	var lack *lab.LackError
	if _, err := m.Make(t.Context(), p); err == nil || errors.As(err, &lack) || strings.Contains(err.Error(), "accelerator kvm") {
		t.Errorf("after it has worked: %v", err)
	}
	p.Environment.Accel = []string{"kvm"}
	if stamp := m.Stamp(t.Context(), map[string]study.Environment{"a": p.Environment}); !slices.Contains(stamp, "accel=kvm") {
		t.Errorf("stamped %v", stamp)
	}
	// Nor do the guests of one environment that do not boot make those of another be emulated.
	m.accel["kvm"] = nil
	p.Environment.Accel = []string{"kvm", "tcg"}
	if stamp := m.Stamp(t.Context(), map[string]study.Environment{"a": p.Environment}); !slices.Contains(stamp, "accel=kvm") || m.accel["kvm"] != nil {
		t.Errorf("after another's has worked: stamped %v, %v", stamp, m.accel["kvm"])
	}
	delete(m.accel, "kvm")
	p.Environment.Accel = []string{"kvm"}
	if err := unix.Access("/dev/kvm", unix.R_OK|unix.W_OK); err != nil {
		quelltest.Skip(t, "kvm", err)
	}
	if _, err := m.Make(t.Context(), p); err == nil || errors.As(err, &lack) || !strings.Contains(err.Error(), "Unable to mount root") {
		t.Errorf("KVM alone: %v", err)
	}
	// If none has worked yet, those of that environment are emulated, as stamped, and no others.
	p.Environment.Accel = []string{"kvm", "tcg"}
	if stamp := m.Stamp(t.Context(), map[string]study.Environment{"a": p.Environment}); !slices.Contains(stamp, "accel=tcg") {
		t.Errorf("before any has worked: stamped %v", stamp)
	}
	if _, err := m.Make(t.Context(), p); err == nil || strings.Contains(err.Error(), "fg: accelerator kvm") {
		t.Errorf("stamped as emulated: %v", err)
	}
	p.Environment.Name, p.Environment.Accel = "another", []string{"kvm"}
	if _, err := m.Make(t.Context(), p); err == nil || errors.As(err, &lack) {
		t.Errorf("another environment's: %v", err)
	}
}

// The client of QEMU's protocol, with the answers of QEMU 7.2.
func TestQMP(t *testing.T) {
	for _, c := range []struct{ name, said, want string }{
		{"two vCPUs, an event between", `{"QMP": {"version": {}, "capabilities": ["oob"]}}
{"return": {}}
{"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RESUME"}
{"return": [{"thread-id": 4712, "cpu-index": 1, "target": "x86_64"}, {"thread-id": 4711, "cpu-index": 0, "target": "x86_64"}]}`, ""},
		{"another protocol", `{"hello": 1}`, "not QMP"},
		{"refused", `{"QMP": {}} {"error": {"class": "CommandNotFound", "desc": "no"}}`, "CommandNotFound: no"},
		{"no vCPUs", `{"QMP": {}} {"return": {}} {"return": []}`, "no virtual CPUs"},
		{"one twice", `{"QMP": {}} {"return": {}} {"return": [{"thread-id": 7, "cpu-index": 0}, {"thread-id": 8, "cpu-index": 0}]}`, "virtual CPU 0"},
		{"cut short", `{"QMP": {}} {"return"`, "EOF"},
	} {
		here, there := net.Pipe()
		go func() {
			_, _ = there.Write([]byte(c.said))
			_ = there.Close()
		}()
		threads, err := func() ([]int, error) {
			q, err := greet(discarding{here})
			if err != nil {
				return nil, err
			}
			return q.vcpus()
		}()
		_ = here.Close()
		switch {
		case c.want == "" && (err != nil || !slices.Equal(threads, []int{4711, 4712})):
			t.Errorf("%s: %v, %v", c.name, threads, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q in it", c.name, err, c.want)
		}
	}
}

// discarding is a connection whose peer does not read.
type discarding struct{ net.Conn }

func (discarding) Write(p []byte) (int, error) { return len(p), nil }
