package host

import (
	"cmp"
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

// ErrNoDevice means that the machine has no such block device, or has it no more.
var ErrNoDevice = errors.New("no such block device")

// Device is a block device by its numbers; it prints as the kernel writes it.
type Device struct{ Major, Minor uint32 }

func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// IOLimit limits the I/O of a cgroup to one device, per second; 0 is no limit.
type IOLimit struct {
	Rbps, Wbps   uint64 // bytes
	Riops, Wiops uint64 // operations
}

func (l IOLimit) fields() [4]uint64 { return [4]uint64{l.Rbps, l.Wbps, l.Riops, l.Wiops} }

// ioFields are the names in io.max, in the order in which the kernel writes
// them (block/blk-throttle.c, tg_prfill_limit).
var ioFields = [4]string{"rbps", "wbps", "riops", "wiops"}

// String returns the limit as io.max has it after the device.
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

// parseIOLimit reads "rbps=2097152 wbps=max riops=max wiops=120"; missing
// fields are not limited.
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

// splitDevice splits a Write.File into the file and the device whose line it
// names, "" for the whole file. It splits names of these files only, since
// directories may have a '#' in their names.
func splitDevice(name string) (file, device string) {
	if base, device, ok := strings.Cut(path.Base(name), "#"); ok && (base == "io.max" || slices.Contains(blkioFiles[:], base)) {
		return path.Join(path.Dir(name), base), device
	}
	return name, ""
}

// ofDevice returns the value for a device in the text of such a file. The
// kernel omits devices without a limit.
func ofDevice(file, text, device string) string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), device+" "); ok {
			return rest
		}
	}
	if path.Base(file) != "io.max" {
		return noBlkio
	}
	return IOLimit{}.String()
}

// IO returns the mount of the hierarchy that has the io controller, "" if none
// has it, and whether that is v1's blkio.
func (l Layout) IO() (mount string, v1 bool) {
	if dir, ok := l.V1["blkio"]; ok {
		return dir, true
	}
	if slices.Contains(l.Controllers, "io") {
		return l.Unified, false
	}
	return "", false
}

// IOLimit returns a cgroup's own limit for a device, by its path in the
// hierarchy with the io controller (Cgroup.IOPlace). On cgroup2 the limits of
// cgroups above apply too, on v1 they do not. Errors: ErrNoLimit, ErrGone.
func (h *Host) IOLimit(ioPath string, dev Device) (IOLimit, error) {
	at, err := h.readIO(path.Clean("/"+ioPath), dev)
	if err != nil {
		return IOLimit{}, fmt.Errorf("read I/O limit of %s: %w", ioPath, err)
	}
	return at.limit, nil
}

// IOWrites returns the writes that limit a cgroup, named by its path in the
// hierarchy with the io controller, for one whole block device. A partition has
// no limits of its own and is refused. Fields of the limit that are 0 stay as
// they are. The others must not be higher than the present ones, and one must
// be lower. dir and inode identify the cgroup that was examined.
//
// On cgroup2 it is one write to io.max (cgroup-v2.rst, "IO Interface Files"), on
// v1 one to each of the four files of blkio.throttle that change
// (cgroup-v1/blkio-controller.rst). What each limits differs: see BlkioScope. v1
// limits every cgroup separately, whatever is above it (block/blk-throttle.c,
// throtl_pd_init), so there a cgroup with processes in cgroups below is refused.
//
// Errors: ErrNoLimit, ErrNotLower, ErrNoDevice, ErrGone.
func (h *Host) IOWrites(ioPath string, dev Device, limit IOLimit) (dir string, inode uint64, w []Write, err error) {
	at, w, err := h.ioWrites(path.Clean("/"+ioPath), dev, limit)
	if err != nil {
		return "", 0, nil, fmt.Errorf("limit I/O of %s to %s: %w", ioPath, dev, err)
	}
	return at.dir, at.inode, w, nil
}

// ioLimited is a cgroup with its own limit for a device.
type ioLimited struct {
	dir   string
	inode uint64
	v1    bool
	limit IOLimit
	text  string // in io.max
}

func (h *Host) ioWrites(p string, dev Device, limit IOLimit) (at ioLimited, w []Write, err error) {
	if slices.ContainsFunc([]uint64{limit.Riops, limit.Wiops}, func(n uint64) bool { return n > math.MaxUint32 }) {
		return at, nil, fmt.Errorf("bad limit %s: want at most %d operations per second", limit, uint32(math.MaxUint32))
	}
	if err := h.wholeDevice(dev); err != nil {
		return at, nil, err
	}
	if at, err = h.readIO(p, dev); err != nil {
		return at, nil, err
	}
	next, is, lower := limit, at.limit.fields(), false
	for i, field := range [...]*uint64{&next.Rbps, &next.Wbps, &next.Riops, &next.Wiops} {
		switch wish, present := *field, is[i]; {
		case wish == 0:
			*field = present
		case present != 0 && wish > present:
			return at, nil, fmt.Errorf("%s %d: %w, %d", ioFields[i], wish, ErrNotLower, present)
		case wish != present:
			lower = true
		}
	}
	if !lower {
		return at, nil, ErrNotLower
	}
	if !at.v1 {
		return at, []Write{{File: at.dir + "/io.max#" + dev.String(), Old: at.text, New: next.String()}}, nil
	}
	w, err = h.blkioWrites(p, at, dev, next)
	return at, w, err
}

// readIO finds a cgroup and reads its limit for a device.
func (h *Host) readIO(p string, dev Device) (at ioLimited, err error) {
	mount, v1 := h.layout.IO()
	if mount == "" || p == "/" {
		return at, ErrNoLimit
	}
	at = ioLimited{dir: path.Join(mount, p), v1: v1}
	if at.inode, err = h.Inode(at.dir); err != nil {
		return at, orGone(err)
	}
	if v1 {
		at.limit, err = h.readBlkio(at.dir, dev)
	} else if at.text, err = h.ReadValue(at.dir + "/io.max#" + dev.String()); err == nil {
		at.limit, err = parseIOLimit(at.text)
	}
	switch {
	case !errors.Is(err, fs.ErrNotExist):
		return at, err
	case v1:
		return at, fmt.Errorf("%w: use a kernel with CONFIG_BLK_DEV_THROTTLING: %w", ErrNoLimit, err)
	}
	return at, cmp.Or(h.controllerError("io", p), fmt.Errorf("%w: %w", ErrNoLimit, err))
}

// wholeDevice makes sure that limits can be set for a device: for others the
// kernel returns ENODEV, but only when the limit is written.
func (h *Host) wholeDevice(dev Device) error {
	dir := "/sys/dev/block/" + dev.String()
	if _, err := os.Stat(h.Path(dir)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("find block device: %w", ErrNoDevice)
	} else if err != nil {
		return fmt.Errorf("find block device: %w", err)
	}
	if _, err := os.Stat(h.Path(dir + "/partition")); err == nil {
		return errors.New("it is a partition: limit its whole device")
	}
	return nil
}
