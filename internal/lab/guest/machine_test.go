package guest

import (
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestArgs(t *testing.T) {
	base := Machine{Arch: AMD64, Kernel: "K", Initramfs: "I"}
	for _, c := range []struct {
		name string
		with func(*Machine)
		want []string // parts of the command line
		not  string
	}{
		{"amd64", func(m *Machine) {}, []string{"-machine q35", "-accel tcg,thread=single", "-cpu max", "-smp 1,sockets=1,cores=1,threads=1,dies=1", "-m 512",
			"-kernel K -initrd I", "-append console=ttyS0 quiet panic=-1 rdinit=/init", "-no-reboot"}, "-icount"},
		{"arm64", func(m *Machine) { m.Arch = ARM64 }, []string{"-machine virt,gic-version=3,dtb-randomness=off", "-cpu cortex-a72", "-smp 1,sockets=1,cores=1,threads=1 ", "console=ttyAMA0"}, "dies"},
		{"virtual time", func(m *Machine) { m.InstructionNS, m.Parallel = 8, true }, []string{"-icount shift=3,sleep=off", "clock=vm", "-seed 1", "base=2026-01-01", " nokaslr", "thread=single"}, "thread=multi"},
		{"a thread for every CPU", func(m *Machine) { m.CPUs.Cores, m.Parallel = 4, true }, []string{"-accel tcg,thread=multi", "-smp 4,"}, "single"},
		{"KVM", func(m *Machine) { m.KVM = true }, []string{"-accel kvm", "-cpu host"}, "tcg"},
		{"two nodes", func(m *Machine) {
			m.CPUs, m.MemoryMB = CPUs{Sockets: 2, Cores: 2, Threads: 2}, 1024
			m.Nodes = []Node{{sample.SetOf(0, 1, 2, 3), []int{10, 21}}, {sample.SetOf(4, 5, 6, 7), []int{21, 10}}}
		}, []string{"-smp 8,sockets=2,cores=2,threads=2,dies=1", "memory-backend-ram,id=memory0,size=512M", "-numa node,nodeid=1,memdev=memory1,cpus=4,cpus=5,cpus=6,cpus=7",
			"-numa dist,src=0,dst=1,val=21"}, "val=10"},
		{"drives", func(m *Machine) {
			m.Drives = []Drive{{Path: "/a,b"}, {Path: "/c", Format: "qcow2", ReadOnly: true}, {Path: "/d", IOPS: 50}}
		}, []string{"-drive file=/a,,b,if=none,id=drive0,format=raw -device virtio-blk-pci,drive=drive0", "file=/c,if=none,id=drive1,format=qcow2,readonly=on",
			"file=/d,if=none,id=drive2,format=raw,throttling.iops-total=50"}, ""},
		{"more words", func(m *Machine) { m.Append, m.Args = "psi=0", []string{"-device", "pvpanic"} }, []string{"rdinit=/init psi=0 -device pvpanic"}, ""},
	} {
		m := base
		c.with(&m)
		if err := m.check(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		line := strings.Join(m.args(), " ")
		for _, want := range c.want {
			if !strings.Contains(line, want) {
				t.Errorf("%s: %q is missing in\n%s", c.name, want, line)
			}
		}
		if c.not != "" && strings.Contains(line, c.not) {
			t.Errorf("%s: %q is in\n%s", c.name, c.not, line)
		}
	}
}

// TestCheck: the error names every problem, and QEMU is not started.
func TestCheck(t *testing.T) {
	twoNodes := []Node{{sample.SetOf(0), []int{10, 20}}, {sample.SetOf(1), []int{20, 10}}}
	for _, c := range []struct {
		m    Machine
		want []string
	}{
		{Machine{}, []string{"architecture", "kernel"}},
		{Machine{Arch: AMD64, InstructionNS: 3}, []string{"3 ns per instruction: want a power of two"}},
		{Machine{Arch: AMD64, InstructionNS: -2}, []string{"power of two"}},
		{Machine{Arch: AMD64, InstructionNS: 2048}, []string{"power of two"}},
		{Machine{Arch: AMD64, InstructionNS: 2, CPUs: CPUs{Cores: 2}}, []string{"hang"}},
		{Machine{Arch: ARM64, InstructionNS: 2, KVM: true, CPUs: CPUs{Dies: 2}}, []string{"KVM off", "2 dies"}},
		{Machine{Arch: AMD64, MemoryMB: -1, CPUs: CPUs{Threads: -1}}, []string{"memory -1 MB", "CPUs {"}},
		{Machine{Arch: AMD64, CPUs: CPUs{Cores: 3}, Nodes: twoNodes}, []string{"want each of the 3 in one node"}},
		{Machine{Arch: AMD64, CPUs: CPUs{Cores: 2}, Nodes: []Node{twoNodes[0], {sample.SetOf(0), []int{20}}}}, []string{"node 1: 1 distances", "want each of the 2"}},
		{Machine{Arch: AMD64, CPUs: CPUs{Cores: 1}, Nodes: twoNodes[:1]}, []string{"1 nodes"}},
		{Machine{Arch: AMD64, MemoryMB: 511, CPUs: CPUs{Cores: 2}, Nodes: twoNodes}, []string{"2 nodes with 511 MB"}},
	} {
		_, err := Start(t.Context(), c.m)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %q in it", c.m, err, want)
			}
		}
	}
	for _, n := range []int{0, 1, 2, 1024} {
		m := Machine{Arch: AMD64, Kernel: "K", Initramfs: "I", InstructionNS: n}
		if err := m.check(); err != nil {
			t.Errorf("%d ns per instruction: %v", n, err)
		}
		if slices.Contains(m.args(), "-icount") != (n > 0) {
			t.Errorf("%d ns per instruction: %q", n, m.args())
		}
	}
}
