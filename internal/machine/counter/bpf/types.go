package bpf

import (
	"sync"
	"weak"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// Options returns the options to load programs with. The kernel's types, whose decoding
// takes most of the time of a load, are decoded once for loads that follow each other.
// They are megabytes, and nothing keeps them afterwards.
func Options() *ebpf.CollectionOptions {
	return &ebpf.CollectionOptions{Cache: kernelTypes.get()}
}

// types are the kernel's types until the garbage collector has them.
type types struct {
	mu    sync.Mutex
	cache weak.Pointer[btf.Cache]
}

var kernelTypes types

func (t *types) get() *btf.Cache {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.cache.Value(); c != nil {
		return c
	}
	c := btf.NewCache()
	t.cache = weak.Make(c)
	return c
}
