package host

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Device is a block device by its numbers; it prints as the kernel writes it.
type Device struct{ Major, Minor uint32 }

func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// IOLimit is how much I/O to one device io.max lets through, per second; 0 is
// no limit.
type IOLimit struct {
	Rbps, Wbps   uint64 // bytes
	Riops, Wiops uint64 // operations
}

func (l IOLimit) fields() [4]uint64 { return [4]uint64{l.Rbps, l.Wbps, l.Riops, l.Wiops} }

// ioFields are the names in io.max, in the order in which the kernel writes
// them (block/blk-throttle.c, tg_prfill_limit).
var ioFields = [4]string{"rbps", "wbps", "riops", "wiops"}

// String is the limit as io.max has it behind the device.
func (l IOLimit) String() string {
	var b strings.Builder
	for i, n := range l.fields() {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(ioFields[i])
		b.WriteByte('=')
		if n == 0 {
			b.WriteString("max")
		} else {
			b.WriteString(strconv.FormatUint(n, 10))
		}
	}
	return b.String()
}

// parseIOLimit reads "rbps=2097152 wbps=max riops=max wiops=120"; fields that
// are not there are not limited.
func parseIOLimit(text string) (IOLimit, error) {
	var l IOLimit
	at := map[string]*uint64{"rbps": &l.Rbps, "wbps": &l.Wbps, "riops": &l.Riops, "wiops": &l.Wiops}
	for field := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(field, "=")
		p := at[name]
		if p == nil {
			return IOLimit{}, fmt.Errorf("parse io.max: unknown field %q", field)
		}
		if value == "max" {
			continue
		}
		n, err := strconv.ParseUint(value, 10, 64)
		if err != nil || n == 0 {
			return IOLimit{}, fmt.Errorf("parse io.max: bad field %q", field)
		}
		*p = n
	}
	return l, nil
}

// splitDevice takes a name of Write.File apart: the file, and the device whose
// line is meant, "" for the whole file. No other file has a '#' in its name,
// as directories may.
func splitDevice(name string) (file, device string) {
	if base, device, ok := strings.Cut(path.Base(name), "#"); ok && base == "io.max" {
		return path.Join(path.Dir(name), base), device
	}
	return name, ""
}

// ioMaxOf returns what the text of io.max says of a device. The kernel leaves
// out those without a limit.
func ioMaxOf(text, device string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), device+" "); ok {
			return rest
		}
	}
	return IOLimit{}.String()
}

// IOLimit returns a cgroup's own limit for a device (cgroup-v2.rst, "IO
// Interface Files"), by its path in cgroup2. Those of cgroups above hold too.
// Errors: ErrNoLimit, ErrGone.
func (h *Host) IOLimit(unifiedPath string, dev Device) (IOLimit, error) {
	_, _, text, err := h.readIOMax(path.Clean("/"+unifiedPath), dev)
	if err != nil {
		return IOLimit{}, fmt.Errorf("read I/O limit of %s: %w", unifiedPath, err)
	}
	return parseIOLimit(text)
}

// IOMaxWrites lists the write that limits a cgroup, named by its path in
// cgroup2, for one whole block device; a partition has no limits of its own
// and is refused. Fields of the limit that are 0 stay as they are, the others
// must not be higher than they are, and one must be lower. dir and inode tell
// which cgroup it was that was looked at. v1's blkio is not supported.
//
// Errors: ErrNoLimit, ErrNotLower, ErrGone.
func (h *Host) IOMaxWrites(unifiedPath string, dev Device, limit IOLimit) (dir string, inode uint64, w []Write, err error) {
	dir, inode, w, err = h.ioMaxWrites(path.Clean("/"+unifiedPath), dev, limit)
	if err != nil {
		return "", 0, nil, fmt.Errorf("limit I/O of %s to %s: %w", unifiedPath, dev, err)
	}
	return dir, inode, w, nil
}

func (h *Host) ioMaxWrites(p string, dev Device, limit IOLimit) (dir string, inode uint64, w []Write, err error) {
	if slices.ContainsFunc([]uint64{limit.Riops, limit.Wiops}, func(n uint64) bool { return n > math.MaxUint32 }) {
		return "", 0, nil, fmt.Errorf("bad limit %s: operations go up to %d a second", limit, uint32(math.MaxUint32))
	}
	if err := h.wholeDevice(dev); err != nil {
		return "", 0, nil, err
	}
	dir, inode, text, err := h.readIOMax(p, dev)
	if err != nil {
		return "", 0, nil, err
	}
	old, err := parseIOLimit(text)
	if err != nil {
		return "", 0, nil, err
	}
	next, is, lower := limit, old.fields(), false
	for i, field := range [...]*uint64{&next.Rbps, &next.Wbps, &next.Riops, &next.Wiops} {
		switch wish, present := *field, is[i]; {
		case wish == 0:
			*field = present
		case present != 0 && wish > present:
			return "", 0, nil, fmt.Errorf("%s %d: %w, %d", ioFields[i], wish, ErrNotLower, present)
		case wish != present:
			lower = true
		}
	}
	if !lower {
		return "", 0, nil, ErrNotLower
	}
	return dir, inode, []Write{{File: dir + "/io.max#" + dev.String(), Old: text, New: next.String()}}, nil
}

// readIOMax finds a cgroup and reads its line for a device.
func (h *Host) readIOMax(p string, dev Device) (dir string, inode uint64, line string, err error) {
	t, ok := h.trees[""]
	if !ok || p == "/" || !slices.Contains(h.layout.Controllers, "io") {
		return "", 0, "", ErrNoLimit
	}
	dir = path.Join(t.dir, p)
	if inode, err = h.Inode(dir); err != nil {
		return "", 0, "", orGone(err)
	}
	line, err = h.ReadValue(dir + "/io.max#" + dev.String())
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", ErrNoLimit, err)
	}
	return dir, inode, line, err
}

// wholeDevice makes sure that limits can be set for a device: the kernel
// answers ENODEV for others, only when they are written.
func (h *Host) wholeDevice(dev Device) error {
	dir := "/sys/dev/block/" + dev.String()
	if _, err := os.Stat(h.Path(dir)); err != nil {
		return fmt.Errorf("find block device: %w", err)
	}
	if _, err := os.Stat(h.Path(dir + "/partition")); err == nil {
		return errors.New("it is a partition: limit the device that it is on")
	}
	return nil
}
