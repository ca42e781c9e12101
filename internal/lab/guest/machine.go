package guest

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Arch is a processor architecture, with Go's name for it.
type Arch string

const (
	AMD64 Arch = "amd64"
	ARM64 Arch = "arm64"
)

// Machine is the configuration of QEMU.
type Machine struct {
	Arch      Arch
	Kernel    string // path of the kernel image; "": the firmware boots the first drive
	Initramfs string // path of the output of Initramfs, or of the initrd of a drive's system
	Append    string // added after this package's words on the kernel's command line

	// CPU is QEMU's model and its flags; "" means one that boots fast: cortex-a72 (max
	// emulates pointer authentication and boots 3 to 10 times slower) or max. Only Intel
	// models have SMT siblings under TCG.
	CPU      string
	CPUs     CPUs
	MemoryMB int    // 0: 512; divided equally among the nodes
	Nodes    []Node // memory nodes, none or at least two

	// KVM runs the guest on the processor itself. Otherwise QEMU's TCG translates the
	// code, which works on any host, at a tenth of the speed or less.
	KVM bool
	// Parallel gives every CPU of a TCG guest its own thread. It is faster but sometimes
	// wrong: amd64 guests stalled in one run of five when kprobes were attached.
	Parallel bool
	// InstructionNS makes time virtual: every instruction takes this many nanoseconds, a
	// power of two, and idle time takes none. A guest then does the same in guest time
	// under any host load, and its PMU counts instructions. 0: the host's time, in which
	// QEMU's PMU counts cycles of 1 ns and no instructions. It needs TCG on arm64, or on
	// amd64 with one CPU (with more it hangs at boot).
	InstructionNS int

	Drives []Drive
	Args   []string // more arguments for QEMU
}

// CPUs is the arrangement of the CPUs of a machine; a zero counts as one.
type CPUs struct{ Sockets, Dies, Cores, Threads int }

// Total is the number of CPUs.
func (c CPUs) Total() int {
	return max(1, c.Sockets) * max(1, c.Dies) * max(1, c.Cores) * max(1, c.Threads)
}

// Node is a memory node.
type Node struct {
	CPUs sample.Set
	// Distances from this node to each node, in the kernel's unit: 10 is local.
	Distances []int
}

// Drive is a virtio block device. In the guest they are vda, vdb …, if the kernel's
// module virtio_blk and its dependencies are loaded.
type Drive struct {
	Path     string
	Format   string // "": raw
	ReadOnly bool
	// Discard keeps what the guest writes in a file that QEMU makes in its TMPDIR and
	// unlinks at once, so nothing is left of it, however QEMU ends.
	Discard bool
	// IOPS limits the requests a second, in the host's time. 0: no limit.
	IOPS int
}

// QEMU returns the program for guests of the architecture, and Debian's package of it.
func (a Arch) QEMU() (program, pkg string) {
	if a == ARM64 {
		return "qemu-system-aarch64", "qemu-system-arm"
	}
	return "qemu-system-x86_64", "qemu-system-x86"
}

// board is that of QEMU's boards that guests of the architecture have.
func (a Arch) board() string {
	if a == ARM64 {
		return "virt,gic-version=3"
	}
	return "q35"
}

// onKVM is the processor of a guest on KVM.
const onKVM = "host"

// check returns every error in the configuration.
func (m Machine) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Arch != AMD64 && m.Arch != ARM64 {
		bad("architecture %q: want %s or %s", m.Arch, AMD64, ARM64)
	}
	if (m.Kernel == "" || m.Initramfs == "") && (m.Kernel != m.Initramfs || len(m.Drives) == 0) {
		bad("kernel %q and initramfs %q: want both, or a drive to boot from", m.Kernel, m.Initramfs)
	}
	if m.MemoryMB < 0 {
		bad("memory %d MB: want 0 or more", m.MemoryMB)
	}
	if c := m.CPUs; min(c.Sockets, c.Dies, c.Cores, c.Threads) < 0 {
		bad("CPUs %+v: want 0 or more of each", c)
	}
	if m.Arch == ARM64 && m.CPUs.Dies > 1 {
		bad("%d dies: QEMU's arm64 machine has none", m.CPUs.Dies)
	}
	if len(m.Nodes) == 1 || len(m.Nodes) > 0 && m.memory()%len(m.Nodes) != 0 {
		bad("%d nodes with %d MB: want no nodes, or two and more with the same memory each", len(m.Nodes), m.memory())
	}
	var placed []int
	for i, n := range m.Nodes {
		placed = append(placed, n.CPUs.Numbers()...)
		if len(n.Distances) != len(m.Nodes) {
			bad("node %d: %d distances to %d nodes", i, len(n.Distances), len(m.Nodes))
		}
	}
	slices.Sort(placed)
	if n := len(placed); len(m.Nodes) > 0 && (n != m.CPUs.Total() || placed[n-1] != n-1 || len(slices.Compact(placed)) != n) {
		bad("nodes with CPUs %v: want each of the %d in one node", placed, m.CPUs.Total())
	}
	switch n := m.InstructionNS; {
	case n == 0:
	case n < 0 || n > 1<<10 || bits.OnesCount(uint(n)) != 1:
		bad("%d ns per instruction: want a power of two up to 1024", n)
	case m.KVM:
		bad("%d ns per instruction: virtual time needs TCG, want KVM off", n)
	case m.Arch == AMD64 && m.CPUs.Total() > 1:
		bad("%d ns per instruction with %d CPUs: amd64 guests hang with more than one CPU", n, m.CPUs.Total())
	}
	if len(errs) > 0 {
		return fmt.Errorf("start guest: %w", errors.Join(errs...))
	}
	return nil
}

func (m Machine) memory() int {
	if m.MemoryMB == 0 {
		return 512
	}
	return m.MemoryMB
}

// args is QEMU's command line.
func (m Machine) args() []string {
	board, model, console := m.Arch.board(), "max", "ttyS0"
	if m.Arch == ARM64 {
		// Random numbers in the device tree would make every boot different.
		board, model, console = board+",dtb-randomness=off", "cortex-a72", "ttyAMA0"
	}
	accel := "tcg,thread=single"
	switch {
	case m.KVM:
		accel, model = "kvm", onKVM
	case m.Parallel && m.InstructionNS == 0:
		accel = "tcg,thread=multi"
	}
	if m.CPU != "" {
		model = m.CPU
	}
	words := "console=" + console + " quiet panic=-1 rdinit=/init"
	c := m.CPUs
	cpus := fmt.Sprintf("%d,sockets=%d,cores=%d,threads=%d", c.Total(), max(1, c.Sockets), max(1, c.Cores), max(1, c.Threads))
	if m.Arch == AMD64 {
		cpus += fmt.Sprintf(",dies=%d", max(1, c.Dies))
	}
	args := []string{
		"-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
		"-machine", board, "-accel", accel, "-cpu", model, "-smp", cpus, "-m", strconv.Itoa(m.memory()),
	}
	if m.Kernel != "" {
		args = append(args, "-kernel", m.Kernel, "-initrd", m.Initramfs)
	}
	if n := m.InstructionNS; n > 0 {
		// A fixed seed, date and kernel address make runs identical.
		args = append(args, "-icount", fmt.Sprintf("shift=%d,sleep=off", bits.TrailingZeros(uint(n))),
			"-rtc", "base=2026-01-01,clock=vm", "-seed", "1")
		words += " nokaslr"
	}
	args = append(args, m.nodeArgs()...)
	for i, d := range m.Drives {
		format := d.Format
		if format == "" {
			format = "raw"
		}
		drive := fmt.Sprintf("file=%s,if=none,id=drive%d,format=%s", strings.ReplaceAll(d.Path, ",", ",,"), i, format)
		if d.ReadOnly {
			drive += ",readonly=on"
		}
		if d.Discard {
			drive += ",snapshot=on"
		}
		if d.IOPS > 0 {
			drive += fmt.Sprintf(",throttling.iops-total=%d", d.IOPS)
		}
		args = append(args, "-drive", drive, "-device", fmt.Sprintf("virtio-blk-pci,drive=drive%d", i))
	}
	if m.Append != "" {
		words += " " + m.Append
	}
	if m.Kernel != "" {
		args = append(args, "-append", words)
	}
	return append(args, m.Args...)
}

func (m Machine) nodeArgs() (args []string) {
	for i, n := range m.Nodes {
		node := fmt.Sprintf("node,nodeid=%d,memdev=memory%d", i, i)
		for _, cpu := range n.CPUs.Numbers() {
			node += fmt.Sprintf(",cpus=%d", cpu)
		}
		args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=memory%d,size=%dM", i, m.memory()/len(m.Nodes)), "-numa", node)
	}
	for i, n := range m.Nodes {
		for j, d := range n.Distances {
			if i != j {
				args = append(args, "-numa", fmt.Sprintf("dist,src=%d,dst=%d,val=%d", i, j, d))
			}
		}
	}
	return args
}
