package env

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestWhatAXenMachineLacks checks that a guest whose kernel, or the driver of whose network
// card, is missing is refused before it is made.
func TestWhatAXenMachineLacks(t *testing.T) {
	noDriver := func(*study.Environment) error {
		return &guest.MissingError{What: "modules.dep of vmlinuz-6.1", Remedy: "run depmod", Err: fs.ErrNotExist}
	}
	for _, c := range []struct {
		name string
		has  Facts
		make study.Environment
		want string // "": nothing
	}{
		{"another machine", Facts{Kernel: true}, study.Environment{}, "this is not the first domain of a Xen machine with xl"},
		{"no kernel", Facts{FirstDomain: true}, study.Environment{}, "a kernel for amd64 guests is missing"},
		{"its own kernel", Facts{FirstDomain: true}, study.Environment{Kernel: "/boot/vmlinuz-6.1"}, ""},
		{"a kernel that is not there", Facts{FirstDomain: true, Image: fits}, study.Environment{Kernel: "/nowhere/vmlinuz-6.1"}, "no kernel /nowhere/vmlinuz-6.1"},
		{"no driver for a network", Facts{FirstDomain: true, Kernel: true, Card: noDriver}, study.Environment{Network: "lan"}, "modules.dep of vmlinuz-6.1 is missing"},
		{"no network", Facts{FirstDomain: true, Kernel: true, Card: noDriver}, study.Environment{}, ""},
	} {
		c.make.Driver = study.Xen
		err := c.has.Refuse(&study.Part{Environment: c.make})
		lack, ok := errors.AsType[*lab.LackError](err)
		if c.want == "" && err != nil || c.want != "" && (!ok || lack.What != c.want || lack.Remedy == "" || c.name == "no kernel" && !strings.Contains(lack.Remedy, "as the user that runs the lab")) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// Guests have the architecture of their host, and QEMU has a program for each.
func TestWhichQEMUIsMissing(t *testing.T) {
	for arch, want := range map[string]string{"amd64": "qemu-system-x86_64 is missing", "arm64": "qemu-system-aarch64 is missing"} {
		f := Facts{Arch: arch, KVM: true}
		err := f.Refuse(&study.Part{Environment: study.Environment{Driver: study.QEMU, CPUs: 1, Image: "bench"}})
		if lack, ok := errors.AsType[*lab.LackError](err); !ok || lack.What != want {
			t.Errorf("%s: %v, want %q", arch, err, want)
		}
	}
}

// /dev/kvm may be there and lack what QEMU wants of it: a study whose guests may not be emulated is refused
// before its first run, with what QEMU said.
func TestKVMIsTried(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "bin")
	qemu, _ := guest.Arch(runtime.GOARCH).QEMU()
	t.Setenv("PATH", fake+":"+os.Getenv("PATH"))
	for _, c := range []struct{ name, qemu, accel, want string }{
		{"it works", `read word && test "$word" = quit`, "kvm", ""},
		{"it does not", "echo 'qemu: failed to set MSR 0x10a' >&2; echo 'core dumped' >&2; exit 134", "kvm", "the guests need KVM, and QEMU does not start one on it: qemu: failed to set MSR 0x10a"},
		{"it says nothing", "exit 1", "kvm", "the guests need KVM, and QEMU does not start one on it: exit status 1"},
		{"emulation is allowed", "exit 1", "", ""},
	} {
		if err := errors.Join(os.MkdirAll(fake, 0o755), os.WriteFile(filepath.Join(fake, qemu), []byte("#!/bin/sh\n"+c.qemu+"\n"), 0o755)); err != nil {
			t.Fatal(err)
		}
		f := openMaker(t).Here()
		f.KVM, f.Image = true, nil
		p := &study.Part{Environment: study.Environment{Driver: study.QEMU, CPUs: 1, Image: "bench"}}
		if c.accel != "" {
			p.Environment.Accel = []string{c.accel}
		}
		err := f.Refuse(p)
		lack, ok := errors.AsType[*lab.LackError](err)
		if c.want == "" && err != nil || c.want != "" && (!ok || lack.What != c.want || !strings.Contains(lack.Remedy, "tcg")) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// QEMU cuts off the end of an image that is larger than its disk is to be.
func TestDiskSmallerThanItsImage(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(disk, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[study.Bytes]bool{0: true, 1 << 20: false, 2 << 20: true, 3 << 20: true} {
		err := fits(&study.Environment{Image: disk, Disk: size})
		if lack, ok := errors.AsType[*lab.LackError](err); want != (err == nil) || !want && (!ok || lack.Remedy == "") {
			t.Errorf("a disk of %s: %v", size, err)
		}
	}
}

// A program outlives the thread on which its start was asked for.
func TestProgramsOfTheAgentOutliveThreads(t *testing.T) {
	in := newAgent(false)
	var said quelltest.Output
	type started struct {
		p   lab.Process
		err error
		tid int
	}
	ended := make(chan started)
	host.OwnThread(func() {
		p, err := in.Start(t.Context(), lab.Job{Argv: []string{"/bin/sh", "-c", "read x && echo alive"}, WaitsForStart: true, Stdout: &said})
		ended <- started{p, err, unix.Gettid()}
	})
	s := <-ended
	if s.err != nil {
		t.Fatal(s.err)
	}
	quelltest.Until(t, "the thread has ended", func() bool {
		_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", s.tid))
		return os.IsNotExist(err)
	})
	if _, _, err := s.p.Begin(); err != nil {
		t.Error(err)
	}
	<-s.p.Done()
	if err := s.p.Err(); err != nil || said.String() != "alive\n" {
		t.Errorf("%q, %v", said.String(), err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
}

// Where there is no cpuset, a part that is not placed may run where this process may.
func TestAffinityOfWhatIsNotPlaced(t *testing.T) {
	want, err := host.Affinity(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []sample.Set{{}, want} {
		if got, err := tryAffinity(set); err != nil || len(got) != 1 || got[0].String() != want.String() {
			t.Errorf("%s: %v, %v, want %s", set, got, err, want)
		}
	}
}

// A placement gives an environment one set of CPUs, or a guest one for each virtual CPU.
func TestPlacementsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		driver     study.Driver
		cpus, sets int
		ok         bool
	}{
		{study.Cgroup, 4, 1, true}, {study.Cgroup, 4, 4, false},
		{study.QEMU, 4, 1, true}, {study.QEMU, 4, 4, true}, {study.QEMU, 4, 2, false}, {study.QEMU, 0, 1, true},
		{study.Xen, 2, 2, true}, {study.Xen, 0, 2, false},
	} {
		err := RefusePlacement(&study.Environment{Driver: c.driver, CPUs: c.cpus}, c.sets)
		if lack, ok := errors.AsType[*lab.LackError](err); c.ok != (err == nil) || err != nil && (!ok || lack.Remedy == "") {
			t.Errorf("%s with %d CPUs, %d sets: %v", c.driver, c.cpus, c.sets, err)
		}
	}
}
