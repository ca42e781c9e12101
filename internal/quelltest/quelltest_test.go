package quelltest

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

// fake records what a helper did to the test it was given.
type fake struct {
	testing.TB
	skipped, failed string
}

func (f *fake) Helper() {}
func (f *fake) Skipf(format string, args ...any) {
	f.skipped = fmt.Sprintf(format, args...)
}
func (f *fake) Fatalf(format string, args ...any) {
	f.failed = fmt.Sprintf(format, args...)
	panic(f) // like runtime.Goexit, nothing after it runs
}

func TestSkipNamesTheCapabilityAndFailsWhereCIPromisesIt(t *testing.T) {
	for _, c := range []struct {
		name, ci, capability, skipped, failed string
	}{
		{"at home", "", "ebpf", "needs ebpf: no", ""},
		{"CI, promised", "true", "ebpf", "", "needs ebpf, which CI promises: no"},
		{"CI, not promised", "true", "pmu", "needs pmu: no", ""},
		{"CI, a comment is no promise", "true", "of these and does not find it fails instead of being skipped.", "needs of these and does not find it fails instead of being skipped.: no", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("CI", c.ci)
			f := &fake{}
			func() {
				defer func() { _ = recover() }()
				Skip(f, c.capability, errors.New("no"))
			}()
			if f.skipped != c.skipped || f.failed != c.failed {
				t.Errorf("skipped %q, failed %q; want %q, %q", f.skipped, f.failed, c.skipped, c.failed)
			}
		})
	}
}

func TestProbeAnswersForEveryCapability(t *testing.T) {
	for _, c := range []string{Root, CgroupV1, Cgroup2, Cgroup2CPU, EBPF, Tracepoints, PerfSoftware, PMU, Schedstat, PSI, TwoCPUs, Compiler} {
		err := Probe(c)
		t.Logf("%-14s %v", c, err)
		if err != nil && strings.Contains(err.Error(), "unknown capability") {
			t.Errorf("%s: %v", c, err)
		}
	}
	if err := Probe("no-such-program-anywhere"); err == nil {
		t.Error("a program that does not exist was found")
	}
}

func TestLeakedSeesFilesAndGoroutines(t *testing.T) {
	before := openFiles()
	if len(before) == 0 {
		Skip(t, "procfs", errors.New("no /proc/self/fd"))
	}
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan bool), make(chan bool)
	go func() { <-stop; close(stopped) }()

	got := strings.Join(leaked(before, 0), "\n")
	if !strings.Contains(got, "-> /dev/null") {
		t.Errorf("the open file is missing in:\n%s", got)
	}
	if !strings.Contains(got, "TestLeakedSeesFilesAndGoroutines.func") {
		t.Errorf("the goroutine is missing in:\n%s", got)
	}
	f.Close()
	close(stop)
	<-stopped
	for _, leak := range leaked(before, time.Second) {
		if strings.HasPrefix(leak, "fd") || strings.Contains(leak, "TestLeakedSeesFilesAndGoroutines.func") {
			t.Errorf("still reported after the end: %s", leak)
		}
	}
}

func TestUntilGivesUp(t *testing.T) {
	f := &fake{}
	func() {
		defer func() { _ = recover() }()
		until(f, 0, "pigs fly", func() bool { return false })
	}()
	if !strings.Contains(f.failed, "pigs fly") {
		t.Errorf("failed with %q", f.failed)
	}
	n := 0
	Until(t, "three calls", func() bool { n++; return n == 3 })
}
