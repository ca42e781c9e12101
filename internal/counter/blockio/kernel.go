package blockio

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/counter"
)

// kernel is the loaded half of blockio.bpf.c.
type kernel struct {
	objs  blockioObjects
	links []link.Link
}

// underWay is how many requests' makers are known at once. A queue holds some
// hundreds at most (nr_requests), and there are few disks.
const underWay = 16 << 10

func loadKernel(cgroups int) (_ *kernel, err error) {
	k := &kernel{}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	// Maps are charged to the memory cgroup since 5.11; then this does nothing.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("lift RLIMIT_MEMLOCK: %w", err)
	}
	spec, err := loadBlockio()
	if err != nil {
		return nil, err
	}
	spec.Maps[blockioMapWork].MaxEntries = uint32(cgroups)
	spec.Maps[blockioMapMakers].MaxEntries = underWay
	if err := spec.LoadAndAssign(&k.objs, nil); err != nil {
		return nil, err
	}
	return k, nil
}

// open attaches the programs; what was counted before is forgotten.
func (k *kernel) open() error {
	if err := k.clear(); err != nil {
		return err
	}
	for _, p := range []*ebpf.Program{k.objs.OnMake, k.objs.OnComplete} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return errors.Join(fmt.Errorf("attach %s: %w", p, err), k.detach())
		}
		k.links = append(k.links, l)
	}
	return nil
}

func (k *kernel) clear() error {
	var old []uint64
	var id uint64
	var d blockioDone
	all := k.objs.Work.Iterate()
	for all.Next(&id, &d) {
		old = append(old, id)
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("clear counts: %w", err)
	}
	for _, id := range old {
		if err := k.objs.Work.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("clear counts: %w", err)
		}
	}
	return nil
}

func (k *kernel) detach() error {
	var errs []error
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	k.links = nil
	return errors.Join(errs...)
}

// each yields what every cgroup had done.
func (k *kernel) each(yield func(id uint64, d *blockioDone)) error {
	var id uint64
	var d blockioDone
	all := k.objs.Work.Iterate()
	for all.Next(&id, &d) {
		yield(id, &d)
	}
	if err := all.Err(); err != nil {
		return fmt.Errorf("read counts: %w", err)
	}
	return nil
}

// of returns what one cgroup had done, nothing if that is not known.
func (k *kernel) of(id uint64) (d blockioDone) {
	_ = k.objs.Work.Lookup(id, &d) // most did nothing and are not there
	return d
}

func (k *kernel) lost() (n uint64) {
	_ = k.objs.Lost.Get(&n) // of a map that is there
	return n
}

func (k *kernel) close() error {
	errs := []error{k.detach()}
	for _, m := range []*ebpf.Map{k.objs.Work, k.objs.Makers} {
		errs = append(errs, m.Close()) // a nil Map may be closed
	}
	for _, p := range []*ebpf.Program{k.objs.OnMake, k.objs.OnComplete} {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// refusal says what the kernel's answer means for this machine.
func refusal(err error) error {
	e := &counter.NotSupportedError{What: "block I/O by eBPF", Reason: err.Error(), Err: err}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Remedy = "grant CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8) and allow bpf(2) in the seccomp profile"
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, os.ErrNotExist):
		e.Remedy = "use a kernel built with CONFIG_DEBUG_INFO_BTF that offers /sys/kernel/btf/vmlinux"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		e.Remedy = "raise the memory limit"
	default:
		e.Remedy = "use Linux 5.12 or newer with BTF and CONFIG_BLK_CGROUP"
	}
	return e
}
