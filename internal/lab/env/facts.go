package env

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/image"
	"github.com/quell-dev/quell/internal/lab/study"
)

// Facts are what a machine has for the environments of parts. Make asks them before it
// makes anything, and `quell lab check` before the first run: of this machine, or of one
// that is only described.
type Facts struct {
	Arch                                        string // Go's name
	Memory, LXC, QEMU, KVM, Kernel, FirstDomain bool
	NoTap                                       bool // no tap devices for guests' networks
	// StartKVM, if not nil, returns the error with which QEMU does not start a guest on KVM.
	StartKVM func() error
	// Program reports whether the machine has a program, by name or path.
	Program func(name string) bool
	// Image, if not nil, returns the error with which the machine lacks an environment's image or
	// kernel, or with which the image does not fit the environment.
	Image func(*study.Environment) error
	// Card, if not nil, returns the error with which the kernel of an environment's Xen guest
	// lacks the driver of its network card.
	Card func(*study.Environment) error
}

// Here reads the facts of this machine, and can try whether KVM works.
func (m *Maker) Here() Facts {
	f := m.facts()
	f.StartKVM = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), kvmBootTimeout)
		defer cancel()
		return guest.StartKVM(ctx, guest.Arch(f.Arch))
	})
	return f
}

func (m *Maker) facts() Facts {
	f := Facts{Arch: runtime.GOARCH, FirstDomain: firstDomain() == nil, Program: installed}
	qemu, _ := guest.Arch(f.Arch).QEMU()
	f.LXC, f.QEMU, f.KVM = installed("lxc-start"), installed(qemu), unix.Access("/dev/kvm", unix.R_OK|unix.W_OK) == nil
	f.Image = fits
	f.Card = func(e *study.Environment) error { _, err := m.card(e); return err }
	f.NoTap = unix.Access("/dev/net/tun", unix.R_OK|unix.W_OK) != nil
	_, err := m.opt.Kernel()
	f.Kernel = err == nil
	for _, file := range []string{"/sys/fs/cgroup/cgroup.controllers", "/proc/cgroups"} {
		text, err := os.ReadFile(file)
		f.Memory = f.Memory || err == nil && slices.Contains(strings.Fields(string(text)), "memory")
	}
	return f
}

// fits finds an environment's image, or the kernel that it names. QEMU would cut off the end of an image
// that is larger than the disk which the environment wants, and the guest would not boot.
func fits(e *study.Environment) error {
	if e.Image == "" {
		if _, err := os.Stat(e.Kernel); e.Kernel != "" && err != nil {
			return &lab.LackError{What: "no kernel " + e.Kernel, Remedy: "name one of this machine in the environment's kernel:"}
		}
		return nil
	}
	i, err := image.Find(e.Image, e.Kernel)
	if err != nil || e.Disk == 0 {
		return err
	}
	size, err := i.Size()
	if err == nil && int64(e.Disk) < size {
		err = &lab.LackError{What: fmt.Sprintf("a disk of %s for image %s of %s", e.Disk, e.Image, study.Bytes(size)), Remedy: "disk: at least the image's size"}
	}
	return err
}

// installed also searches where Debian installs servers.
func installed(name string) bool {
	for _, at := range []string{name, filepath.Join("/usr/sbin", name)} {
		if _, err := exec.LookPath(at); err == nil {
			return true
		}
	}
	return false
}

// Refuse returns the *lab.LackError with which a part's environment cannot be made or its
// program cannot start on a machine, nil if nothing is known to be missing.
func (f *Facts) Refuse(p *study.Part) error {
	e := &p.Environment
	lack := func(what, remedy string) error { return &lab.LackError{What: what, Remedy: remedy} }
	noKernel := e.Kernel == "" && !f.Kernel
	kernel := func() error {
		return lack("a kernel for amd64 guests is missing", "go run ./internal/lab/guest/fetch in quell's source, as the user that runs the lab (each has a cache of its own, root too), or kernel: in the environment")
	}
	command := ""
	if len(p.Workload.Command) > 0 && !p.Idle {
		command = p.Workload.Command[0]
	}
	switch e.Driver {
	case study.QEMU:
		onlyKVM := !slices.Contains(accelerators(*e), "tcg")
		const emulate = "tcg in the environment's accel: emulates the CPU, and its times are not those of the machine"
		switch {
		case e.Image == "" && command != "":
			return lack(fmt.Sprintf("no program %q in a guest: without image: it has only quell's own workloads", command), "give the environment an image: (quell lab image build), or use a builtin:")
		case e.Image == "" && f.Arch != string(guest.AMD64):
			return lack("guests without image need an amd64 host: QEMU's boards for others have no second serial line", "")
		case !f.QEMU:
			program, pkg := guest.Arch(f.Arch).QEMU()
			return lack(program+" is missing", "apt-get install --no-install-recommends "+pkg)
		case !f.KVM && onlyKVM:
			return lack("the guests need KVM, and there is no access to /dev/kvm", "load kvm and give access to /dev/kvm; "+emulate)
		case onlyKVM && f.StartKVM != nil && f.StartKVM() != nil:
			return lack(fmt.Sprintf("the guests need KVM, and QEMU does not start one on it: %v", f.StartKVM()), "use a machine on which it does; "+emulate)
		case e.Network != "" && f.NoTap:
			return lack("a guest on a network needs /dev/net/tun", "modprobe tun, as root")
		case e.Image == "" && noKernel:
			return kernel()
		case f.Image != nil:
			return asLackError(f.Image(e))
		}
	case study.Xen:
		switch {
		case !f.FirstDomain:
			return lack("this is not the first domain of a Xen machine with xl", "boot Xen, and install Xen's tools (xen-utils)")
		case command != "":
			return lack(fmt.Sprintf("no program %q in a guest: it has only quell's own workloads", command), "use a builtin:")
		case noKernel:
			return kernel()
		}
		var err error
		if f.Image != nil {
			err = f.Image(e)
		}
		if err == nil && e.Network != "" && f.Card != nil {
			err = f.Card(e)
		}
		if err != nil {
			return asLackError(err)
		}
		return RefuseSignals(p, true)
	case study.LXC:
		if !f.LXC {
			return lack("no lxc-start", "apt-get install lxc")
		}
		fallthrough
	case study.Bare, study.Cgroup:
		if e.Memory > 0 && !f.Memory {
			return lack("no memory controller for cgroups", "remove memory: from the environment, or enable the controller")
		}
		if command != "" && (filepath.IsAbs(command) || filepath.Base(command) == command) && !f.Program(command) {
			return lack(fmt.Sprintf("no program %q", command), "install it, or name it by its path")
		}
	}
	return nil
}

// RefuseSignals returns the *lab.LackError of a load that SIGSTOP is to hold where this machine has
// none of its processes: the numbers of another host's are those of other processes here, and a
// guest of Xen has none.
func RefuseSignals(p *study.Part, here bool) error {
	if p.Load.Control != "duty-cycle" || p.Load.Actuator != "sigstop" || here && p.Environment.Driver != study.Xen {
		return nil
	}
	return &lab.LackError{What: "SIGSTOP does not reach role " + p.Role + ": its processes are not the lab's machine's", Remedy: "actuator: freezer"}
}

// RefusePlacement returns the error with which an environment does not take so many sets of
// CPUs: one for all of it, or one for each of a guest's virtual CPUs.
func RefusePlacement(e *study.Environment, sets int) error {
	cpus := max(1, e.CPUs)
	switch guest := e.Driver == study.QEMU || e.Driver == study.Xen; {
	case sets == 1, guest && sets == cpus:
		return nil
	case guest:
		return &lab.LackError{What: fmt.Sprintf("%d sets of CPUs for a guest of %d virtual CPUs", sets, cpus), Remedy: "list one set for all of them, or one for each, separated by semicolons"}
	}
	return &lab.LackError{What: fmt.Sprintf("%d sets of CPUs for an environment without virtual CPUs", sets), Remedy: "use a placement with one list for each role, or cpus: 1; only guests (qemu, xen) have virtual CPUs"}
}
