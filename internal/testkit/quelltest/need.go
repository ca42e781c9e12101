package quelltest

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var (
	//go:embed promises.txt
	promises string
	//go:embed unpromised.txt
	unpromised string
)

// The capabilities that Need can probe. Any other word is the name of a program
// that must be in PATH ("clang", "python3").
const (
	Root         = "root"          // effective uid 0
	CgroupV1     = "cgroup-v1"     // a v1 cpu hierarchy where cgroups can be made
	Cgroup2      = "cgroup-2"      // a cgroup2 mount where cgroups can be made, with controllers or without
	Cgroup2CPU   = "cgroup-2-cpu"  // the same, and it has the cpu controller
	EBPF         = "ebpf"          // BTF of the kernel, and a program may be loaded
	Tracepoints  = "tracepoints"   // perf counts a tracepoint
	PerfSoftware = "perf-software" // perf counts a software event of a cgroup
	PMU          = "pmu"           // perf counts CPU cycles
	Schedstat    = "schedstat"     // /proc/PID/schedstat
	PSI          = "psi"           // /proc/pressure/cpu
	TwoCPUs      = "two-cpus"      // this process may run on at least two CPUs
	Compiler     = "c-compiler"    // gcc or clang
)

// Need skips the test unless the machine has every one of the capabilities.
// The skip reads "needs NAME: reason". With CI=true in the environment the test
// fails instead, unless the capability is one of [Unpromised].
func Need(t testing.TB, capabilities ...string) {
	t.Helper()
	for _, c := range capabilities {
		if err := Probe(c); err != nil {
			Skip(t, c, err)
		}
	}
}

// Skip is Need for a capability that only the caller can check: it is missing
// for the given reason.
func Skip(t testing.TB, capability string, reason error) {
	t.Helper()
	if os.Getenv("CI") == "true" && !slices.Contains(Unpromised(), capability) {
		list := "CI promises"
		if !slices.Contains(Promised(), capability) {
			list = "is neither in promises.txt nor in unpromised.txt of internal/testkit/quelltest"
		}
		t.Fatalf("needs %s, which %s: %v", capability, list, reason)
	}
	t.Skipf("needs %s: %v", capability, reason)
}

// Promised returns the capabilities of promises.txt: a machine for CI must have them.
func Promised() []string { return names(promises) }

// Unpromised returns the capabilities of unpromised.txt: CI may lack them.
func Unpromised() []string { return names(unpromised) }

// names returns the first word of each line; "#" begins a comment.
func names(text string) (all []string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if f := strings.Fields(line); len(f) > 0 {
			all = append(all, f[0])
		}
	}
	return all
}

// Probe reports why the machine lacks a capability, nil if it has it.
func Probe(capability string) error {
	switch capability {
	case Root:
		if uid := os.Geteuid(); uid != 0 {
			return fmt.Errorf("running as uid %d", uid)
		}
		return nil
	case TwoCPUs:
		if n := runtime.NumCPU(); n < 2 {
			return fmt.Errorf("only %d CPU", n)
		}
		return nil
	case Compiler:
		for _, name := range []string{"cc", "gcc", "clang"} {
			if _, err := exec.LookPath(name); err == nil {
				return nil
			}
		}
		return fmt.Errorf("no cc, gcc or clang in PATH")
	case CgroupV1, Cgroup2, Cgroup2CPU, EBPF, Tracepoints, PerfSoftware, PMU, Schedstat, PSI:
		return probeKernel(capability)
	}
	_, err := exec.LookPath(capability)
	return err
}
