package observe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// The knob "prefetching" is not a text file. It is some bits of a register of each core.
// The kernel's msr driver provides the register as 8 bytes at the offset that is the
// register's number (msr(4)). A set bit switches one prefetcher off.
//
//   - Intel, family 6 but Core 2: MISC_FEATURE_CONTROL 0x1A4, bits 0 to 3: the L2
//     hardware prefetcher, its adjacent line, the DCU's, and the DCU's by
//     instruction pointer (Software Developer's Manual 4, table "MSRs in …").
//   - AMD from family 19h on, where the CPU has it: Prefetch Control
//     MSRC000_0108, bits 0 L1 stream, 1 L1 stride, 2 L1 region, 3 L2 stream, 5
//     up/down (Processor Programming Reference of family 19h model 11h).
//
// Each is one register for all threads of a core. Its other bits are not changed.
const (
	msrFiles  = "/dev/cpu/[0-9]*/msr"
	prefetch  = "prefetching"
	intelMSR  = 0x1a4
	intelBits = 0xf
	amdMSR    = 0xc0000108
	amdBits   = 0x2f
)

// register is the register that switches a CPU's prefetchers off.
type register struct {
	number int64
	bits   uint64
}

// prefetchers finds the register of the machine's CPUs by their vendor and
// family.
func prefetchers(h *host.Host) (register, error) {
	p, err := h.Platform()
	if err != nil {
		return register{}, err
	}
	f := strings.Split(strings.TrimSuffix(string(p), "-vm"), "-")
	if len(f) == 4 && !strings.Contains(string(p), "+") {
		family, _ := strconv.Atoi(f[1])
		model, _ := strconv.Atoi(f[2])
		core2 := model == 0x0f || model == 0x16 || model == 0x17 || model == 0x1d
		switch {
		case f[0] == "GenuineIntel" && family == 6 && !core2:
			return register{intelMSR, intelBits}, nil
		case f[0] == "AuthenticAMD" && family >= 0x19:
			return register{amdMSR, amdBits}, nil
		}
	}
	return register{}, &KnobError{Name: prefetch, Reason: "no documented prefetch control register for CPU " + string(p)}
}

func isMSR(file string) bool {
	ok, err := path.Match(msrFiles, file)
	return ok && err == nil
}

// value returns the register's bits for on or off, in the format of ReadValue.
func (r register) value(want string) string {
	if want == "off" {
		return bits(r.bits)
	}
	return bits(0)
}

func bits(v uint64) string { return fmt.Sprintf("%#x", v) }

// read returns the bits that switch prefetchers off.
func (r register) read(h *host.Host, file string) (string, error) {
	f, err := os.Open(h.Path(file))
	if err != nil {
		return "", msrError(file, err)
	}
	defer f.Close()
	v, err := r.all(f)
	if err != nil {
		return "", msrError(file, err)
	}
	return bits(v & r.bits), nil
}

func (r register) all(f *os.File) (uint64, error) {
	var b [8]byte
	if _, err := f.ReadAt(b[:], r.number); err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}

// write changes these bits only.
func (r register) write(h *host.Host, file, value string) error {
	v, err := strconv.ParseUint(value, 0, 64)
	if err != nil || v&^r.bits != 0 {
		return fmt.Errorf("write %s: value %q has bits outside %#x", file, value, r.bits)
	}
	f, err := os.OpenFile(h.Path(file), os.O_RDWR, 0)
	if err != nil {
		return msrError(file, err)
	}
	old, err := r.all(f)
	if err == nil {
		var b [8]byte
		binary.LittleEndian.PutUint64(b[:], old&^r.bits|v)
		_, err = f.WriteAt(b[:], r.number)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return msrError(file, err)
	}
	return nil
}

// msrError explains the driver's errors. The error for a missing file stays recognisable
// (enforce.Files).
func msrError(file string, err error) error {
	k := &KnobError{Name: prefetch, Err: err}
	switch {
	case errors.Is(err, unix.EIO):
		k.Reason, k.Remedy = "the CPU or the hypervisor refuses access to the prefetch register at "+file, "use bare metal or another CPU"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		k.Reason, k.Remedy = "no permission for "+file, "run as root with CAP_SYS_RAWIO, without kernel lockdown, and with msr.allow_writes=on"
	default:
		return fmt.Errorf("use %s: %w", file, err)
	}
	return k
}

// coreFiles are the registers' files, one for each core. The threads of a core share the
// register, so a change through one thread would look like a foreign change at the other.
// Where no topology is readable every CPU counts as a core.
func coreFiles(h *host.Host, files []string) []string {
	t, err := h.Topology()
	if err != nil {
		return files
	}
	second := map[int]bool{} // the threads of a core except its first
	for _, c := range t.CPUs {
		if ns := c.Siblings.Numbers(); len(ns) > 0 && ns[0] != c.ID {
			second[c.ID] = true
		}
	}
	var first []string
	for _, file := range files {
		if n, err := strconv.Atoi(path.Base(path.Dir(file))); err != nil || !second[n] {
			first = append(first, file)
		}
	}
	return first
}

// verifyAllCPUs checks that every CPU's register has the value that was set through its core's
// first thread.
func (k Knobs) verifyAllCPUs(name, want string) error {
	if name != prefetch {
		return nil
	}
	r, err := prefetchers(k.Host)
	if err != nil {
		return err
	}
	for _, file := range places(k.Host, msrFiles) {
		if v, err := r.read(k.Host, file); err != nil || v != r.value(want) {
			return errors.Join(err, &KnobError{Name: prefetch, Reason: fmt.Sprintf("the setting does not apply to all CPUs: %s reads %s after %s was set", file, v, r.value(want)),
				Remedy: "offline the second thread of each core"})
		}
	}
	return nil
}

// prefetching is the text for a description: on, off, or the bits of the prefetchers that
// are off.
func prefetching(h *host.Host) (string, error) {
	r, err := prefetchers(h)
	if err != nil {
		return "", err
	}
	files := places(h, msrFiles)
	if len(files) == 0 {
		return "", fmt.Errorf("no file matches %s; is the module msr loaded?", msrFiles)
	}
	text := ""
	for _, file := range files {
		v, err := r.read(h, file)
		switch {
		case err != nil:
			return "", err
		case text == "":
			text = v
		case text != v:
			return "differs between CPUs", nil
		}
	}
	switch text {
	case r.value("on"):
		return "on", nil
	case r.value("off"):
		return "off", nil
	}
	return "off in part: " + text, nil
}
