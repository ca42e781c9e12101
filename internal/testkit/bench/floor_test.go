package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// The floor is this program, started again as a child. It keeps cpu.stat and cpu.pressure of
// every cgroup open, and on every CPU a group of the events that the agent counts for cpi. It
// reads them all at a fixed interval with one system call each, and parses and stores nothing.
// It is written in Go like the agent, so the runtime's idle cost is in both.

// floorEvents are the events of internal/machine/counter on a CPU that has them.
var floorEvents = [...]uint64{unix.PERF_COUNT_HW_CPU_CYCLES, unix.PERF_COUNT_HW_INSTRUCTIONS, unix.PERF_COUNT_HW_CACHE_MISSES}

// floorArgs returns the command line of a floor over cgroups [from, to) of the crowd.
func floorArgs(dir string, from, to int, every time.Duration) []string {
	return []string{"floor", dir, strconv.Itoa(from), strconv.Itoa(to), every.String()}
}

// runFloor returns only with an error.
func runFloor(args []string) error {
	if len(args) != 4 {
		return errors.New("floor: want DIR FROM TO EVERY")
	}
	from, err1 := strconv.Atoi(args[1])
	to, err2 := strconv.Atoi(args[2])
	every, err3 := time.ParseDuration(args[3])
	if err := errors.Join(err1, err2, err3); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	h, err := host.Open("/")
	if err != nil {
		return err
	}
	topology, err := h.Topology()
	if err != nil {
		return err
	}
	cpus := topology.Online.Numbers()
	var files, groups []int
	for i := from; i < to; i++ {
		dir := filepath.Join(args[0], podName(i))
		for _, name := range []string{"cpu.stat", "cpu.pressure"} {
			fd, err := unix.Open(filepath.Join(dir, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == unix.ENOENT && name == "cpu.pressure" {
				continue // psi=0
			}
			if err != nil {
				return fmt.Errorf("floor: open %s of %s: %w", name, dir, err)
			}
			files = append(files, fd)
		}
		leaders, err := openGroups(dir, cpus)
		if err != nil {
			return err
		}
		groups = append(groups, leaders...)
	}
	fmt.Println("ready", len(files), len(groups))
	var buf [1024]byte
	for range time.Tick(every) {
		for _, fd := range files {
			if _, err := unix.Pread(fd, buf[:], 0); err != nil {
				return fmt.Errorf("floor: %w", err)
			}
		}
		for _, fd := range groups {
			if _, err := unix.Read(fd, buf[:]); err != nil {
				return fmt.Errorf("floor: %w", err)
			}
			_ = binary.NativeEndian.Uint64(buf[:])
		}
	}
	return nil
}

// openGroups opens a cgroup's counters and leaves them running. Without a PMU
// it opens none, since the agent has none either.
func openGroups(dir string, cpus []int) (leaders []int, err error) {
	cg, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("floor: open %s: %w", dir, err)
	}
	defer unix.Close(cg)
	for _, cpu := range cpus {
		leader := -1
		for _, config := range floorEvents {
			fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_HARDWARE, Config: config,
				Size:        uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
				Read_format: unix.PERF_FORMAT_GROUP | unix.PERF_FORMAT_TOTAL_TIME_ENABLED | unix.PERF_FORMAT_TOTAL_TIME_RUNNING,
			}, cg, cpu, leader, unix.PERF_FLAG_PID_CGROUP|unix.PERF_FLAG_FD_CLOEXEC)
			if noPMU(err) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("floor: open counter of %s: %w", dir, err)
			}
			if leader < 0 {
				leader = fd
				leaders = append(leaders, fd)
			}
		}
	}
	return leaders, nil
}

// noPMU reports whether perf_event_open said that there is no such event.
func noPMU(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV)
}

// hasPMU reports whether CPU cycles can be counted.
func hasPMU() bool {
	fd, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: unix.PERF_TYPE_HARDWARE, Config: unix.PERF_COUNT_HW_CPU_CYCLES,
		Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{}))}, os.Getpid(), -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}
