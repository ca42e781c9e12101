package bperf

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
)

// programs are the loaded programs and the groups that they read: the bpf.CgroupCounts of the
// source.
type programs struct {
	*bpf.Programs[bperfDone]
	objs    bperfObjects
	groups  *counter.CPUGroups
	online  sample.Set
	ncpu    int // number of possible CPUs
	window  uint32
	open    bool
	charged time.Time // when threads that run were charged last
}

// loadPrograms loads bperf.bpf.c for groups, which it then owns.
func loadPrograms(groups *counter.CPUGroups, online sample.Set) (*programs, error) {
	p := &programs{groups: groups, online: online}
	spec, err := loadBperf()
	if err != nil {
		return nil, err
	}
	if p.ncpu, err = ebpf.PossibleCPU(); err != nil {
		return nil, fmt.Errorf("count possible CPUs: %w", err)
	}
	spec.Maps[bperfMapWork].MaxEntries = bpf.MaxCgroups
	spec.Maps[bperfMapCpus].MaxEntries = uint32(p.ncpu)
	for _, name := range [...]string{bperfMapFirst, bperfMapSecond, bperfMapThird} {
		spec.Maps[name].MaxEntries = uint32(p.ncpu)
	}
	if err := spec.Variables[bperfVarNevent].Set(uint32(groups.Events())); err != nil {
		return nil, fmt.Errorf("set %s: %w", bperfVarNevent, err)
	}
	if err := spec.LoadAndAssign(&p.objs, nil); err != nil {
		return nil, err
	}
	p.Programs = bpf.NewPrograms[bperfDone](p.objs.Work, p.objs.Lost,
		bpf.Parts{Of: p.objs.PartOf, Number: p.objs.Parts, Made: []*ebpf.Program{p.objs.OnMkdir, p.objs.OnRmdir}}, p.objs.Close, p.objs.OnSwitch)
	return p, nil
}

// Open implements bpf.CgroupCounts.
func (p *programs) Open(cgroups map[uint64]uint64, pairs [][2]uint64) error {
	if err := p.openGroups(); err != nil {
		return err
	}
	p.window++
	if err := p.objs.Window.Set(p.window); err != nil {
		return fmt.Errorf("set window number: %w", err)
	}
	// A group that cannot be switched on counts nothing: check closes it.
	_ = p.groups.Toggle(true)
	p.open = true
	if err := p.Programs.Open(cgroups, pairs); err != nil {
		return errors.Join(err, p.Detach())
	}
	if err := p.charge(p.objs.Sync); err != nil {
		return errors.Join(err, p.Detach())
	}
	return nil
}

// openGroups opens the groups of CPUs that are online and have none that counts, and closes all others.
func (p *programs) openGroups() error {
	for cpu := range p.ncpu {
		if p.groups.Has(cpu) && !(p.online.Has(cpu) && p.groups.Whole(cpu)) {
			p.closeGroup(cpu)
		}
		if p.groups.Has(cpu) || !p.online.Has(cpu) {
			continue
		}
		fds, err := p.groups.Open(cpu)
		if errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return err
		}
		for i, fd := range fds {
			if err := p.events()[i].Put(uint32(cpu), uint32(fd)); err != nil {
				p.closeGroup(cpu)
				return fmt.Errorf("hand over event on CPU %d: %w", cpu, err)
			}
		}
	}
	return nil
}

// events are the maps of the events, in their order.
func (p *programs) events() [3]*ebpf.Map {
	return [...]*ebpf.Map{p.objs.First, p.objs.Second, p.objs.Third}
}

// closeGroup closes a CPU's group. The map holds events open as well.
func (p *programs) closeGroup(cpu int) {
	for _, m := range p.events() {
		_ = m.Delete(uint32(cpu)) // it may not be there
	}
	p.groups.CloseCPU(cpu)
}

// charge runs a program on each CPU, one after the other: only there its counters can be read.
func (p *programs) charge(program *ebpf.Program) error {
	const onCPU = 1 // BPF_F_TEST_RUN_ON_CPU, 5.10
	for cpu := range p.ncpu {
		_, err := program.Run(&ebpf.RunOptions{CPU: uint32(cpu), Flags: onCPU})
		if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: the CPU is offline
			return fmt.Errorf("read the counters of CPU %d: %w", cpu, err)
		}
	}
	p.charged = time.Now()
	return nil
}

// Detach implements bpf.CgroupCounts. Threads that run are charged up to here.
func (p *programs) Detach() error {
	if !p.open {
		return nil
	}
	p.open = false
	err := p.charge(p.objs.Finish)
	err = errors.Join(err, p.Programs.Detach())
	_ = p.groups.Toggle(false)
	p.check()
	return err
}

// check closes the groups that did not count in the window, to be opened again.
func (p *programs) check() {
	for cpu := range p.ncpu {
		if !p.groups.Has(cpu) {
			continue
		}
		var c bperfCpu
		if err := p.objs.Cpus.Lookup(uint32(cpu), &c); err != nil || c.Ended != p.window || c.Unknown != 0 || c.Enabled == c.Before {
			p.closeGroup(cpu)
		}
	}
}

// Close implements bpf.CgroupCounts.
func (p *programs) Close() error {
	err := p.Detach()
	p.groups.Close()
	return errors.Join(err, p.Programs.Close())
}
