package guest

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// pretend puts a script into PATH as QEMU for amd64, and returns a machine that uses it.
func pretend(t *testing.T, script string) Machine {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return Machine{Arch: AMD64, Kernel: "K", Initramfs: "I"}
}

func TestWait(t *testing.T) {
	for _, c := range []struct {
		name, script string
		code         int
		noExit       bool
		says         string // part of the error
	}{
		{"passed", `echo hello; echo GUEST-EXIT 0; exit 0`, 0, false, ""},
		{"failed, whatever QEMU says", `echo GUEST-EXIT 3; exit 0`, 3, false, ""},
		{"passed, whatever QEMU says", `echo GUEST-EXIT 0; exit 1`, 0, false, ""},
		{"the line of a serial console", `printf 'GUEST-EXIT 7\r\n'`, 7, false, ""},
		{"the kernel wrote before it", `echo '[ 1.2] reboot: GUEST-EXIT 4'`, 4, false, ""},
		{"no number", `echo GUEST-EXIT soon`, -1, true, "soon"},
		{"panicked", `echo 'Kernel panic - not syncing'; exit 0`, -1, true, "Kernel panic"},
		{"QEMU refused", `echo 'unknown option' >&2; exit 1`, -1, true, "unknown option"},
		{"no line end", `printf 'GUEST-EXIT 0'`, 0, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := Start(t.Context(), pretend(t, c.script))
			if err != nil {
				t.Fatal(err)
			}
			code, err := g.Wait()
			if code != c.code || errors.Is(err, ErrNoExit) != c.noExit || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%d, %v; want %d, %v and %q", code, err, c.code, c.noExit, c.says)
			}
		})
	}
}

func TestLines(t *testing.T) {
	g, err := Start(t.Context(), pretend(t, `printf 'one\r\ntwo\n\nGUEST-EXIT 0\nafter'`))
	if err != nil {
		t.Fatal(err)
	}
	got := slices.Collect(g.Lines())
	if want := []string{"one", "two", "", "GUEST-EXIT 0", "after"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if code, err := g.Wait(); code != 0 || err != nil {
		t.Errorf("%d, %v", code, err)
	}
}

// TestEnded: a guest that hangs is ended by its context, by its owner, or by both, and
// the error gives the cause.
func TestEnded(t *testing.T) {
	hang := pretend(t, "echo booting; exec cat /dev/zero >/dev/null")
	ctx, cancel := context.WithCancelCause(t.Context())
	g, err := Start(ctx, hang)
	if err != nil {
		t.Fatal(err)
	}
	late := errors.New("too late")
	for line := range g.Lines() {
		if line == "booting" {
			break
		}
	}
	cancel(late)
	if code, err := g.Wait(); code != -1 || !errors.Is(err, ErrNoExit) || !errors.Is(err, late) || !strings.Contains(err.Error(), "booting") {
		t.Errorf("%d, %v", code, err)
	}
	if err := g.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}

	g, err = Start(t.Context(), hang)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	quelltest.Until(t, "the process is gone", func() bool { return g.cmd.ProcessState != nil })
}

func TestMissingQEMU(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for arch, want := range map[Arch]string{AMD64: "qemu-system-x86", ARM64: "qemu-system-arm"} {
		_, err := Start(t.Context(), Machine{Arch: arch, Kernel: "K", Initramfs: "I"})
		var e *MissingError
		if !errors.As(err, &e) || !strings.Contains(e.Remedy, want) {
			t.Errorf("%s: %v", arch, err)
		}
	}
}

func TestKernelInCache(t *testing.T) {
	cache := t.TempDir()
	_, err := find(cache, ARM64)
	var e *MissingError
	if !errors.As(err, &e) || !strings.Contains(e.Remedy, "internal/lab/guest/fetch") || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty cache: %v", err)
	}
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(cache, "arm64", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("boot/vmlinuz-6.1.0-9-cloud-arm64", "")
	k, err := find(cache, ARM64)
	if err != nil || k.Release != "6.1.0-9-cloud-arm64" || filepath.Base(k.Headers) != "linux-headers-6.1.0-9-cloud-arm64" {
		t.Fatalf("%+v, %v", k, err)
	}
	if _, err := find(cache, AMD64); !errors.As(err, &e) {
		t.Errorf("the other architecture: %v", err)
	}
	if _, err := k.Module("virtio_blk"); !errors.As(err, &e) {
		t.Errorf("without modules.dep: %v", err)
	}
	write("lib/modules/6.1.0-9-cloud-arm64/modules.builtin", "kernel/fs/ext4/ext4.ko\nkernel/lib/crc-t10.ko\n")
	write("lib/modules/6.1.0-9-cloud-arm64/modules.dep", "kernel/b/virtio_blk.ko: kernel/b/virtio-ring.ko kernel/b/virtio.ko\n"+
		"kernel/b/virtio-ring.ko: kernel/b/virtio.ko\nkernel/b/virtio.ko:\nkernel/n/veth.ko:\n")
	for _, c := range []struct{ ask, want string }{
		{"virtio-blk", "virtio.ko virtio-ring.ko virtio_blk.ko"},
		{"veth virtio_ring virtio_blk", "veth.ko virtio.ko virtio-ring.ko virtio_blk.ko"},
		{"ext4 crc_t10 veth", "veth.ko"},
		{"", ""},
	} {
		files, err := k.Module(strings.Fields(c.ask)...)
		var got []string
		for _, f := range files {
			got = append(got, strings.TrimPrefix(f.Path, "/modules/"))
			if !strings.HasPrefix(f.From, k.Modules+"/kernel/") {
				t.Errorf("%s is taken from %s", f.Path, f.From)
			}
		}
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v; want %s", c.ask, got, err, c.want)
		}
	}
	if _, err := k.Module("veth", "nonesuch"); err == nil || !strings.Contains(err.Error(), "nonesuch") {
		t.Errorf("a module that is not there: %v", err)
	}
}

func TestRelocate(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "Makefile")
	if err := os.WriteFile(name, []byte("include /usr/src/linux-headers-6.1.0-9-common/Makefile\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second call changes nothing
		if err := relocate(dir); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(name)
		if want := "include $(dir $(lastword $(MAKEFILE_LIST)))../linux-headers-6.1.0-9-common/Makefile\n"; err != nil || string(text) != want {
			t.Errorf("%q, %v; want %q", text, err, want)
		}
	}
}
