package uprobe

import (
	"debug/elf"
	"fmt"
	"os"

	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// CapUprobe is the name of what Capability checks.
const CapUprobe = "uprobe eBPF"

// Capability tries a uprobe once, at the first instruction of the running program,
// which is not reached again.
func Capability() host.Capability {
	return counter.CapabilityOf(CapUprobe, "places in programs can be counted", try("/proc/self/exe"))
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
			p, err := Prober{}.Attach(file, f.Entry-s.Vaddr+s.Off)
			if err != nil {
				return err
			}
			return p.Close()
		}
	}
	return fmt.Errorf("read %s: no entry", name)
}
