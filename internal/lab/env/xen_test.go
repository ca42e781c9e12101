package env

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/xen"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The driver itself is tested on Xen (make test-xen). These tests cover the error on a
// machine without Xen, and the configuration of a guest.
func TestNoXen(t *testing.T) {
	if firstDomain() == nil {
		quelltest.Skip(t, "no-xen", errors.New("this is its first domain: make test-xen"))
	}
	m, err := Open(Options{Hold: []string{"h"}, Agent: []string{"a"}, Prefix: testPrefix})
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Make(t.Context(), &study.Part{Role: "vm", Environment: study.Environment{Driver: study.Xen}})
	var lack *lab.LackError
	if !errors.As(err, &lack) || !strings.Contains(lack.Error(), "boot Xen") {
		t.Errorf("%v", err)
	}
}

func TestXenConfig(t *testing.T) {
	module := filepath.Join(t.TempDir(), "00-net.ko")
	if err := os.WriteFile(module, []byte("module"), 0o644); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &Maker{opt: Options{Agent: []string{self, "play-agent"}, Kernel: func() (guest.Kernel, error) { return guest.Kernel{Image: "/boot/vmlinux"}, nil },
		Xen: Xen{Files: []guest.File{{Path: "/modules/00-net.ko", From: module}}, Words: func(p *study.Part) []string { return []string{"A=" + p.Role} }, Bridge: "xenbr0"}}}
	d := &xenGuest{name: "quell-lab-1-2.e1.vm", dir: t.TempDir()}
	got, err := m.config(&study.Part{Role: "vm", Environment: study.Environment{CPUs: 2, Memory: 128 << 20, Weight: 512, Cap: 0.255}}, d)
	if err != nil {
		t.Fatal(err)
	}
	want := xen.Config{Name: d.name, Kernel: "/boot/vmlinux", Ramdisk: d.dir + "/initramfs", Memory: 128, VCPUs: 2, Weight: 512, Cap: 26, Bridge: "xenbr0",
		Command: "console=hvc0 quiet loglevel=1 rdinit=/init rootfstype=ramfs A=vm -- play-agent tty /dev/hvc0"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if text, err := os.ReadFile(got.Ramdisk); err != nil || !strings.Contains(string(text), "modules/00-net.ko") {
		t.Errorf("no module in the initramfs, %v", err)
	}
}
