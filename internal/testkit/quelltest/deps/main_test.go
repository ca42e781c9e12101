package main

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// machine is a fake with installed programs and a package manager that records its calls.
type machine struct {
	has   []string
	calls []string
	gives map[string][]string // programs by package
}

func (m *machine) lacks(name string) bool { return !slices.Contains(m.has, name) }

func (m *machine) apt(_ context.Context, args ...string) error {
	m.calls = append(m.calls, strings.Join(args, " "))
	if args[0] == "install" {
		for _, pkg := range args[1:] {
			m.has = append(m.has, m.gives[pkg]...)
		}
	}
	return nil
}

// all returns the programs by package, from the table.
func all() map[string][]string {
	gives := map[string][]string{}
	for _, s := range suites() {
		for _, p := range s.programs {
			gives[p.pkg] = append(gives[p.pkg], p.name)
		}
	}
	return gives
}

func TestWhatIsMissingIsInstalled(t *testing.T) {
	m := &machine{has: []string{"git", "stress-ng"}, gives: all()}
	if err := run(t.Context(), io.Discard, []string{"browser", "soak"}, false, m.lacks, m.apt); err != nil {
		t.Fatal(err)
	}
	want := []string{"update -qq", "install -y -qq --no-install-recommends chromium make"}
	if !slices.Equal(m.calls, want) {
		t.Errorf("apt-get %q, want %q", m.calls, want)
	}
	m.calls = nil
	if err := run(t.Context(), io.Discard, []string{"browser", "soak"}, false, m.lacks, m.apt); err != nil || m.calls != nil {
		t.Errorf("nothing missing: apt-get %q, %v", m.calls, err)
	}
}

func TestAllSuitesByDefault(t *testing.T) {
	m := &machine{gives: all()}
	if err := run(t.Context(), io.Discard, nil, false, m.lacks, m.apt); err != nil || len(m.calls) != 2 {
		t.Fatalf("apt-get %q, %v", m.calls, err)
	}
	words := strings.Fields(m.calls[1])
	slices.Sort(words)
	if n := len(slices.Compact(words)); n != len(strings.Fields(m.calls[1])) {
		t.Errorf("a package twice: %s", m.calls[1])
	}
}

func TestAPackageWithoutItsProgram(t *testing.T) {
	m := &machine{}
	if err := run(t.Context(), io.Discard, []string{"browser"}, false, m.lacks, m.apt); err == nil || !strings.Contains(err.Error(), "still missing: chromium") {
		t.Errorf("%v", err)
	}
	failing := func(context.Context, ...string) error { return errors.New("no network") }
	if err := run(t.Context(), io.Discard, []string{"browser"}, false, m.lacks, failing); err == nil || !strings.Contains(err.Error(), "no network") {
		t.Errorf("%v", err)
	}
}

func TestTellInstallsNothing(t *testing.T) {
	m := &machine{has: []string{"git"}}
	var out strings.Builder
	if err := run(t.Context(), &out, []string{"soak"}, true, m.lacks, m.apt); err != nil || m.calls != nil {
		t.Fatalf("apt-get %q, %v", m.calls, err)
	}
	if !strings.HasPrefix(out.String(), "not installed: make, stress-ng; ") || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("it says %q", out.String())
	}
}

func TestUnknownSuite(t *testing.T) {
	m := &machine{}
	if err := run(t.Context(), io.Discard, []string{"tset"}, false, m.lacks, m.apt); err == nil || m.calls != nil {
		t.Errorf("%v, apt-get %q", err, m.calls)
	}
}

// noPackage is what CI promises and no Debian package provides: capabilities of the
// machine and its kernel, Go itself, and what `make test-deps` builds or downloads.
const noPackage = `root two-cpus cgroups cgroup-v1 cgroup-v1-blkio cpuacct-apart cgroup-2 cgroup-freezer
	ebpf tracepoints perf-software schedstat psi inotify inotify-queue namespaces ipv6 procfs loop-device disk
	c-compiler go versitygw guest-kernel`

// Every other promise is a program that this program installs.
func TestPromisedProgramsAreInstalled(t *testing.T) {
	installed, err := of(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range quelltest.Promised() {
		if !slices.Contains(strings.Fields(noPackage), name) && !slices.ContainsFunc(installed, func(p program) bool { return p.name == name }) {
			t.Errorf("%s is promised, is not said to come without a package, and no suite installs it", name)
		}
	}
}
