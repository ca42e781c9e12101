package fault

import "golang.org/x/sys/unix"

// change changes the registers of a stopped thread.
func change(tid int, f func(*unix.PtraceRegs)) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(tid, &r); err != nil {
		return err
	}
	f(&r)
	return unix.PtraceSetRegs(tid, &r)
}

// skip makes the kernel not make the call that a thread is about to make.
func skip(tid int) error {
	return change(tid, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
}

// setResult sets the error of the call that a thread has made.
func setResult(tid int, errno unix.Errno) error {
	return change(tid, func(r *unix.PtraceRegs) { r.Rax = uint64(-int64(errno)) })
}

// setLength sets the third argument of the call that a thread is about to make.
func setLength(tid int, n uint64) error {
	return change(tid, func(r *unix.PtraceRegs) { r.Rdx = n })
}
