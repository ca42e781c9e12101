package observe

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

// cores returns a machine of two cores with two threads each (0 and 2, 1 and 3), whose
// registers are files in tree. The files are sparse, with a length up to the register's
// number.
func cores(t *testing.T, cpuinfo string, number int64, values [4]uint64) *host.Host {
	t.Helper()
	files := machineFiles()
	files["/proc/cpuinfo"] = cpuinfo
	files[cpus+"/online"] = "0-3"
	for n, siblings := range []string{"0,2", "1,3", "0,2", "1,3"} {
		dir := cpus + "/cpu" + string(rune('0'+n)) + "/topology/"
		files[dir+"thread_siblings_list"], files[dir+"core_cpus_list"] = siblings, siblings
		files[dir+"physical_package_id"], files[dir+"core_id"] = "0", string(rune('0'+n%2))
	}
	h := tree(t, files)
	for n, v := range values {
		name := h.Path("/dev/cpu/" + string(rune('0'+n)) + "/msr")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], v)
		if _, err := f.WriteAt(b[:], number); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

const (
	broadwell = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 79\nstepping\t: 1\n"
	genoa     = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t: 17\nstepping\t: 1\n"
)

func registers(t *testing.T, h *host.Host, number int64) (all [4]uint64) {
	t.Helper()
	for n := range all {
		f, err := os.Open(h.Path("/dev/cpu/" + string(rune('0'+n)) + "/msr"))
		if err != nil {
			t.Fatal(err)
		}
		var b [8]byte
		_, err = f.ReadAt(b[:], number)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		all[n] = binary.LittleEndian.Uint64(b[:])
	}
	return all
}

// Prefetching is switched off through the first thread of each core; the other bits of
// the register stay. After a crash it is restored bit for bit. In this tree each thread's
// register is a file of its own: the second threads' files already have the value for
// off, as the shared register of a real core would read.
func TestPrefetchingIsSwitchedAndComesBack(t *testing.T) {
	for name, c := range map[string]struct {
		cpuinfo string
		number  int64
		before  [4]uint64
		off     [2]uint64 // of the first threads
	}{
		// The firmware has switched off the adjacent-line prefetcher of core 1.
		"Intel": {broadwell, 0x1a4, [4]uint64{0x40, 0x42, 0x4f, 0x4f}, [2]uint64{0x4f, 0x4f}},
		"AMD":   {genoa, 0xc0000108, [4]uint64{0x3c0, 0x3c8, 0x3ef, 0x3ef}, [2]uint64{0x3ef, 0x3ef}},
	} {
		t.Run(name, func(t *testing.T) {
			h := cores(t, c.cpuinfo, c.number, c.before)
			k, dir, now := Knobs{h}, t.TempDir(), sample.At(time.Now())
			e, err := enforce.Open(dir, k)
			if err != nil {
				t.Fatal(err)
			}
			made, err := k.Set(e, now, now+1e6, map[string]string{"prefetching": "off"}, "test")
			if err != nil {
				t.Fatal(err)
			}
			if got := registers(t, h, c.number); len(made) != 2 || got != [4]uint64{c.off[0], c.off[1], c.before[2], c.before[3]} {
				t.Errorf("%d changes, registers %#x", len(made), got)
			}
			if text, err := prefetching(h); err != nil || text != "off" {
				t.Errorf("described as %q, %v", text, err)
			}
			if unmet, err := Measure(t.Context(), h, study.Preconditions{Require: map[string]string{"prefetching": "off"}}, time.Millisecond); err != nil || len(unmet) > 0 {
				t.Errorf("%v, %v", unmet, err)
			}
			if err := e.Close(); err != nil { // restores nothing
				t.Fatal(err)
			}
			if e, err = enforce.Open(dir, k); err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			if _, err := e.RestoreAll(now, "after a crash"); err != nil {
				t.Fatal(err)
			}
			if got := registers(t, h, c.number); got != c.before {
				t.Errorf("registers %#x after the restore, were %#x", got, c.before)
			}
			if text, err := prefetching(h); err != nil || text != "differs between CPUs" {
				t.Errorf("described as %q, %v", text, err)
			}
		})
	}
}

// A thread whose register is not shared would continue to prefetch: Set detects that, and
// nothing stays changed.
func TestPrefetchingOfThreadsThatDoNotShare(t *testing.T) {
	before := [4]uint64{0, 0, 0, 0}
	h := cores(t, broadwell, 0x1a4, before)
	k, now := Knobs{h}, sample.At(time.Now())
	e, err := enforce.Open(t.TempDir(), k)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	_, err = k.Set(e, now, now+1e6, map[string]string{"prefetching": "off"}, "test")
	var lack *KnobError
	if !errors.As(err, &lack) || !strings.Contains(err.Error(), "/dev/cpu/2/msr reads 0x0 after 0xf was set") {
		t.Errorf("%v", err)
	}
	if got := registers(t, h, 0x1a4); got != before || len(e.Active()) > 0 {
		t.Errorf("registers %#x, active %v", got, e.Active())
	}
}

func TestPrefetchingThatCannotBeSwitched(t *testing.T) {
	const core2 = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t: 23\nstepping\t: 6\n"
	const zen2 = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 23\nmodel\t: 49\nstepping\t: 0\n"
	none := machineFiles() // no msr device
	none["/proc/cpuinfo"] = broadwell
	for name, c := range map[string]struct {
		host *host.Host
		want string
	}{
		"no device":      {tree(t, none), "no /dev/cpu/[0-9]*/msr"},
		"Core 2":         {cores(t, core2, 0x1a4, [4]uint64{}), "GenuineIntel-6-23-6"},
		"AMD before 19h": {cores(t, zen2, 0xc0000108, [4]uint64{}), "AuthenticAMD-23-49-0"},
	} {
		e, err := enforce.Open(t.TempDir(), Knobs{c.host})
		if err != nil {
			t.Fatal(err)
		}
		now := sample.At(time.Now())
		_, err = Knobs{c.host}.Set(e, now, now+1e6, map[string]string{"prefetching": "off"}, "test")
		var lack *KnobError
		if !errors.As(err, &lack) || lack.Name != "prefetching" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	// A register that may not be used gives an error with a remedy.
	for name, err := range map[string]error{"the CPU": os.NewSyscallError("pread", unix.EIO), "the kernel": os.NewSyscallError("open", unix.EPERM)} {
		var lack *KnobError
		if got := msrError("/dev/cpu/0/msr", err); !errors.As(got, &lack) || lack.Remedy == "" || !errors.Is(got, err) {
			t.Errorf("%s: %v", name, got)
		}
	}
	// A missing device stays recognisable in the error (enforce.Files).
	if err := msrError("/dev/cpu/0/msr", os.ErrNotExist); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
