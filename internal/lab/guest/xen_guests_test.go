//go:build guests && xen

package guest

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// firstDomain starts the services of Xen's first domain that everything else needs, and a
// bridge for the guests.
const firstDomain = `#!/bin/busybox sh
set -e
/bin/busybox --install -s /bin
mkdir -p /dev/pts /run/xen /run/xenstored /run/lock /var/log/xen/console /var/lib/xen/dump /var/lib/xenstored /var/lock /etc/xen
ln -s ../run /var/run
mount -t devpts devpts /dev/pts
mount -t xenfs xenfs /proc/xen
[ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
xenstored --pid-file /run/xenstored.pid
i=0; until xenstore exists / 2>/dev/null || [ $i -ge 100 ]; do i=$((i+1)); sleep 0.1; done
xen-init-dom0
xenconsoled --log=guest --pid-file=/run/xenconsoled.pid
ip link add xenbr0 type bridge 2>/dev/null || brctl addbr xenbr0
ip addr add 10.99.0.1/24 dev xenbr0
ip link set xenbr0 up
echo "first domain up after $(cut -d' ' -f1 /proc/uptime) s"
`

// TestXen tests the lab's Xen environment on Xen itself.
func TestXen(t *testing.T) { onXen(t, "-test.run=^TestDomains$", "-test.timeout=10m") }

// TestXenStudies runs studies of the lab on it, to their reports.
func TestXenStudies(t *testing.T) { onXen(t, "-test.skip=^TestDomains$", "-test.timeout=40m") }

// onXen runs tests of inside/xen: hypervisor, first domain and two guests in one emulated
// machine with one CPU. (Two CPUs are two to five times slower on a busy host.)
func onXen(t *testing.T, args ...string) {
	x, err := fetchXen(t.Context(), os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	programs, err := x.Programs()
	if err != nil {
		t.Fatal(err)
	}
	first, err := x.Kernel.Module("xen-evtchn", "xen-gntdev", "xen-gntalloc", "xen-privcmd", "xenfs", "xen-netback", "bridge", "veth", "sch_tbf")
	if err != nil {
		t.Fatal(err)
	}
	guests, err := x.Kernel.Module("xen-netfront")
	if err != nil {
		t.Fatal(err)
	}
	b := box{
		Init: Init{
			Run: [][]string{{"/bin/busybox", "sh", "/first-domain"}},
			Env: []string{"PATH=/bin", "GODEBUG=asyncpreemptoff=1"},
		},
		boot: func(initramfs string) Machine {
			m := x.Boot(initramfs, "dom0_mem=1024M,max:1024M dom0_max_vcpus=1 sched=credit")
			m.MemoryMB = 3072
			return m
		},
		files: append(programs,
			File{Path: "/first-domain", Data: []byte(firstDomain)},
			File{Path: "/etc/xen/xl.conf", Data: []byte("# all as it is\n"), Mode: 0o644},
			File{Path: "/etc/services", Data: []byte("http 80/tcp\n"), Mode: 0o644},
			File{Path: "/boot/vmlinux-" + x.Kernel.Release, From: x.Kernel.Image, Mode: 0o644},
			File{Path: "/bin/quell", From: build(t, AMD64, "program", "cmd/quell")},
			File{Path: "/studies/net-io-small-xen.yaml", From: "../../../studies/net-io-small-xen.yaml", Mode: 0o644},
			File{Path: "/studies/noisy-neighbour-small-xen.yaml", From: "../../../studies/noisy-neighbour-small-xen.yaml", Mode: 0o644}),
		tests:    []insideTest{{pkg: "internal/lab/guest/inside/xen", args: args}},
		deadline: 45 * time.Minute,
	}
	for _, f := range first {
		b.Init.Modules = append(b.Init.Modules, f.Path)
		b.files = append(b.files, f)
	}
	// As depmod has them.
	modules := "/lib/modules/" + x.Kernel.Release
	for _, f := range guests {
		in, err := filepath.Rel(x.Kernel.Modules, f.From)
		if err != nil {
			t.Fatal(err)
		}
		f.Path = path.Join(modules, in)
		b.files = append(b.files, f)
	}
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		b.files = append(b.files, File{Path: path.Join(modules, list), From: filepath.Join(x.Kernel.Modules, list), Mode: 0o644})
	}
	b.run(t)
}

// xenPrograms are the toolstack programs that the first domain needs.
var xenPrograms = []string{"xl", "xenstored", "xenconsoled", "xen-init-dom0", "xentop", "xentrace", "xenstore"}

// Programs are the files of the toolstack for an initramfs: the programs in /bin with the
// libraries that they are linked with, a shell (busybox), and the loader.
func (x Xen) Programs() ([]File, error) {
	there := map[string]string{} // by name
	err := filepath.WalkDir(x.tree, func(p string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() && !strings.Contains(p, "/lib/modules/") {
			if _, known := there[e.Name()]; !known || strings.HasSuffix(filepath.Dir(p), "/bin") {
				there[e.Name()] = p
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list Xen's programs: %w", err)
	}
	files := []File{{Path: "/bin/busybox", From: there["busybox"]}, {Path: "/lib64/ld-linux-x86-64.so.2", From: there["ld-linux-x86-64.so.2"]}}
	seen := map[string]bool{}
	// Thread cancellation needs it, although no program is linked with it.
	next := []string{"libgcc_s.so.1"}
	for _, name := range xenPrograms {
		files = append(files, File{Path: "/bin/" + name, From: there[name]})
		needs, err := linked(there[name])
		if err != nil {
			return nil, fmt.Errorf("list libraries of %s: %w", name, err)
		}
		next = append(next, needs...)
	}
	for ; len(next) > 0; next = next[1:] {
		name := next[0]
		if seen[name] || strings.HasPrefix(name, "ld-linux") {
			continue
		}
		seen[name] = true
		if there[name] == "" {
			return nil, fmt.Errorf("list Xen's libraries: no %s in %s", name, x.tree)
		}
		files = append(files, File{Path: path.Join("/lib/x86_64-linux-gnu", name), From: there[name]})
		needs, err := linked(there[name])
		if err != nil {
			return nil, fmt.Errorf("list libraries of %s: %w", name, err)
		}
		next = append(next, needs...)
	}
	return files, nil
}

func linked(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ImportedLibraries()
}

// Boot is the machine that boots Xen with its first domain from an initramfs that
// Initramfs wrote, with Programs in it. options are Xen's own.
func (x Xen) Boot(initramfs, options string) Machine {
	return Machine{Arch: AMD64, Kernel: x.Hypervisor,
		// QEMU's list of modules: the kernel with its command line, then the others.
		Initramfs: x.Kernel.Image + " console=hvc0 quiet panic=5 rdinit=/init," + initramfs,
		// Xen ignores the words for Linux; its own console is set here.
		Append: "console=com1 com1=115200,8n1 noreboot " + options,
		// TCG reports a SMAP violation for supervisor reads of the stack and has no
		// rdtscp that Xen can emulate. Code in its guests that a signal interrupts
		// continues with wrong AVX registers.
		CPU: "max,-smap,-la57,-rdtscp,-xsave,-avx,-avx2"}
}
