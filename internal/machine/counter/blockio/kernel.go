package blockio

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/quell-dev/quell/internal/machine/counter/bpf"
)

// maxRequests is the number of requests whose makers are known at once. A queue holds some
// hundreds at most (nr_requests), and there are few disks.
const maxRequests = 16 << 10

// loadPrograms loads blockio.bpf.c.
func loadPrograms(unserved bool) (*bpf.Programs[blockioDone], error) {
	spec, err := loadBlockio()
	if err != nil {
		return nil, err
	}
	spec.Maps[blockioMapWork].MaxEntries = bpf.MaxCgroups
	spec.Maps[blockioMapPartOf].MaxEntries = bpf.MaxCgroups + bpf.MaxMade
	spec.Maps[blockioMapMakers].MaxEntries = maxRequests
	spec.Maps[blockioMapPairs].MaxEntries = bpf.MaxPairs
	if err := spec.Variables[blockioVarUnserved].Set(unserved); err != nil {
		return nil, fmt.Errorf("set %s: %w", blockioVarUnserved, err)
	}
	var objs blockioObjects
	if err := spec.LoadAndAssign(&objs, nil); err != nil {
		return nil, err
	}
	k := bpf.NewPrograms[blockioDone](objs.Work, objs.Lost, bpf.Parts{Of: objs.PartOf, Number: objs.Parts, Made: []*ebpf.Program{objs.OnMkdir, objs.OnRmdir}},
		objs.Close, objs.OnMake, objs.OnComplete)
	k.Dating(objs.Opened)
	if !unserved {
		k.Serving(bpf.Service{Pairs: objs.Pairs, Places: objs.Places, Refused: objs.Refused})
	}
	return k, nil
}
