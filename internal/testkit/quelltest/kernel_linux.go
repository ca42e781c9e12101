package quelltest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// probeKernel tests a capability by using it, since neither versions nor
// configuration files say what a container may do.
func probeKernel(capability string) error {
	switch capability {
	case CgroupV1:
		dir, err := cgroupMount("cgroup", "cpu")
		if err != nil {
			return err
		}
		return tryCgroup(dir)
	case Cgroup2, Cgroup2CPU:
		dir, err := cgroupMount("cgroup2", "")
		if err != nil {
			return err
		}
		if capability == Cgroup2CPU {
			controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
			if err != nil {
				return err
			}
			if !slices.Contains(strings.Fields(string(controllers)), "cpu") {
				return fmt.Errorf("%s has no cpu controller", dir)
			}
		}
		return tryCgroup(dir)
	case EBPF:
		if _, err := os.Stat("/sys/kernel/btf/vmlinux"); err != nil {
			return err
		}
		return tryBPF()
	case PerfSoftware:
		dir, err := cgroupMount("cgroup2", "")
		if err != nil {
			return err
		}
		cgroup, err := os.Open(dir)
		if err != nil {
			return err
		}
		defer cgroup.Close()
		return tryPerf(unix.PERF_TYPE_SOFTWARE, unix.PERF_COUNT_SW_TASK_CLOCK, int(cgroup.Fd()), unix.PERF_FLAG_PID_CGROUP)
	case PMU:
		return tryPerf(unix.PERF_TYPE_HARDWARE, unix.PERF_COUNT_HW_CPU_CYCLES, -1, 0)
	case Tracepoints:
		// For an id that no tracepoint has, the error is ENOENT or EINVAL if perf
		// has tracepoints and this process may use them, so tracefs is not needed.
		err := tryPerf(unix.PERF_TYPE_TRACEPOINT, 1<<40, -1, 0)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			if _, err := os.Stat("/sys/kernel/tracing"); err != nil {
				return err
			}
			return nil
		}
		return err
	case Schedstat:
		_, err := os.ReadFile("/proc/self/schedstat")
		return err
	case PSI:
		_, err := os.ReadFile("/proc/pressure/cpu")
		return err
	}
	return fmt.Errorf("unknown capability")
}

// cgroupMount finds a cgroup file system by its type and, for v1, controller.
func cgroupMount(fstype, controller string) (string, error) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[2] != fstype {
			continue
		}
		if controller == "" || slices.Contains(strings.Split(f[3], ","), controller) {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("no %s %s mount", fstype, controller)
}

func tryCgroup(parent string) error {
	dir, err := os.MkdirTemp(parent, "quell-test-probe-") // parallel tests probe at the same time
	if err != nil {
		return err
	}
	return os.Remove(dir)
}

// tryPerf opens one event on CPU 0, for every process or for one cgroup.
func tryPerf(kind uint32, config uint64, pid, flags int) error {
	attr := unix.PerfEventAttr{Type: kind, Config: config, Bits: unix.PerfBitDisabled}
	attr.Size = uint32(unsafe.Sizeof(attr))
	fd, err := unix.PerfEventOpen(&attr, pid, 0, -1, flags|unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("perf_event_open: %w", err)
	}
	return unix.Close(fd)
}

// tryBPF loads a program that returns 0.
func tryBPF() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.Kprobe, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
	if err != nil {
		return err
	}
	return p.Close()
}
