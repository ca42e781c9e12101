package quelltest

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

//go:embed promises.txt
var promises string

// The capabilities that Need knows how to look for. Any other word is taken as
// the name of a program that must be in PATH ("clang", "python3").
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
// The skip reads "needs NAME: reason". Where CI promises the capability the
// test fails instead.
func Need(t testing.TB, capabilities ...string) {
	t.Helper()
	for _, c := range capabilities {
		if err := Probe(c); err != nil {
			Skip(t, c, err)
		}
	}
}

// Skip is Need for what only the caller can find out: capability is missing
// for the given reason.
func Skip(t testing.TB, capability string, reason error) {
	t.Helper()
	if os.Getenv("CI") == "true" && promised(capability) {
		t.Fatalf("needs %s, which CI promises: %v", capability, reason)
	}
	t.Skipf("needs %s: %v", capability, reason)
}

func promised(capability string) bool {
	for line := range strings.Lines(promises) {
		if strings.TrimSpace(line) == capability {
			return true
		}
	}
	return false
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
