// Package bpf holds what the packages that load eBPF programs of this kind share: the
// kernel's types that the programs read (kernel.h), attaching to BTF tracepoints only
// for a window, and what a kernel's refusal means.
package bpf

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/counter"
)

// Load loads programs with load. If the kernel refuses those that report served tasks
// (before 5.17), it loads them without that.
func Load[K any](load func(unserved bool) (K, error)) (K, error) {
	// Kernels before 5.11 charge maps to RLIMIT_MEMLOCK. On later ones this does nothing.
	if err := rlimit.RemoveMemlock(); err != nil {
		return *new(K), fmt.Errorf("remove RLIMIT_MEMLOCK: %w", err)
	}
	k, err := load(false)
	if err == nil {
		return k, nil
	}
	k, again := load(true)
	if again != nil {
		return k, err
	}
	return k, nil
}

// Hooks are programs on tracepoints. The zero value has none.
type Hooks struct{ links []link.Link }

// Attach attaches all of the programs, or none.
func (h *Hooks) Attach(programs ...*ebpf.Program) error {
	for _, p := range programs {
		l, err := link.AttachTracing(link.TracingOptions{Program: p})
		if err != nil {
			return errors.Join(fmt.Errorf("attach %s: %w", p, err), h.Detach())
		}
		h.links = append(h.links, l)
	}
	return nil
}

// Detach leaves nothing on the kernel's paths. A program that still runs on another CPU
// may write for another moment.
func (h *Hooks) Detach() error {
	var errs []error
	for _, l := range h.links {
		errs = append(errs, l.Close())
	}
	h.links = nil
	return errors.Join(errs...)
}

// Clear empties a hash map with keys of type K.
func Clear[K any](m *ebpf.Map) error {
	var old []K
	var key K
	err := m.NextKey(nil, &key)
	for ; err == nil; err = m.NextKey(key, &key) {
		old = append(old, key)
	}
	if !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("clear %s: %w", m, err)
	}
	for _, key := range old {
		if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("clear %s: %w", m, err)
		}
	}
	return nil
}

// NotSupported says what the kernel's answer to loading or attaching means for this machine.
// what is the thing that is missing, and kernel the kernel that is needed.
func NotSupported(what, kernel string, err error) error {
	e := &counter.NotSupportedError{What: what, Reason: err.Error(), Err: err}
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		e.Remedy = "grant CAP_BPF and CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8) and allow bpf(2) in the seccomp profile; before Linux 5.11 also lift the limit of locked memory (LimitMEMLOCK=infinity) or grant CAP_SYS_RESOURCE"
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, os.ErrNotExist):
		e.Remedy = "use a kernel built with CONFIG_DEBUG_INFO_BTF that offers /sys/kernel/btf/vmlinux"
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.E2BIG):
		e.Remedy = "monitor fewer tasks, or raise the memory limit"
	default:
		e.Remedy = "use " + kernel
	}
	return e
}
