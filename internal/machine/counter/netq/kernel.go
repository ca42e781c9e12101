package netq

import (
	"fmt"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/quell-dev/quell/internal/machine/counter/bpf"
)

const (
	// maxQueuedPackets is the number of packets that are followed at once: those in queues. A
	// queue usually holds a thousand (txqueuelen).
	maxQueuedPackets = 64 << 10
	// sockets is the number of sockets whose last sender is kept.
	sockets = 64 << 10
)

// Programs in the order in which they are attached: for every packet that is seen
// queued, its leaving is seen too. The optional ones refine the count.
var (
	needed   = []string{netqProgOnLeave, netqProgOnQueue}
	optional = []string{netqProgOnSend, netqProgOnSend6, netqProgOnSent, netqProgOnCut, netqProgOnResend}
)

type programs struct {
	counts  *bpf.Programs[netqDone]
	without []string // what is not counted because this kernel has no hook for an optional program
}

// loadPrograms loads netq.bpf.c.
func loadPrograms(unserved bool) (*programs, error) {
	spec, err := loadNetq()
	if err != nil {
		return nil, err
	}
	var k programs
	spec.Maps[netqMapWork].MaxEntries = bpf.MaxCgroups
	spec.Maps[netqMapPartOf].MaxEntries = bpf.MaxCgroups + bpf.MaxMade
	spec.Maps[netqMapPackets].MaxEntries = maxQueuedPackets
	spec.Maps[netqMapSenders].MaxEntries = sockets
	spec.Maps[netqMapPairs].MaxEntries = bpf.MaxPairs
	if err := spec.Variables[netqVarUnserved].Set(unserved); err != nil {
		return nil, fmt.Errorf("set %s: %w", netqVarUnserved, err)
	}
	// Functions cannot be hooked everywhere (no trampolines on arm64 before 6.4, no
	// ftrace, a sandbox), and IPv6 may be a module.
	may := func(names ...string) bool {
		alone := spec.Copy()
		maps.DeleteFunc(alone.Programs, func(n string, _ *ebpf.ProgramSpec) bool { return !slices.Contains(names, n) })
		c, err := ebpf.NewCollection(alone)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	leave := func(lost string, names ...string) {
		for _, n := range names {
			delete(spec.Programs, n)
		}
		if lost != "" {
			k.without = append(k.without, lost)
		}
	}
	switch {
	case may(netqProgOnSend):
		leave("", netqProgOnSent) // which runs later
		if !may(netqProgOnSend6) {
			leave("IPv6 packets sent by cgroup v1 tasks", netqProgOnSend6)
		}
	case may(netqProgOnSent):
		leave("", netqProgOnSend, netqProgOnSend6)
	default:
		leave("packets sent by cgroup v1 tasks", netqProgOnSend, netqProgOnSend6, netqProgOnSent)
	}
	if !may(netqProgOnCut) {
		leave("container packets that the host segments", netqProgOnCut)
	}
	if !may(netqProgOnResend) {
		leave("retransmissions", netqProgOnResend)
	}
	all, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	var hooks []*ebpf.Program
	for _, name := range slices.Concat(needed, optional) {
		if p := all.Programs[name]; p != nil {
			hooks = append(hooks, p)
		}
	}
	parts := bpf.Parts{Of: all.Maps[netqMapPartOf], Number: all.Variables[netqVarParts],
		Made: []*ebpf.Program{all.Programs[netqProgOnMkdir], all.Programs[netqProgOnRmdir]}}
	unload := func() error { all.Close(); return nil }
	k.counts = bpf.NewPrograms[netqDone](all.Maps[netqMapWork], all.Variables[netqVarLost], parts, unload, hooks...)
	k.counts.Dating(all.Variables[netqVarOpened])
	if !unserved {
		k.counts.Serving(bpf.Service{Pairs: all.Maps[netqMapPairs], Places: all.Maps[netqMapPlaces], Refused: all.Variables[netqVarRefused]})
	}
	return &k, nil
}
