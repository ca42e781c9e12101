package counter

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

// needCPI skips the test if the PMU counts cycles but not instructions, like the PMU
// that QEMU emulates for arm64 without -icount.
func needCPI(t *testing.T, err error) {
	t.Helper()
	if unsupported(err) {
		quelltest.Skip(t, "pmu-instructions", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestCPIHere opens CPI on the machine that the test runs on, with or without a PMU.
func TestCPIHere(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware)
	p, err := OpenCPI(onlineCPUs(t), cgroup2(t))
	if why := quelltest.Probe(quelltest.PMU); why != nil {
		var e *NotSupportedError
		if !errors.As(err, &e) || e.Remedy == "" {
			t.Fatalf("there is no PMU (%v), but the error is %v", why, err)
		}
		var errno unix.Errno
		if !errors.As(why, &errno) || !strings.Contains(e.Reason, unix.ErrnoName(errno)) {
			t.Errorf("reason %q does not name the kernel's answer: %v", e.Reason, why)
		}
		return
	}
	needCPI(t, err)
	p.Close()
}

// loops is the number of rounds of countdown: 0.4·10⁹ instructions, a tenth of a
// second. Starting and ending a process takes a few hundred thousand instructions.
const loops = 200_000_000

// perSwitch exceeds what the kernel executes for a task that loses its CPU and gets it
// again, which is counted as the task's. 12,000 instructions were measured on a machine
// with ten times more work than CPUs.
const perSwitch = 50_000

// countdown writes a program of two instructions per round and few others, and returns
// its path: an ELF file of one segment without a runtime.
func countdown(t *testing.T, rounds uint32) string {
	t.Helper()
	var code []byte
	machine := uint16(0)
	switch runtime.GOARCH {
	case "amd64":
		machine = 62
		code = append(code, 0xb9) // mov ecx, rounds
		code = binary.LittleEndian.AppendUint32(code, rounds)
		code = append(code, 0xff, 0xc9, 0x75, 0xfc)                    // dec ecx; jnz back to dec
		code = append(code, 0xb8, 60, 0, 0, 0, 0x31, 0xff, 0x0f, 0x05) // exit(0)
	case "arm64":
		machine = 183
		for _, w := range []uint32{
			0xd2800000 | rounds&0xffff<<5, 0xf2a00000 | rounds>>16<<5, // movz, movk x0
			0xf1000400, 0x54ffffe1, // subs x0, x0, #1; b.ne back to subs
			0xd2800ba8, 0xd2800000, 0xd4000001, // exit(0)
		} {
			code = binary.LittleEndian.AppendUint32(code, w)
		}
	default:
		t.Fatalf("no countdown for %s", runtime.GOARCH)
	}
	const base, head = 0x400000, 64 + 56
	elf := []byte("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	for _, v := range []any{
		uint16(2), machine, uint32(1), uint64(base + head), uint64(64), uint64(0), uint32(0), // executable, entry, program header
		uint16(64), uint16(56), uint16(1), uint16(0), uint16(0), uint16(0),
		uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), // load, read and execute
		uint64(head + len(code)), uint64(head + len(code)), uint64(0x1000),
	} {
		elf, _ = binary.Append(elf, binary.LittleEndian, v)
	}
	path := filepath.Join(t.TempDir(), "countdown")
	if err := os.WriteFile(path, append(elf, code...), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// runIn runs a program in a cgroup to its end and returns how often it lost its CPU.
func runIn(t *testing.T, dir, program string) (switches int64) {
	t.Helper()
	cgroup, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer cgroup.Close()
	cmd := exec.Command(program)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(cgroup.Fd()), Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	usage := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	return usage.Nvcsw + usage.Nivcsw
}

func follow(t *testing.T, dir string) *Perf {
	t.Helper()
	p, err := OpenCPI(onlineCPUs(t), cgroup2(t))
	needCPI(t, err)
	t.Cleanup(func() { p.Close() })
	if err := p.Add(Target{Key: key(1), PerfDir: dir}); err != nil {
		t.Fatal(err)
	}
	return p
}

// executed checks that a reading covers exactly one countdown, within 1 % and the cost
// of the switches.
func executed(t *testing.T, r Reading, switches int64) {
	t.Helper()
	instructions, ok := r.Extras.Get(sample.Instructions)
	cycles, _ := r.Extras.Get(sample.Cycles)
	t.Logf("instructions counted / executed %.5f with %d switches, CPI %.3f, coverage %.3f", instructions/(2*loops), switches, r.Cost, r.Coverage)
	if !ok || instructions < 2*loops || instructions > 1.01*2*loops+float64(switches*perSwitch) {
		t.Errorf("%.0f instructions, want %d, at most 1 %% more, and %d for each of %d switches", instructions, 2*loops, perSwitch, switches)
	}
	if cpi, _ := sample.LookupSignal(sample.CPI); r.Cost != cycles/instructions || !cpi.Sane(r.Cost) {
		t.Errorf("CPI %v of %v cycles and %v instructions", r.Cost, cycles, instructions)
	}
}

// TestCPIOfAKnownProgram counts a known number of instructions. The same program is not
// counted outside the cgroup or between windows.
func TestCPIOfAKnownProgram(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware, quelltest.PMU)
	dir, program := cgroup(t, cgroup2(t)), countdown(t, loops)
	p := follow(t, dir)
	runIn(t, dir, program)
	start(t, p)
	switches := runIn(t, dir, program)
	runIn(t, cgroup(t, cgroup2(t)), program)
	executed(t, stopped(t, p, nil)[key(1)], switches)
}

// TestCPIOfATaskThatEnded removes the cgroup in the window: its last difference is
// still read.
func TestCPIOfATaskThatEnded(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware, quelltest.PMU)
	dir := cgroup(t, cgroup2(t))
	p := follow(t, dir)
	start(t, p)
	switches := runIn(t, dir, countdown(t, loops))
	removeCgroup(t, dir)
	r, ok := p.Remove(key(1), 0)
	if !ok {
		t.Fatal("no reading")
	}
	executed(t, r, switches)
}

// virtual reports whether a hypervisor provides the PMU.
func virtual(t *testing.T) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), " hypervisor ")
}

// TestCPIMultiplexed follows one task with more and more groups, in the end more than
// the PMU has counters. The groups take turns, and the counts are scaled up to what was
// executed. A share of some tens of turns is a sample: the scaled number is off by some
// percent, an unscaled one by a quarter or more.
func TestCPIMultiplexed(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware, quelltest.PMU)
	dir, program := cgroup(t, cgroup2(t)), countdown(t, loops)
	var all []*Perf
	least, scaled := 1.0, 0
	for n := 1; n <= 12 && (least > leastCoverage || n <= 4); n++ {
		all = append(all, follow(t, dir))
		for _, p := range all {
			start(t, p)
		}
		runIn(t, dir, program)
		for i, p := range all {
			r := stopped(t, p, nil)[key(1)]
			instructions, ok := r.Extras.Get(sample.Instructions)
			// A CPU on which the group was never scheduled is missing from the counts.
			// They are left out then; their ratio is still known.
			if (r.Coverage < leastCoverage) != math.IsNaN(r.Cost) || ok && math.IsNaN(r.Cost) {
				t.Errorf("coverage %v with instructions: %v, cost %v", r.Coverage, ok, r.Cost)
			}
			t.Logf("group %d of %d: coverage %.3f, instructions scaled / executed %.4f, CPI %.3f", i+1, n, r.Coverage, instructions/(2*loops), r.Cost)
			switch off := math.Abs(instructions/(2*loops) - 1); {
			case !ok || off <= 0.2:
			case virtual(t) && n > 2:
				// The guest's counters are events of the host, which may multiplex them
				// there without telling the guest.
				t.Logf("the hypervisor's counters counted %.0f %% of it", 100*instructions/(2*loops))
			default:
				t.Errorf("%.0f instructions, want them scaled to %d within 20 %%", instructions, 2*loops)
			}
			if least = min(least, r.Coverage); ok && r.Coverage < 0.75 {
				scaled++
			}
		}
	}
	if least > leastCoverage && !virtual(t) {
		t.Errorf("coverage %v at least: the groups have not taken turns", least)
	}
	t.Logf("%d readings were scaled up by a third or more", scaled)
}
