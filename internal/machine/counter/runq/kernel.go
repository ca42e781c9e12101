package runq

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/counter/bpf"
	"github.com/quell-dev/quell/internal/machine/host"
)

// bpfPrograms is the loaded half of runq.bpf.c.
type bpfPrograms struct {
	objs    runqObjects
	records *ebpf.Memory
	numbers *ebpf.Memory // nil: each slot has a record for each CPU
	raw     []byte       // of the numbers or records of a slot
	wanting uint64       // at the start of the window
	served  *ebpf.Memory // nil: served tasks are not reported
	edge    *link.Iter
	hooks   bpf.Hooks
	parts   bpf.Parts // made in the window
	ncpu    int       // number of possible CPUs
	room    int       // for cgroups
	window  uint32
	table   []byte // one table of pairs
}

const (
	numberSize = 4
	recordSize = int(unsafe.Sizeof(runqRecord{}))
	tableSize  = int(unsafe.Sizeof(runqPairs{}))
)

// options change how programs are loaded. The zero value is for every use but tests.
type options struct {
	throttled bool       // without the clock of throttling, as before 6.6
	served    bool       // without reporting served tasks, as before 5.17
	pairs     uint32     // places used in a table of pairs, a power of two; 0: all
	records   int        // records at most; 0: maxRecords
	types     *btf.Cache // keeps the kernel's types; nil: each load decodes them, and nothing keeps their megabytes
}

// maxRecords is how many records there are at most. Where that is fewer than one for each task on
// each CPU, they are given out where a task runs, and given out anew once most of them are in use:
// then a number of 4 bytes remains for each task and CPU.
const maxRecords = 256 << 10

func loadPrograms(tasks int, w options) (_ *bpfPrograms, err error) {
	k := &bpfPrograms{table: make([]byte, tableSize)}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	if k.ncpu, err = ebpf.PossibleCPU(); err != nil {
		return nil, fmt.Errorf("count possible CPUs: %w", err)
	}
	spec, err := loadRunq()
	if err != nil {
		return nil, err
	}
	slots := tasks + 1 // slot 0 is no task
	if size := slots * k.ncpu * recordSize; size > math.MaxInt32 || slots > math.MaxUint16 {
		return nil, fmt.Errorf("size records for %d tasks on %d CPUs: %w", tasks, k.ncpu, unix.E2BIG)
	}
	k.room = 8 * tasks // nested ones included; about 80 bytes each that is there
	spec.Maps[runqMapOwners].MaxEntries = uint32(k.room)
	spec.Maps[runqMapCpus].MaxEntries = uint32(k.ncpu)
	records, sparse := slots*k.ncpu, false
	if most := cmp.Or(w.records, maxRecords); records > most {
		spec.Maps[runqMapNumbers].MaxEntries = uint32(records+1) / 2
		records, sparse = most, true
	}
	spec.Maps[runqMapRecords].MaxEntries = uint32(records)
	values := map[string]any{
		runqVarNcpu: uint32(k.ncpu), runqVarNslot: uint32(slots), runqVarMarksOnly: w.throttled, runqVarUnserved: w.served,
	}
	if sparse {
		values[runqVarNrecord] = uint32(records)
	}
	if w.pairs > 0 {
		values[runqVarNpair] = w.pairs
	}
	spec.Maps[runqMapServed].MaxEntries = 1
	if !w.served {
		spec.Maps[runqMapServed].MaxEntries = uint32(k.ncpu) + 1 // the last table is that of the edge program
	}
	for name, value := range values {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("set %s: %w", name, err)
		}
	}
	if err := spec.LoadAndAssign(&k.objs, &ebpf.CollectionOptions{Cache: w.types}); err != nil {
		return nil, err
	}
	k.parts = bpf.Parts{Of: k.objs.PartOf, Number: k.objs.Parts}
	if k.records, err = k.objs.Records.Memory(); err != nil {
		return nil, fmt.Errorf("map records: %w", err)
	}
	k.raw = make([]byte, k.ncpu*recordSize)
	if sparse {
		k.raw = make([]byte, k.ncpu*numberSize)
		if k.numbers, err = k.objs.Numbers.Memory(); err != nil {
			return nil, fmt.Errorf("map numbers of records: %w", err)
		}
	}
	if !w.served {
		if k.served, err = k.objs.Served.Memory(); err != nil {
			return nil, fmt.Errorf("map pairs: %w", err)
		}
	}
	if k.edge, err = link.AttachIter(link.IterOptions{Program: k.objs.Edge}); err != nil {
		return nil, fmt.Errorf("attach iterator: %w", err)
	}
	return k, nil
}

// open attaches the programs and tells them what each CPU runs. They settle
// waits only after begin.
func (k *bpfPrograms) open() error {
	if err := errors.Join(k.parts.Clear(), k.number(k.window|1)); err != nil {
		return err
	}
	if err := k.hooks.Attach(k.objs.OnMkdir, k.objs.OnRmdir, k.objs.OnNewtask, k.objs.OnSwitch, k.objs.OnWakeup, k.objs.OnWakeupNew, k.objs.OnMigrate); err != nil {
		return err
	}
	if err := k.sync(); err != nil {
		return errors.Join(err, k.detach())
	}
	return nil
}

// begin begins the window that is open, including threads that wait already. What was
// counted until now belongs to earlier windows.
func (k *bpfPrograms) begin() error {
	if err := errors.Join(k.number(k.window+1), k.settleWaits()); err != nil {
		return errors.Join(err, k.detach())
	}
	return nil
}

// number numbers the window: odd while it opens, even once it has begun.
func (k *bpfPrograms) number(n uint32) error {
	k.window = n
	if err := k.objs.Window.Set(n); err != nil {
		return fmt.Errorf("set window number: %w", err)
	}
	return nil
}

// detach ends a window. What a program that still runs writes has the number of its own
// window, which separates it from the next window's, or is a clock, whose value at a
// window's start does not matter.
func (k *bpfPrograms) detach() error { return k.hooks.Detach() }

// sync runs on each CPU, one after the other, since only there is it known what the CPU
// runs.
func (k *bpfPrograms) sync() error {
	const onCPU = 1 // BPF_F_TEST_RUN_ON_CPU, 5.10
	for cpu := range k.ncpu {
		_, err := k.objs.Sync.Run(&ebpf.RunOptions{CPU: uint32(cpu), Flags: onCPU})
		if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: the CPU is offline
			return fmt.Errorf("read the current thread of CPU %d: %w", cpu, err)
		}
	}
	return nil
}

// settleWaits settles the waits of all threads that are waiting now and begins them
// anew. The iterator shows the threads of the reader's own PID namespace.
func (k *bpfPrograms) settleWaits() error {
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

func (k *bpfPrograms) setOwner(cgroup uint64, o runqOwner) error { return k.objs.Owners.Put(cgroup, o) }

func (k *bpfPrograms) deleteOwner(cgroup uint64) error {
	if err := k.objs.Owners.Delete(cgroup); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	return nil
}

// read appends the records of a slot to into, those of CPUs on which it did something, ascending.
// Each word is consistent, the record is not: the kernel continues to write.
func (k *bpfPrograms) read(into []record, slot uint32) (_ []record, err error) {
	defer wrap(&err, "read records")
	if k.numbers == nil {
		if _, err := k.records.ReadAt(k.raw, int64(slot)*int64(len(k.raw))); err != nil {
			return nil, err
		}
		now := uint64(host.Monotonic()) // the clock of bpf_ktime_get_ns
		for cpu := range k.ncpu {
			if r := decode(k.raw[cpu*recordSize:], now); r != (record{}) {
				r.cpu = uint32(cpu)
				into = append(into, r)
			}
		}
		return into, nil
	}
	if _, err := k.numbers.ReadAt(k.raw, int64(slot)*int64(len(k.raw))); err != nil {
		return nil, err
	}
	for cpu := range k.ncpu {
		n := binary.LittleEndian.Uint32(k.raw[cpu*numberSize:])
		if n == 0 {
			continue
		}
		var one [recordSize]byte
		if _, err := k.records.ReadAt(one[:], int64(n)*int64(recordSize)); err != nil {
			return nil, err
		}
		r := decode(one[:], uint64(host.Monotonic()))
		r.cpu = uint32(cpu)
		into = append(into, r)
	}
	return into, nil
}

func wrap(err *error, doing string) {
	if *err != nil {
		*err = fmt.Errorf("%s: %w", doing, *err)
	}
}

// renew takes all records back if most are given out. No window may be open.
func (k *bpfPrograms) renew() (err error) {
	var given uint32
	if k.numbers == nil {
		return nil
	}
	defer wrap(&err, "give records out anew")
	if err := k.objs.Given.Get(&given); err != nil || int(given) < int(k.objs.Records.MaxEntries())*3/4 {
		return err
	}
	for _, m := range [...]*ebpf.Memory{k.numbers, k.records} {
		zero := make([]byte, 64<<10)
		for at, size := 0, int(m.Size()); at < size; at += len(zero) {
			if _, err := m.WriteAt(zero[:min(len(zero), size-at)], int64(at)); err != nil {
				return err
			}
		}
	}
	return k.objs.Given.Set(uint32(0))
}

// missing returns how often, since the last call, there was no record left, or no room for a cgroup
// that was made.
func (k *bpfPrograms) missing() uint64 {
	var n uint64
	_ = k.objs.Wanting.Get(&n) // does not fail, since the map exists
	before := k.wanting
	k.wanting = n
	return n - before
}

// pairs appends to buf the pairs of the window that has begun, in any order and
// possibly repeated. It returns how many slices, since the programs were loaded, had no
// place among them.
func (k *bpfPrograms) pairs(buf []pair) (_ []pair, refused uint64, err error) {
	if k.served == nil {
		return buf, 0, nil
	}
	for i := range k.ncpu + 1 {
		if _, err := k.served.ReadAt(k.table, int64(i*tableSize)); err != nil {
			return buf, refused, fmt.Errorf("read pairs: %w", err)
		}
		var n uint64
		buf, n = decodePairs(buf, k.table, k.window)
		refused += n
	}
	return buf, refused, nil
}

func (k *bpfPrograms) close() error {
	errs := []error{k.detach()}
	if k.edge != nil {
		errs = append(errs, k.edge.Close())
	}
	return errors.Join(append(errs, k.objs.Close())...)
}
