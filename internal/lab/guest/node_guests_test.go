//go:build guests && node

package guest

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	kube     = flag.String("kube", "", "the directory of Kubernetes' programs (make test-node)")
	helm     = flag.String("helm", "", "the program helm")
	images   = flag.String("images", "", "the directory of quell's images")
	imageTag = flag.String("image-tag", "", "their tag")
)

// TestNode runs the test of the chart on a node (internal/testkit/chart, TestOnANode) in a Debian with
// systemd and cgroup v2 alone: etcd, kube-apiserver, kubelet and containerd with systemd's driver. There a
// container is in a cgroup namespace of its own, and its cgroup is a unit of systemd.
func TestNode(t *testing.T) {
	const chart = "internal/testkit/chart"
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := Find(AMD64)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := kernel.Module("veth", "dummy")
	if err != nil {
		t.Fatal(err)
	}
	b := box{
		Machine:  Machine{Arch: AMD64, InstructionNS: 2, MemoryMB: 6144, Append: "rdinit=/tests/init systemd.unit=test.target systemd.show_status=0 systemd.log_target=kmsg"},
		base:     debianTree(t),
		deadline: 100 * time.Minute, // long enough on a busy host
		tests:    []insideTest{{pkg: chart, tag: "helm"}},
		files:    modules,
	}
	b.files = append(b.files, tree(t, "../../testkit/chart/testdata", "/src/"+chart+"/testdata")...)
	b.files = append(b.files, tree(t, "../../../deploy/helm", "/src/deploy/helm")...)
	b.files = append(b.files, File{Path: "/src/internal/testkit/quelltest/runtimes.sh", From: "../../testkit/quelltest/runtimes.sh"})
	const runtimes = ".cache/quell/runtimes"
	if out, err := exec.Command("../../testkit/quelltest/runtimes.sh", filepath.Join(home, runtimes)).CombinedOutput(); err != nil {
		t.Fatalf("unpack runtimes: %v: %s", err, out)
	}
	for _, path := range []string{"done", "usr/bin/containerd", "usr/bin/containerd-shim-runc-v2", "usr/bin/ctr", "usr/sbin/runc", "usr/lib/cni/ptp", "usr/lib/cni/host-local", "usr/lib/cni/loopback", "usr/lib/x86_64-linux-gnu"} {
		path = runtimes + "/root/" + path
		b.files = append(b.files, tree(t, filepath.Join(home, path), "/root/"+path)...)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kubelet", "kubectl"} {
		b.files = append(b.files, File{Path: "/usr/bin/" + name, From: filepath.Join(*kube, name)})
	}
	b.files = append(b.files, File{Path: "/usr/bin/helm", From: *helm})
	for _, name := range []string{"quell-agent.tar", "quell-server.tar", "task.tar"} {
		b.files = append(b.files, File{Path: "/images/" + name, Mode: 0o644, From: filepath.Join(*images, name)})
	}
	var load strings.Builder
	for _, m := range modules {
		fmt.Fprintf(&load, "load %s\n", m.Path)
	}
	for _, f := range []File{
		// Containers need a root that can be left: not the kernel's first.
		{Path: "/tests/init", Data: []byte("#!/bin/sh\nmount -t tmpfs -o size=90%,mode=755 tmpfs /mnt && cp -ax /. /mnt/ && exec /sbin/switch_root /mnt /lib/systemd/systemd\n")},
		{Path: "/etc/hosts", Mode: 0o644, Data: []byte("127.0.0.1 localhost\n")},
		{Path: "/etc/resolv.conf", Mode: 0o644},
		{Path: "/etc/systemd/system/test.target", Data: []byte("[Unit]\nRequires=multi-user.target test.service\nAfter=multi-user.target\n")},
		{Path: "/etc/systemd/system/test.service", Data: []byte("[Service]\nType=oneshot\nTimeoutStartSec=infinity\nStandardOutput=tty\nStandardError=tty\nExecStart=/bin/sh /tests/run\n")},
		// The minimal Debian has no program that loads modules; 313 is finit_module(2).
		{Path: "/tests/run", Data: []byte(`load() { perl -e 'open(F, "<", $ARGV[0]) or die $!; $p = ""; syscall(313, fileno(F), $p, 0) == 0 or die "$ARGV[0]: $!\n"' "$1"; }
` + load.String() + `
ip address add 198.18.1.1/24 dev dummy0 && ip link set dummy0 up && ip route add default dev dummy0
export HOME=/root QUELL_IMAGES=/images QUELL_IMAGE_TAG=` + *imageTag + ` QUELL_TASK_IMAGE=/images/task.tar
cd /src/` + chart + ` && /tests/0-chart.test -test.v=test2json -test.timeout=80m -test.run '^TestOnANode$'
code=$?
echo
echo GUEST-EXIT $code
systemctl poweroff --force --force
`)},
	} {
		b.files = append(b.files, f)
	}
	b.run(t)
}

// tree are a file, or the files below a directory, for a guest; what links point to is copied.
func tree(t *testing.T, from, to string) (all []File) {
	t.Helper()
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		i, err := os.Stat(path)
		if err == nil && i.Mode().IsRegular() {
			all = append(all, File{Path: to + strings.TrimPrefix(path, from), Mode: i.Mode().Perm(), From: path})
		}
		return err
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("%s: %v, %d files", from, err, len(all))
	}
	return all
}
