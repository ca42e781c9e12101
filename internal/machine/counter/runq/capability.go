package runq

import (
	"errors"
	"os"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// The names of what Capabilities checks.
const (
	CapBTF       = "kernel BTF"
	CapProgram   = "run-queue eBPF"
	CapSchedstat = "thread schedstat"
)

// Capabilities tries what this package can use on this machine: it loads and attaches
// its programs once. The signal needs either the last capability or the first two.
func Capabilities() []host.Capability {
	const btf = "/sys/kernel/btf/vmlinux"
	_, err := os.Stat(btf)
	all := []host.Capability{counter.CapabilityOf(CapBTF, btf, err)}
	if err != nil {
		all[0].Remedy = "use a kernel built with CONFIG_DEBUG_INFO_BTF"
	}
	p, err := openProgram(1, unsupported{})
	if err == nil {
		err = p.Close()
	}
	all = append(all, counter.CapabilityOf(CapProgram, "loads and attaches", err))
	_, err = openSchedstat(procDir, errors.New("not tried"))
	return append(all, counter.CapabilityOf(CapSchedstat, procDir+"/PID/task/TID/schedstat", err))
}
