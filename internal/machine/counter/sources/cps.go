package sources

import (
	"errors"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/syscalls"
)

// openCPS opens the source of cps: one program for all tasks or, where eBPF is refused, a perf group
// for each task and CPU. Both count the same calls, so their readings have one variant.
func openCPS(online sample.Set, cgroup2 string) (counter.Source, error) {
	s, refused := syscalls.Open()
	if refused == nil {
		return s, nil
	}
	p, err := counter.OpenCPS(online, cgroup2)
	if err != nil {
		return nil, errors.Join(err, refused)
	}
	p.NoteMissing(refused)
	return p, nil
}
