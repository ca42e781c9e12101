package usage

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// Of linux/bpf.h. The eBPF library attaches iterators over maps and threads only.
const (
	linkCreate       = 28 // BPF_LINK_CREATE
	iterCreate       = 33 // BPF_ITER_CREATE
	traceIter        = 28 // BPF_TRACE_ITER
	descendantsFirst = 2  // BPF_CGROUP_ITER_DESCENDANTS_PRE: a cgroup before those below it
)

// walk is a program attached to the cgroup at the top of a mount, and to all below it.
type walk struct{ link int }

// attach attaches a program of type iter/cgroup to the cgroups of a directory.
func attach(p *ebpf.Program, dir string) (*walk, error) {
	cgroup, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(cgroup)
	info := struct {
		order, fd uint32
		id        uint64
	}{order: descendantsFirst, fd: uint32(cgroup)}
	attr := struct {
		program, target, kind, flags uint32
		info                         uint64
		infoLen, _                   uint32
	}{program: uint32(p.FD()), kind: traceIter, info: uint64(uintptr(unsafe.Pointer(&info))), infoLen: uint32(unsafe.Sizeof(info))}
	fd, err := syscall(linkCreate, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	runtime.KeepAlive(&info)
	runtime.KeepAlive(p)
	if err != nil {
		return nil, fmt.Errorf("attach %s to cgroups of %s: %w", p, dir, err)
	}
	return &walk{link: fd}, nil
}

// run runs the program for each cgroup.
func (w *walk) run() error {
	attr := struct{ link, flags uint32 }{link: uint32(w.link)}
	fd, err := syscall(iterCreate, unsafe.Pointer(&attr), unsafe.Sizeof(attr))
	if err != nil {
		return fmt.Errorf("iterate cgroups: %w", err)
	}
	defer unix.Close(fd)
	var none [1]byte // the program writes to maps only
	for {
		if _, err = unix.Read(fd, none[:]); !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.EAGAIN) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("iterate cgroups: %w", err)
	}
	return nil
}

func (w *walk) close() error { return unix.Close(w.link) }

// syscall is bpf(2). Descriptors that it makes are closed on exec.
func syscall(cmd uintptr, attr unsafe.Pointer, size uintptr) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, cmd, uintptr(attr), size)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}
