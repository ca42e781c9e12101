package env

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab"
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
	t.Setenv("GODEBUG", "a=1")
	system := t.TempDir()
	for name, text := range map[string]string{
		"boot/vmlinuz-6.1": "", "lib/modules/6.1/net/xen-netfront.ko": "front", "lib/modules/6.1/lib/other.ko.xz": "other",
		"lib/modules/6.1/modules.dep":     "net/xen-netfront.ko: lib/other.ko.xz\nlib/other.ko.xz:\n",
		"lib/modules/6.1/modules.builtin": "",
	} {
		file := filepath.Join(system, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &Maker{opt: Options{Agent: []string{self, "play-agent"}}}
	for _, linked := range []bool{false, true} {
		d := &xenGuest{name: "quell-lab-1-2.e1.vm", dir: t.TempDir()}
		kernel := system + "/boot/vmlinuz-6.1"
		got, err := m.config(&study.Part{Role: "vm", Address: "10.77.1.2/16", Environment: study.Environment{CPUs: 2, Memory: 128 << 20, Weight: 512, Cap: 0.255, Kernel: kernel}}, d, linked)
		if err != nil {
			t.Fatal(err)
		}
		want := xen.Config{Name: d.name, Kernel: kernel, Ramdisk: d.dir + "/initramfs", Memory: 128, VCPUs: 2, Weight: 512, Cap: 26,
			Command: "console=hvc0 quiet loglevel=1 rdinit=/init rootfstype=ramfs GODEBUG=a=1 -- play-agent tty /dev/hvc0"}
		if linked {
			want.Vif, want.Command = d.dir+"/vif", want.Command+" 10.77.1.2/16"
			text, err := os.ReadFile(want.Vif)
			if err != nil || string(text) != vifScript {
				t.Errorf("%s%v", text, err)
			}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("-want +got:\n%s", d)
		}
		text, err := os.ReadFile(got.Ramdisk)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"modules/00-other.ko.xz", "modules/01-xen-netfront.ko"} {
			if strings.Contains(string(text), name+"\x00") != linked {
				t.Errorf("%s in the initramfs: %v, want %v", name, !linked, linked)
			}
		}
	}
}

// A dead lab's guest is found by its name until xl has destroyed it, also if a sweep that failed
// has removed everything else.
func TestSweepDomainsUntilTheyAreGone(t *testing.T) {
	const dead, other = "lab-2147483647-1.e1.vm", "other-2147483647-1.e1.vm"
	there, failures := []string{dead, other}, 1
	tools := xen.Tools{Run: func(_ context.Context, argv ...string) ([]byte, error) {
		switch argv[1] {
		case "list":
			var list []string
			for i, name := range there {
				list = append(list, fmt.Sprintf(`{"domid": %d, "config": {"c_info": {"name": %q}}}`, i+1, name))
			}
			return []byte("[" + strings.Join(list, ",") + "]"), nil
		case "destroy":
			if failures--; failures >= 0 {
				return nil, errors.New("xl is busy")
			}
			there = slices.DeleteFunc(there, func(name string) bool { return name == argv[2] })
		}
		return nil, nil
	}}
	if os.Geteuid() != 0 { // a study that runs nothing needs no root, and xl would refuse
		if err := sweepDomains(tools, "lab"); err != nil || failures != 1 || len(there) != 2 {
			t.Errorf("%v, left %v", err, there)
		}
		return
	}
	if err := sweepDomains(tools, "lab"); err == nil || len(there) != 2 {
		t.Errorf("%v, left %v", err, there)
	}
	if err := sweepDomains(tools, "lab"); err != nil || len(there) != 1 || there[0] != other {
		t.Errorf("%v, left %v", err, there)
	}
}
