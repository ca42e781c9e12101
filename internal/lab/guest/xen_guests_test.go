//go:build guests && xen

package guest

import (
	"fmt"
	"path/filepath"
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

// vifScript connects a guest's interface to the bridge, as Xen's own vif-bridge does, but
// without bash, iproute2 and locks.
const vifScript = `#!/bin/busybox sh
[ "$1" = online ] || exit 0
ip link set "$vif" up
brctl addif xenbr0 "$vif"
xenstore write "$XENBUS_PATH/hotplug-status" connected
`

// TestXen tests the lab's Xen environment on Xen itself: hypervisor, first domain and two
// guests in one emulated machine with one CPU. (Two CPUs are two to five times slower on
// a busy host.)
func TestXen(t *testing.T) {
	x, err := FindXen()
	if err != nil {
		t.Fatal(err)
	}
	programs, err := x.Programs()
	if err != nil {
		t.Fatal(err)
	}
	first, err := x.Kernel.Module("xen-evtchn", "xen-gntdev", "xen-gntalloc", "xen-privcmd", "xenfs", "xen-netback", "bridge")
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
			File{Path: "/etc/xen/scripts/vif-quell", Data: []byte(vifScript)},
			File{Path: "/etc/xen/xl.conf", Data: []byte("# all as it is\n"), Mode: 0o644},
			File{Path: "/etc/services", Data: []byte("http 80/tcp\n"), Mode: 0o644},
			File{Path: "/boot/vmlinux", From: x.Kernel.Image, Mode: 0o644}),
		tests:    []insideTest{{pkg: "internal/lab/guest/inside/xen"}},
		deadline: 10 * time.Minute,
	}
	for _, f := range first {
		b.Init.Modules = append(b.Init.Modules, f.Path)
		b.files = append(b.files, f)
	}
	for i, f := range guests { // loaded in the order of their names
		f.Path = fmt.Sprintf("/guest-modules/%02d-%s", i, filepath.Base(f.Path))
		b.files = append(b.files, f)
	}
	b.run(t)
}
