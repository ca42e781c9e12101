//go:build linux

package uprobe

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"

	"github.com/quell-dev/quell/internal/counter"
	"github.com/quell-dev/quell/internal/host"
)

// CapUprobe is the name of what Capability looks for.
const CapUprobe = "uprobe eBPF"

// Capability tries a uprobe once, at the first instruction of the running
// program, which nobody reaches again.
func Capability() host.Capability {
	err := try("/proc/self/exe")
	if err == nil {
		return host.Capability{Name: CapUprobe, OK: true, Detail: "places in programs can be counted"}
	}
	c := host.Capability{Name: CapUprobe, Reason: err.Error()}
	var e *counter.NotSupportedError
	if errors.As(err, &e) {
		c.Reason, c.Remedy = e.Reason, e.Remedy
	}
	return c
}

func try(name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer file.Close()
	f, err := elf.NewFile(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	for _, s := range f.Progs {
		if s.Type == elf.PT_LOAD && f.Entry >= s.Vaddr && f.Entry-s.Vaddr < s.Filesz {
			p, err := Attach(file, f.Entry-s.Vaddr+s.Off)
			if err != nil {
				return err
			}
			return p.Close()
		}
	}
	return fmt.Errorf("read %s: no entry", name)
}
