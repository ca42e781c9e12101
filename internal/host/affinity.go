package host

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/quell-dev/quell/internal/sample"
)

// AllowedCPUs returns the CPUs on which any thread of the cgroup may run, of
// those that are online; none if it has no processes. Affinities and cpusets
// are both in it: Cpus_allowed_list of /proc/PID/task/TID/status (proc(5)).
func (c *Cgroup) AllowedCPUs() (sample.Set, error) {
	online, err := c.h.readSet(cpuDir + "/online")
	if err != nil {
		return nil, fmt.Errorf("read allowed CPUs of %s: %w", c.path, err)
	}
	pids, err := c.Members()
	if err != nil {
		return nil, fmt.Errorf("read allowed CPUs: %w", err)
	}
	var allowed sample.Set
	for _, pid := range pids {
		tasks := "/proc/" + strconv.Itoa(pid) + "/task"
		entries, err := os.ReadDir(c.h.Path(tasks))
		if err != nil && !vanished(err) {
			return nil, fmt.Errorf("read allowed CPUs of %s: %w", c.path, err)
		}
		for _, e := range entries {
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

func parseAllowed(text []byte) (sample.Set, error) {
	for line := range bytes.Lines(text) {
		if list, ok := bytes.CutPrefix(line, []byte("Cpus_allowed_list:")); ok {
			return sample.ParseSet(string(list))
		}
	}
	return nil, fmt.Errorf("parse status: no Cpus_allowed_list")
}
