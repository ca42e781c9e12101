package blockio

import (
	"github.com/quell-dev/quell/internal/counter/bpf"
)

// underWay is how many requests' makers are known at once. A queue holds some
// hundreds at most (nr_requests), and there are few disks.
const underWay = 16 << 10

// load loads blockio.bpf.c.
func load() (*bpf.Programs[blockioDone], error) {
	if err := bpf.Unlock(); err != nil {
		return nil, err
	}
	spec, err := loadBlockio()
	if err != nil {
		return nil, err
	}
	spec.Maps[blockioMapWork].MaxEntries = bpf.MaxCgroups
	spec.Maps[blockioMapMakers].MaxEntries = underWay
	var objs blockioObjects
	if err := spec.LoadAndAssign(&objs, nil); err != nil {
		return nil, err
	}
	return bpf.Loaded[blockioDone](objs.Work, objs.Lost, objs.Close, objs.OnMake, objs.OnComplete), nil
}

// refusal says what the kernel's answer means for this machine.
func refusal(err error) error {
	return bpf.Refusal("block I/O by eBPF", "Linux 5.12 or newer with BTF and CONFIG_BLK_CGROUP", err)
}
