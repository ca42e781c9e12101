package bench

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawIO reads or writes a byte without notifying Go's scheduler. The scheduler
// would hand the processor to another thread meanwhile, which must not be measured.
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
