package runq

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/counter"
)

// kernel is the loaded half of runq.bpf.c.
type kernel struct {
	objs    runqObjects
	records *ebpf.Memory
	edge    *link.Iter
	links   []link.Link
	ncpu    int // CPU numbers possible
	window  uint32
}

const recordSize = int(unsafe.Sizeof(runqRecord{}))

func loadKernel(opts Options, marksOnly bool) (_ *kernel, err error) {
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
	if k.ncpu, err = ebpf.PossibleCPU(); err != nil {
		return nil, fmt.Errorf("count possible CPUs: %w", err)
	}
	spec, err := loadRunq()
	if err != nil {
		return nil, err
	}
	slots := opts.Tasks + 1 // slot 0 is no task
	if size := slots * k.ncpu * recordSize; size > math.MaxInt32 {
		return nil, fmt.Errorf("make room for %d tasks on %d CPUs: %w", opts.Tasks, k.ncpu, unix.E2BIG)
	}
	spec.Maps[runqMapOwners].MaxEntries = uint32(opts.Cgroups)
	spec.Maps[runqMapCpus].MaxEntries = uint32(k.ncpu)
	spec.Maps[runqMapRecords].MaxEntries = uint32(slots * k.ncpu)
	for name, value := range map[string]any{
		runqVarNcpu: uint32(k.ncpu), runqVarNslot: uint32(slots), runqVarMarksOnly: marksOnly,
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if err := spec.LoadAndAssign(&k.objs, nil); err != nil {
		return nil, err
	}
	if k.records, err = k.objs.Records.Memory(); err != nil {
		return nil, fmt.Errorf("map records: %w", err)
	}
	if k.edge, err = link.AttachIter(link.IterOptions{Program: k.objs.Edge}); err != nil {
		return nil, fmt.Errorf("attach iterator: %w", err)
	}
	return k, nil
}

// open attaches the programs, tells them what each CPU runs, and takes in the
// threads that wait already.
func (k *kernel) open() error {
	k.window++
	if err := k.objs.Window.Set(k.window); err != nil {
		return fmt.Errorf("number window: %w", err)
	}
	for _, p := range []*ebpf.Program{k.objs.OnNewtask, k.objs.OnSwitch, k.objs.OnWakeup, k.objs.OnWakeupNew, k.objs.OnMigrate} {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return errors.Join(fmt.Errorf("attach %s: %w", p, err), k.detach())
		}
		k.links = append(k.links, l)
	}
	if err := errors.Join(k.sync(), k.cut()); err != nil {
		return errors.Join(err, k.detach())
	}
	return nil
}

// detach leaves nothing behind on the scheduler's paths. A program that still
// runs on another CPU may write for another moment: all that it writes is told
// from the next window's by the number of its window, or is a clock, whose
// value at a window's start does not matter.
func (k *kernel) detach() error {
	var errs []error
	for _, l := range k.links {
		errs = append(errs, l.Close())
	}
	k.links = nil
	return errors.Join(errs...)
}

// sync runs on each CPU, one after the other, since only there can it be known
// what it runs.
func (k *kernel) sync() error {
	const onCPU = 1 // BPF_F_TEST_RUN_ON_CPU, 5.10
	for cpu := range k.ncpu {
		_, err := k.objs.Sync.Run(&ebpf.RunOptions{CPU: uint32(cpu), Flags: onCPU})
		if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: the CPU is offline
			return fmt.Errorf("ask CPU %d what it runs: %w", cpu, err)
		}
	}
	return nil
}

// cut settles the waits of all threads that are waiting now and begins them
// anew. The iterator shows the threads of the reader's own PID namespace.
func (k *kernel) cut() error {
	r, err := k.edge.Open()
	if err != nil {
		return fmt.Errorf("iterate threads: %w", err)
	}
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("iterate threads: %w", err)
	}
	return nil
}

func (k *kernel) own(cgroup uint64, o runqOwner) error { return k.objs.Owners.Put(cgroup, o) }

func (k *kernel) disown(cgroup uint64) error {
	if err := k.objs.Owners.Delete(cgroup); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// read returns the records of a slot, one per CPU. Words are whole, the record
// is not: the kernel writes on.
func (k *kernel) read(slot uint32) ([]record, error) {
	buf := make([]byte, k.ncpu*recordSize)
	if _, err := k.records.ReadAt(buf, int64(slot)*int64(len(buf))); err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	return decode(buf, now()), nil
}

func (k *kernel) close() error {
	errs := []error{k.detach()}
	if k.edge != nil {
		errs = append(errs, k.edge.Close())
	}
	for _, m := range []*ebpf.Map{k.objs.Owners, k.objs.Waits, k.objs.Cpus, k.objs.Records} {
		errs = append(errs, m.Close()) // a nil Map may be closed
	}
	for _, p := range []*ebpf.Program{k.objs.Edge, k.objs.Sync, k.objs.OnSwitch, k.objs.OnWakeup,
		k.objs.OnWakeupNew, k.objs.OnMigrate, k.objs.OnNewtask} {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// now reads the clock of bpf_ktime_get_ns.
func now() uint64 {
	var ts unix.Timespec
	// It fails only for a clock that does not exist.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return uint64(ts.Nano())
}

// refusal says what the kernel's answer means for this machine.
func refusal(err error) error {
	e := &counter.NotSupportedError{What: "run queue by eBPF", Reason: err.Error(), Err: err}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Remedy = "grant CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8) and allow bpf(2) in the seccomp profile"
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, os.ErrNotExist):
		e.Remedy = "use a kernel built with CONFIG_DEBUG_INFO_BTF that offers /sys/kernel/btf/vmlinux"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		e.Remedy = "follow fewer tasks, or raise the memory limit"
	default:
		e.Remedy = "use Linux 5.12 or newer with BTF"
	}
	return e
}
