package usage

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
	"github.com/quell-dev/quell/internal/machine/host"
)

// maxRows is how many cgroups can be followed, those of all hierarchies together. Each takes 40
// bytes of the kernel's memory whether it is followed or not, and some 80 while it is.
const maxRows = 32 << 10

// Accounts reads what the kernel keeps of the followed cgroups: the host.Accounts of a machine
// whose kernel has iterators over cgroups. It is for one goroutine.
type Accounts struct {
	objs    usageObjects
	rows    *ebpf.Memory
	trees   map[string]*hierarchy // by mount
	used    map[uint64]*followed  // by key
	keys    []uint64              // by row; 0: free
	free    []int
	reading uint32
}

// hierarchy is a mounted one.
type hierarchy struct {
	number uint64 // the upper two bits of its cgroups' keys
	walk   *walk
	rows   int // in use
}

// followed is a row, and how many cgroups of package host use it.
type followed struct {
	row, users int
	in         *hierarchy
}

const (
	treeShift = 62
	rowSize   = int64(unsafe.Sizeof(usageRow{}))
)

// Open loads the programs for hierarchies mounted in these directories, and reads each once.
// Its error is a *counter.NotSupportedError.
func Open(mounts ...string) (*Accounts, error) {
	a, err := bpf.Load(func(bool) (*Accounts, error) { return load(mounts, maxRows) })
	if err != nil {
		return nil, bpf.NotSupported("usage of all cgroups in one read", "Linux 6.1 or newer with BTF", err)
	}
	return a, nil
}

func load(mounts []string, rows int) (_ *Accounts, err error) {
	a := &Accounts{trees: map[string]*hierarchy{}, used: map[uint64]*followed{}, keys: make([]uint64, rows)}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.Close())
		}
	}()
	spec, err := loadUsage()
	if err != nil {
		return nil, err
	}
	ncpu, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, fmt.Errorf("count possible CPUs: %w", err)
	}
	spec.Maps[usageMapRows].MaxEntries, spec.Maps[usageMapNumbers].MaxEntries = uint32(rows), uint32(rows)
	spec.Maps[usageMapOffsets].MaxEntries = uint32(ncpu)
	if err := spec.Variables[usageVarNcpu].Set(uint32(ncpu)); err != nil {
		return nil, fmt.Errorf("set %s: %w", usageVarNcpu, err)
	}
	if err := spec.LoadAndAssign(&a.objs, nil); err != nil {
		return nil, err
	}
	if _, err := a.objs.Prepare.Run(nil); err != nil {
		return nil, fmt.Errorf("find the memory of each CPU: %w", err)
	}
	if a.rows, err = a.objs.Rows.Memory(); err != nil {
		return nil, fmt.Errorf("map rows: %w", err)
	}
	for _, m := range mounts {
		if a.trees[m] != nil || m == "" {
			continue
		}
		w, err := attach(a.objs.Read, m)
		if err != nil {
			return nil, err
		}
		a.trees[m] = &hierarchy{number: uint64(len(a.trees)) << treeShift, walk: w}
		if err := a.read(a.trees[m]); err != nil {
			return nil, err
		}
	}
	for n := range rows {
		a.free = append(a.free, rows-1-n)
	}
	return a, nil
}

// Follow implements host.Accounts.
func (a *Accounts) Follow(mount string, inode uint64) (row int, ok bool) {
	in := a.trees[mount]
	if in == nil || inode>>treeShift != 0 {
		return 0, false
	}
	key := inode | in.number
	if f := a.used[key]; f != nil {
		f.users++
		return f.row, true
	}
	if len(a.free) == 0 {
		return 0, false
	}
	row = a.free[len(a.free)-1]
	none := make([]byte, rowSize) // another cgroup may have left what was read just now
	if _, err := a.rows.WriteAt(none, int64(row)*rowSize); err != nil || a.objs.Numbers.Put(key, uint32(row)) != nil {
		return 0, false
	}
	a.free = a.free[:len(a.free)-1]
	a.used[key], a.keys[row] = &followed{row: row, users: 1, in: in}, key
	in.rows++
	return row, true
}

// Unfollow implements host.Accounts.
func (a *Accounts) Unfollow(row int) error {
	key := a.keys[row]
	f := a.used[key]
	if f.users--; f.users > 0 {
		return nil
	}
	// It must not be written to the row's next owner.
	if err := a.objs.Numbers.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		f.users = 1
		return fmt.Errorf("unfollow cgroup: %w", err)
	}
	f.in.rows--
	delete(a.used, key)
	a.free = append(a.free, row)
	return nil
}

// Read implements host.Accounts.
func (a *Accounts) Read() error {
	a.reading++
	if err := a.objs.Reading.Set(a.reading); err != nil {
		return fmt.Errorf("set number of reading: %w", err)
	}
	for _, t := range a.trees {
		if t.rows == 0 {
			continue
		}
		if err := a.read(t); err != nil {
			return err
		}
	}
	return nil
}

func (a *Accounts) read(t *hierarchy) error {
	if err := a.objs.Tree.Set(t.number); err != nil {
		return fmt.Errorf("set hierarchy: %w", err)
	}
	return t.walk.run()
}

// The bits of what a row has, as in usage.bpf.c.
const (
	hasUsage = 1 << iota
	hasThrottled
	hasStalled
)

// Row implements host.Accounts.
func (a *Accounts) Row(row int) (host.Account, bool) {
	var r usageRow
	buf := unsafe.Slice((*byte)(unsafe.Pointer(&r)), rowSize)
	if _, err := a.rows.ReadAt(buf, int64(row)*rowSize); err != nil || r.Reading != a.reading {
		return host.Account{}, false
	}
	return host.Account{CPU: time.Duration(r.Usage), Throttled: time.Duration(r.Throttled), Stalled: time.Duration(r.Stalled),
		HasCPU: r.Has&hasUsage != 0, HasThrottled: r.Has&hasThrottled != 0, HasStalled: r.Has&hasStalled != 0}, true
}

// Close implements host.Accounts.
func (a *Accounts) Close() error {
	errs := []error{a.objs.Close()}
	for _, t := range a.trees {
		errs = append(errs, t.walk.close())
	}
	a.trees = nil
	return errors.Join(errs...)
}

// Capability tries whether usage can be read in this way.
func Capability(h *host.Host) host.Capability {
	a, err := Open(h.AccountMounts()...)
	if err == nil {
		err = a.Close()
	}
	return counter.CapabilityOf("usage in one read", "usage and pressure of all tasks by eBPF; no file is open", err)
}
