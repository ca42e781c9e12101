package duck

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refusedCalls are system calls that a query has no use for, and with which code that runs in its process, if a defect
// of DuckDB lets it, would reach beyond: other programs and processes, sockets, the kernel's other interfaces.
var refusedCalls = []uint32{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_TKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE, unix.SYS_KCMP,
	unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_IO_URING_SETUP, unix.SYS_IO_SETUP, unix.SYS_MEMFD_CREATE, unix.SYS_MEMFD_SECRET,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_UNSHARE, unix.SYS_SETNS, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE, unix.SYS_FSOPEN, unix.SYS_CHROOT, unix.SYS_PIVOT_ROOT,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT,
	unix.SYS_SHMGET, unix.SYS_MSGGET, unix.SYS_SEMGET, unix.SYS_MQ_OPEN,
	unix.SYS_UNLINKAT, unix.SYS_RENAMEAT2, unix.SYS_MKDIRAT, unix.SYS_LINKAT, unix.SYS_SYMLINKAT, unix.SYS_MKNODAT, unix.SYS_TRUNCATE, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWN, unix.SYS_FCHOWNAT,
}

// amd64 has these too: fork, vfork, and former names of calls on files.
var refusedOnAMD64 = []uint32{57, 58, 76, 82, 83, 84, 85, 86, 87, 88, 90, 92, 94, 133, 264}

// restrictCalls has the kernel refuse those calls to all threads of this process, and to what these start
// (Documentation/userspace-api/seccomp_filter.rst). New threads, and signals to itself, are left: Go's runtime uses both.
// New executable memory is not: nothing is loaded any more. up is false where the kernel, or the service's own
// filter, has none of this.
func restrictCalls() (up bool, err error) {
	const (
		nr, arch, arg0, arg2 = 0, 4, 16, 32 // offsets in struct seccomp_data; the lower halves of arguments
		refuse               = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	)
	numbers, want := slices.Clone(refusedCalls), uint32(unix.AUDIT_ARCH_X86_64)
	switch runtime.GOARCH {
	case "amd64":
		numbers = append(numbers, refusedOnAMD64...)
	case "arm64":
		want = unix.AUDIT_ARCH_AARCH64
	default:
		return false, nil
	}
	var p []unix.SockFilter
	do := func(code uint16, k uint32, yes, no uint8) {
		p = append(p, unix.SockFilter{Code: code, Jt: yes, Jf: no, K: k})
	}
	load := func(at uint32) { do(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, at, 0, 0) }
	ret := func(k uint32) { do(unix.BPF_RET|unix.BPF_K, k, 0, 0) }
	// unless skips the next n instructions if a comparison fails.
	unless := func(test uint16, k uint32, n uint8) { do(unix.BPF_JMP|test|unix.BPF_K, k, 0, n) }
	load(arch)
	do(unix.BPF_JMP|unix.BPF_JEQ|unix.BPF_K, want, 1, 0)
	ret(unix.SECCOMP_RET_KILL_PROCESS) // another architecture's calls have other numbers
	load(nr)
	unless(unix.BPF_JGE, 1<<30, 1) // x32's
	ret(refuse)
	for _, n := range numbers {
		unless(unix.BPF_JEQ, n, 1)
		ret(refuse)
	}
	unless(unix.BPF_JEQ, unix.SYS_CLONE3, 1)
	ret(unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)) // its flags cannot be seen; libraries then call clone
	// allow allows a call if the comparison of its argument holds, else refuses it.
	allow := func(call, at uint32, test uint16, k uint32) {
		unless(unix.BPF_JEQ, call, 4)
		load(at)
		unless(test, k, 1)
		ret(unix.SECCOMP_RET_ALLOW)
		ret(refuse)
	}
	own := uint32(os.Getpid())
	allow(unix.SYS_CLONE, arg0, unix.BPF_JSET, unix.CLONE_THREAD)
	allow(unix.SYS_KILL, arg0, unix.BPF_JEQ, own)
	allow(unix.SYS_TGKILL, arg0, unix.BPF_JEQ, own)
	allow(unix.SYS_PRLIMIT64, arg0, unix.BPF_JEQ, 0)
	for _, call := range []uint32{unix.SYS_MMAP, unix.SYS_MPROTECT, unix.SYS_PKEY_MPROTECT} {
		unless(unix.BPF_JEQ, call, 4)
		load(arg2)
		unless(unix.BPF_JSET, unix.PROT_EXEC, 1)
		ret(refuse)
		ret(unix.SECCOMP_RET_ALLOW)
	}
	ret(unix.SECCOMP_RET_ALLOW)
	program := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	switch {
	case errno == 0:
		return true, nil
	case errors.Is(errno, unix.ENOSYS), errors.Is(errno, unix.EINVAL), errors.Is(errno, unix.EPERM):
		return false, nil
	}
	return false, fmt.Errorf("restrict system calls: %w", errno)
}
