package host

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

// mostPlaced is how many processes of a cgroup are looked at to find where they may run: each takes some
// 20 µs, for which everything else waits.
const mostPlaced = 4 << 10

// AllowedCPUs returns the online CPUs on which any thread of the cgroup may
// run; none if it has no processes. It covers affinities and cpusets:
// Cpus_allowed_list of /proc/PID/task/TID/status (proc(5)), or
// sched_getaffinity(2), which gives the same at a hundredth of the cost. With
// more than mostPlaced processes, any CPU may be one of them.
func (c *Cgroup) AllowedCPUs() (sample.Set, error) {
	return c.allowedCPUs(c.h.sameThreads(), mostPlaced)
}

// allowedCPUs calls sched_getaffinity if ask is set, else it reads files only.
func (c *Cgroup) allowedCPUs(ask bool, most int) (sample.Set, error) {
	online, err := c.h.readSet(cpuDir + "/online")
	if err != nil {
		return nil, fmt.Errorf("read allowed CPUs of %s: %w", c.path, err)
	}
	pids, err := c.Members()
	if err != nil {
		return nil, fmt.Errorf("read allowed CPUs: %w", err)
	}
	var allowed sample.Set
	for i, pid := range pids {
		if i == most {
			return online, nil
		}
		// The first thread has the process's id. Once all online CPUs are
		// allowed, no other thread needs to be read.
		if ask && add(&allowed, pid, online) && allowed.Len() == online.Len() {
			return allowed, nil
		}
		tasks := "/proc/" + strconv.Itoa(pid) + "/task"
		entries, err := os.ReadDir(c.h.Path(tasks))
		if err != nil && !vanished(err) {
			return nil, fmt.Errorf("read allowed CPUs of %s: %w", c.path, err)
		}
		for _, e := range entries {
			if tid, err := strconv.Atoi(e.Name()); ask && err == nil && add(&allowed, tid, online) {
				continue
			}
			text, err := os.ReadFile(c.h.Path(tasks + "/" + e.Name() + "/status"))
			if vanished(err) {
				continue
			}
			var cpus sample.Set
			if err == nil {
				cpus, err = parseAllowed(text)
			}
			if err != nil {
				return nil, fmt.Errorf("read allowed CPUs of %s: %w", c.path, err)
			}
			for _, cpu := range cpus.Numbers() {
				if online.Has(cpu) {
					allowed = allowed.With(cpu)
				}
			}
			if allowed.Len() == online.Len() {
				return allowed, nil // the rest can add nothing
			}
		}
	}
	return allowed, nil
}

// sameThreads reports whether thread ids here are those of the root's /proc:
// not if that is text, or of another pid namespace.
func (h *Host) sameThreads() bool {
	self, err := os.Readlink(h.Path("/proc/self"))
	return err == nil && self == strconv.Itoa(os.Getpid())
}

// add adds the CPUs of a thread and reports whether the kernel gave them: not
// if the thread has ended, nor with more CPUs than a unix.CPUSet holds.
func add(allowed *sample.Set, tid int, online sample.Set) bool {
	var set unix.CPUSet
	if unix.SchedGetaffinity(tid, &set) != nil {
		return false
	}
	for _, cpu := range online.Numbers() {
		if set.IsSet(cpu) {
			*allowed = allowed.With(cpu)
		}
	}
	return true
}

func parseAllowed(text []byte) (sample.Set, error) {
	for line := range bytes.Lines(text) {
		if list, ok := bytes.CutPrefix(line, []byte("Cpus_allowed_list:")); ok {
			return sample.ParseSet(string(list))
		}
	}
	return nil, fmt.Errorf("parse status: no Cpus_allowed_list")
}
