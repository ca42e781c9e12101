// Package guest makes machines in QEMU that boot Linux from a kernel and an initramfs: a machine of any
// shape in two seconds, without an image, a disk or a network.
//
//	kernel, err := guest.Find(guest.ARM64)              // from the cache that Fetch fills
//	err = guest.Initramfs(w, guest.Init{Run: ...}, ...) // programs, files, modules
//	cmd, err := guest.Machine{Arch: guest.ARM64, Kernel: kernel.Image, Initramfs: path}.Command(ctx)
//
// PID 1 of the guest is internal/lab/guest/init, a static program that mounts the kernel's
// file systems, loads modules, runs programs and powers the machine off. It prints the
// result as a line on the console, "GUEST-EXIT n": QEMU itself exits with 0 even after
// the guest's kernel has panicked.
//
// Kernels are Debian's cloud kernels, from Debian's archive. They have perf's
// cgroup mode, cgroup v2 with all controllers, PSI, BTF and the scheduler's
// tracepoints built in; the guest tests (make test-guests, docs/guests.md) run
// quell on them.
//
// Everything here requires a Linux host.
package guest
