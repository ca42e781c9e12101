package runq

import (
	"errors"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// The names of what Capabilities checks.
const (
	CapProgram   = "run-queue eBPF"
	CapSchedstat = "thread schedstat"
)

// Capabilities tries what this package can use on this machine: it loads and attaches
// its programs once. The signal needs either of the two.
func Capabilities() []host.Capability {
	p, err := openProgram(1, options{})
	if err == nil {
		err = p.Close()
	}
	_, refused := openSchedstat(procDir, errors.New("not tried"))
	return []host.Capability{counter.CapabilityOf(CapProgram, "loads and attaches", err),
		counter.CapabilityOf(CapSchedstat, procDir+"/PID/task/TID/schedstat", refused)}
}
