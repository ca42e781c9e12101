package main

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawIO reads or writes a byte without telling Go's scheduler, which would
// hand the processor to another thread meanwhile, and that is not what is to
// be measured.
func rawIO(call uintptr, fd uintptr, b *[1]byte) (int, error) {
	for {
		n, _, errno := unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(b)), 1)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
