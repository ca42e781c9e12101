package counter

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// The formats are those that the kernel gives on an Intel server (cpu, an uncore PMU), an AMD
// server (amd) and an arm64 machine. The codes were put together by hand.
func TestPMUEvents(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/self/mountinfo": "",
		"cpu/type":            "4", "cpu/format/event": "config:0-7", "cpu/format/umask": "config:8-15", "cpu/format/edge": "config:18",
		"cpu/format/inv": "config:23", "cpu/format/cmask": "config:24-31", "cpu/format/ldlat": "config1:0-15",
		"cpu/events/cache-misses": "event=0x2e,umask=0x41",
		"amd/type":                "9", "amd/format/event": "config:0-7,32-35", "amd/format/umask": "config:8-15",
		"armv8_pmuv3_0/type": "8", "armv8_pmuv3_0/format/event": "config:0-15",
		"uncore_imc_0/type": "14", "uncore_imc_0/cpumask": "0,24", "uncore_imc_0/format/event": "config:0-7",
	} {
		file := filepath.Join(root, pmus, name)
		if strings.HasPrefix(name, "proc/") {
			file = filepath.Join(root, name)
		}
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h, err := host.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]event{
		"cpu/event=0x24,umask=0x3f/":       {kind: 4, config: 0x3f24},
		"cpu/cache-misses/":                {kind: 4, config: 0x412e},
		"cpu/event=0xc0,cmask=1,inv,edge/": {kind: 4, config: 1<<24 | 1<<23 | 1<<18 | 0xc0},
		"cpu/config=0x20d1/":               {kind: 4, config: 0x20d1},
		"amd/event=0x18d,umask=0x7/":       {kind: 9, config: 1<<32 | 0x78d}, // its ninth bit is bit 32
		"armv8_pmuv3_0/event=0x8108/":      {kind: 8, config: 0x8108},
	} {
		want.name = name
		if got, err := pmuEvent(h, name); err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"cpu/", "cpu//", "/event=1/", "cpu/event/x/", "cpu/event=0x100/", "cpu/event=x/", "cpu/ldlat=3/", "cpu/colour=3/", "cpu/../type=3/", "../cpu/event=1/"} {
		if e, err := pmuEvent(h, name); !errors.Is(err, ErrUnknownEvent) {
			t.Errorf("%s: %+v, %v; want ErrUnknownEvent", name, e, err)
		}
	}
	for name, why := range map[string]string{"cpu_atom/event=1/": "no PMU cpu_atom", "uncore_imc_0/event=4/": "not for tasks"} {
		var not *NotSupportedError
		if _, err := pmuEvent(h, name); !errors.As(err, &not) || !strings.Contains(not.Reason, why) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVendorEvents(t *testing.T) {
	for _, c := range []struct {
		platform, name string
		config         uint64
		ok             bool
	}{
		{"GenuineIntel-6-79-1", l2MissesName, 0x3f24, true},
		{"GenuineIntel-6-207-2-vm", memoryReadsName, 0x20d1, true},
		{"GenuineIntel-6-92-9", l2MissesName, 0, false}, // Goldmont
		{"AuthenticAMD-25-17-1", memoryReadsName, 0x4843, true},
		{"AuthenticAMD-25-17-1", l2MissesName, 0, false}, // the generic event
		{"AuthenticAMD-21-1-1", memoryReadsName, 0, false},
		{"arm-0x41-0xd0c-3-1", l2MissesName, 0x17, true},
		{"arm-0x41-0xd05-1-0+arm-0x41-0xd0b-1-0", l2MissesName, 0, false},
		{"", memoryReadsName, 0, false},
	} {
		e, ok := vendorEvent(c.platform, c.name)
		if ok != c.ok || ok && (e.config != c.config || e.kind != unix.PERF_TYPE_RAW || e.name != c.name) {
			t.Errorf("%s on %s: %+v, %t", c.name, c.platform, e, ok)
		}
	}
}
