package quelltest

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
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

// skip calls Skip with a fake test.
func skip(capability string) (f *fake) {
	f = &fake{}
	defer func() { _ = recover() }()
	Skip(f, capability, errors.New("no"))
	return f
}

func TestSkipNamesTheCapabilityAndFailsInCI(t *testing.T) {
	for _, c := range []struct {
		name, ci, capability, skipped, failed string
	}{
		{"at home", "", "ebpf", "needs ebpf: no", ""},
		{"CI, promised", "true", "ebpf", "", "needs ebpf, which CI promises: no"},
		{"CI, not promised", "true", "pmu", "needs pmu: no", ""},
		{"CI, in neither list", "true", "luck", "", "needs luck, which is neither in promises.txt nor in unpromised.txt of internal/testkit/quelltest: no"},
		{"CI, a word of a comment", "true", "Capabilities", "", "needs Capabilities, which is neither in promises.txt nor in unpromised.txt of internal/testkit/quelltest: no"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("CI", c.ci)
			if f := skip(c.capability); f.skipped != c.skipped || f.failed != c.failed {
				t.Errorf("skipped %q, failed %q; want %q, %q", f.skipped, f.failed, c.skipped, c.failed)
			}
		})
	}
}

// In CI a missing promised capability fails the test, whichever test needs it.
// A missing unpromised one is skipped, and the list gives a reason.
func TestEveryPromiseCanFail(t *testing.T) {
	t.Setenv("CI", "true")
	for _, capability := range Promised() {
		if f := skip(capability); f.failed == "" {
			t.Errorf("without %s: %q", capability, f.skipped)
		}
	}
	for _, capability := range Unpromised() {
		if f := skip(capability); f.skipped == "" {
			t.Errorf("without %s: %q", capability, f.failed)
		}
	}
	for line := range strings.Lines(unpromised) {
		capability, reason, _ := strings.Cut(line, "#")
		if strings.TrimSpace(capability) != "" && strings.TrimSpace(reason) == "" {
			t.Errorf("%s: no reason", strings.TrimSpace(capability))
		}
	}
}

// The lists match tally's pattern, have no duplicates, and promise what every
// CI machine must have.
func TestLists(t *testing.T) {
	all := slices.Concat(Promised(), Unpromised())
	for i, capability := range all {
		if !regexp.MustCompile(`^[\w.-]+$`).MatchString(capability) || slices.Contains(all[:i], capability) {
			t.Errorf("%q: twice, or not in letters, digits, dots and dashes", capability)
		}
	}
	for _, capability := range []string{Root, CgroupV1, Cgroup2, EBPF, Tracepoints, PerfSoftware, Schedstat, PSI, TwoCPUs, Compiler} {
		if !slices.Contains(Promised(), capability) {
			t.Errorf("%s is not promised", capability)
		}
	}
}

// Probe knows every capability of this package; in CI the promised ones are present.
func TestProbeAnswersForEveryCapability(t *testing.T) {
	for _, c := range []string{Root, CgroupV1, Cgroup2, Cgroup2CPU, EBPF, Tracepoints, PerfSoftware, PMU, Schedstat, PSI, TwoCPUs, Compiler} {
		err := Probe(c)
		t.Logf("%-14s %v", c, err)
		switch {
		case err == nil:
		case strings.Contains(err.Error(), "unknown capability"):
			t.Errorf("%s: %v", c, err)
		case os.Getenv("CI") == "true" && slices.Contains(Promised(), c):
			t.Errorf("CI promises %s: %v", c, err)
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
	for _, leak := range leaked(before, time.Minute) {
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
