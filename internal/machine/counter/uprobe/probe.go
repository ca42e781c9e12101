package uprobe

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// Prober is the counter.Prober of the running kernel.
type Prober struct{}

// maxHitters is the number of (cgroup, process) pairs that one Probe distinguishes.
// Hits of further pairs are in Total only.
const maxHitters = 4096

// Probe counts the hits of one place in one file, of every process that has
// the file mapped. It is attached until Close.
type Probe struct {
	total   *ebpf.Map
	hitters *ebpf.Map
	program *ebpf.Program
	at      link.Link
}

// hitter is the key of the kernel's map, as the program lays it out.
type hitter struct {
	Cgroup  uint64 // id in cgroup2, the inode of its directory
	Process uint32 // thread group
	_       uint32
}

// Attach puts a breakpoint at an offset of a file, in bytes from its beginning. The
// offset must be the first byte of an instruction, or the programs that run it are
// broken: the caller must make sure of that. A kernel that does not support it gives a
// *counter.NotSupportedError.
func (Prober) Attach(file *os.File, offset uint64) (_ counter.Probe, err error) {
	p := &Probe{}
	defer func() {
		if err != nil {
			err = refusal(errors.Join(err, p.Close()))
		}
	}()
	if p.total, err = ebpf.NewMap(&ebpf.MapSpec{Name: "quell_total", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}); err != nil {
		return nil, fmt.Errorf("make map: %w", err)
	}
	if p.hitters, err = ebpf.NewMap(&ebpf.MapSpec{Name: "quell_hitters", Type: ebpf.Hash, KeySize: 16, ValueSize: 8, MaxEntries: maxHitters}); err != nil {
		return nil, fmt.Errorf("make map: %w", err)
	}
	p.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Name: "quell_uprobe", Type: ebpf.Kprobe, License: "GPL",
		Instructions: count(p.total, p.hitters)})
	if err != nil {
		return nil, fmt.Errorf("load program: %w", err)
	}
	// The descriptor's path leads to the file whatever mount namespace it is in.
	exe, err := link.OpenExecutable(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", file.Name(), err)
	}
	if p.at, err = exe.Uprobe("", p.program, &link.UprobeOptions{Address: offset}); err != nil {
		return nil, fmt.Errorf("attach to %s at %#x: %w", file.Name(), offset, err)
	}
	return p, nil
}

// count is the program: total[0]++ and hitters[{cgroup, process}]++.
func count(total, hitters *ebpf.Map) asm.Instructions {
	const key, zero = -16, -24 // on the stack, below R10
	return asm.Instructions{
		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.R10, zero, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, zero),
		asm.LoadMapPtr(asm.R1, total.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "who"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),

		asm.FnGetCurrentCgroupId.Call().WithSymbol("who"),
		asm.StoreMem(asm.R10, key, asm.R0, asm.DWord),
		asm.FnGetCurrentPidTgid.Call(),
		asm.RSh.Imm(asm.R0, 32),
		asm.StoreMem(asm.R10, key+8, asm.R0, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, key),
		asm.LoadMapPtr(asm.R1, hitters.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "first"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Ja.Label("out"),

		// The first hit of the pair: put a zero there, unless another CPU does so at
		// this moment, and look again. With a full map the hit is in total only.
		asm.Mov.Imm(asm.R1, 0).WithSymbol("first"),
		asm.StoreMem(asm.R10, zero, asm.R1, asm.DWord),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, key),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, zero),
		asm.Mov.Imm(asm.R4, int32(ebpf.UpdateNoExist)),
		asm.LoadMapPtr(asm.R1, hitters.FD()),
		asm.FnMapUpdateElem.Call(),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, key),
		asm.LoadMapPtr(asm.R1, hitters.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),

		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"), // nothing for perf to record
		asm.Return(),
	}
}

// Total returns the number of hits since Attach, of all processes of the machine.
func (p *Probe) Total() (uint64, error) {
	var n uint64
	if err := p.total.Lookup(uint32(0), &n); err != nil {
		return 0, fmt.Errorf("read total: %w", err)
	}
	return n, nil
}

// Each calls fn for every process that has hit the place, with its cgroup's id in
// cgroup2 and its hits there since Attach. A process that was moved is reported once
// for each cgroup.
func (p *Probe) Each(fn func(cgroup uint64, process int, hits uint64)) error {
	var k hitter
	var n uint64
	it := p.hitters.Iterate()
	for it.Next(&k, &n) {
		fn(k.Cgroup, int(k.Process), n)
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("read hitters: %w", err)
	}
	return nil
}

// Close removes the breakpoint. It waits for a grace period of the kernel: 80 to 120 ms
// where it was measured.
func (p *Probe) Close() error {
	var errs []error
	if p.at != nil {
		errs = append(errs, p.at.Close())
	}
	return errors.Join(append(errs, p.program.Close(), p.hitters.Close(), p.total.Close())...)
}

// refusal says what is missing if that is known.
func refusal(err error) error {
	e := &counter.NotSupportedError{What: "uprobes", Reason: err.Error(), Err: err}
	switch {
	case errors.Is(err, os.ErrPermission):
		e.Remedy = "grant CAP_SYS_ADMIN, and allow bpf and perf_event_open in the seccomp profile"
	case errors.Is(err, ebpf.ErrNotSupported):
		e.Remedy = "use a kernel with CONFIG_UPROBE_EVENTS and CONFIG_BPF_EVENTS"
	default:
		return err
	}
	return e
}
