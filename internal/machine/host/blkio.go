package host

import (
	"fmt"
	"path"
	"strconv"
	"strings"
)

// blkioFiles are v1's limits of I/O in the order of IOLimit's fields, each with
// a line per device that has one: "8:16 1048576".
var blkioFiles = [4]string{"blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device",
	"blkio.throttle.read_iops_device", "blkio.throttle.write_iops_device"}

// noBlkio is the value that removes a v1 limit. The file then has no line for it.
const noBlkio = "0"

// BlkioScope says which I/O of a cgroup v1's limits apply to. Only cgroup2 knows which
// cgroup wrote to memory what the kernel writes back (cgroup-v2.rst, "Writeback").
const BlkioScope = "reads, direct writes and synchronous writes (O_SYNC, fsync), not later writeback by the kernel"

// UnlimitedIO says which I/O of a cgroup the writes of IOWrites do not limit, "" if there is none.
func UnlimitedIO(w []Write) string {
	for _, one := range w {
		if strings.HasPrefix(path.Base(one.File), "blkio.") {
			return "v1 limits only " + BlkioScope
		}
	}
	return ""
}

// readBlkio reads a cgroup's own limit for a device.
func (h *Host) readBlkio(dir string, dev Device) (l IOLimit, err error) {
	for i, field := range [...]*uint64{&l.Rbps, &l.Wbps, &l.Riops, &l.Wiops} {
		file := dir + "/" + blkioFiles[i]
		text, err := h.ReadValue(file + "#" + dev.String())
		if err != nil {
			return l, err
		}
		if *field, err = strconv.ParseUint(text, 10, 64); err != nil {
			return l, fmt.Errorf("parse %s: bad value %q for %s", file, text, dev)
		}
	}
	return l, nil
}

// blkioWrites returns the writes that change the limit from at to next.
func (h *Host) blkioWrites(p string, at ioLimited, dev Device, next IOLimit) (w []Write, err error) {
	mount, _ := h.layout.IO()
	err = h.walkAll(mount, p, mostRead, func(w *walker, v visited) error {
		if v.depth == 0 {
			return nil
		}
		procs, err := v.read("cgroup.procs")
		if err != nil && !vanished(err) {
			return err
		}
		if len(strings.TrimSpace(string(procs))) > 0 {
			return fmt.Errorf("v1 limits each cgroup separately, and %s below it has processes too", w.at())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	is, want := at.limit.fields(), next.fields()
	for i, file := range blkioFiles {
		if want[i] != is[i] {
			w = append(w, Write{File: at.dir + "/" + file + "#" + dev.String(),
				Old: strconv.FormatUint(is[i], 10), New: strconv.FormatUint(want[i], 10)})
		}
	}
	return w, nil
}

// IOPlace finds the cgroup whose limits apply to the I/O of this one's processes and
// of no others. It returns its path in the hierarchy with the io controller, which on
// v1 (blkio) may differ from its own, see Places. Error: ErrNoLimit, with the reason.
func (c *Cgroup) IOPlace() (place string, err error) {
	defer wrap(&err, "find where the I/O of %s is limited", c.path)
	const name = "blkio"
	mount, v1 := c.h.layout.IO()
	switch {
	case mount == "":
		return "", fmt.Errorf("%w: no hierarchy has the io controller", ErrNoLimit)
	case mount == c.tree.dir:
		return c.path, nil
	case !v1:
		return "", fmt.Errorf("%w: the cgroup is in v1, the io controller in cgroup2", ErrNoLimit)
	}
	pids, err := c.Members()
	if err != nil {
		return "", err
	}
	members := c.members(pids, mostPlaced)
	if len(members) == 0 {
		return "", fmt.Errorf("%w: it has no processes, so its place in blkio is unknown", ErrNoLimit)
	}
	place, reason := c.commonPlace(name, members)
	if reason == "" && place != "/" {
		place, reason = c.exclusivePlace(name, place, pids, members, mostPlaced)
	}
	switch {
	case reason != "":
		return "", fmt.Errorf("%w: %s", ErrNoLimit, reason)
	case place == "/" || place == "":
		return "", fmt.Errorf("%w: its processes are at the top of blkio", ErrNoLimit)
	}
	return place, nil
}
