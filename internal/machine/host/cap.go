package host

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// Write is one change of one file: Old is the value before, New the value
// after, both trimmed. File is absolute inside the root. For a file with a line
// per device (io.max, v1's blkio.throttle) it names one line: "…/io.max#8:16".
type Write struct {
	File string `json:"file"`
	Old  string `json:"old"`
	New  string `json:"new"`
	// Inode is that of the file's cgroup if this is below the cgroup that is to
	// be limited; 0 if it is that cgroup.
	Inode uint64 `json:"inode,omitempty"`
}

var (
	// ErrNoLimit means that the cgroup has nothing that could be set: it is the
	// top, or the controller (cpu, for a device io) is not enabled for it; on cgroup2
	// the error is then a *ControllerError.
	ErrNoLimit = errors.New("limit not available for this cgroup")
	// ErrNotLower means that the cgroup already has this limit or a lower one,
	// its own or that of a cgroup above it.
	ErrNotLower = errors.New("not lower than the present limit")
	// ErrTooLow means that the quota would be below the kernel's minimum in the longest period.
	ErrTooLow = errors.New("quota under 1 ms in any period up to 1 s")
)

// The kernel's bounds (kernel/sched/core.c: min_bw_quota_period_us and others,
// in older kernels min_cfs_quota_period), in µs.
const (
	minQuota  = 1_000 // of the period too
	maxPeriod = 1_000_000
	maxQuota  = math.MaxUint64 >> 20 / 1000
)

// bandwidth is a cgroup's CPU limit (scheduler/sched-bwc.rst), in µs; the
// quota is -1 if there is none.
type bandwidth struct {
	quota, period, burst int64
	quotaText, burstText string // as read, for Write.Old
}

func (b bandwidth) limited() bool { return b.quota >= 0 }

// over reports whether b allows a higher rate than l, without rounding.
func (b bandwidth) over(l bandwidth) bool {
	if !b.limited() || !l.limited() {
		return l.limited()
	}
	return b.quota*l.period > l.quota*b.period
}

// CapWrites returns the writes that limit a cgroup, named by its path in the cpu
// controller's hierarchy, to rate CPU-s/s, in the order in which they must be
// made, each after the one before it succeeded. After each of them, and also
// while they are undone in reverse, the kernel accepts the state and it is never
// looser than the one found. dir and inode identify the cgroup that was examined.
//
// A period of 0 keeps the cgroup's own. Both are wishes: if the quota would be below the
// kernel's minimum, 1 ms, or if such steps cannot reach the period, on v1 with quotas in
// cgroups below, the cgroup's own period or the shortest possible one is used.
//
// v1 forbids a child a higher rate than its parent (cgroup2 does not). Quotas
// below that are above the rate are therefore lowered to it, deepest first, and
// are named with their inodes (Write.Inode). As long as the cap lasts the
// kernel refuses to give a cgroup below, a new one too, a quota above it:
// EINVAL. A burst that is longer than the new quota is set to 0.
//
// Errors: ErrNoLimit, ErrNotLower, ErrTooLow, ErrGone; ErrCrowded if more than mostLowered cgroups and writes
// would be below.
func (h *Host) CapWrites(cpuPath string, rate float64, period time.Duration) (dir string, inode uint64, w []Write, err error) {
	defer wrap(&err, "cap %s", cpuPath)
	p := path.Clean("/" + cpuPath)
	wish := period.Microseconds()
	switch {
	case !(rate > 0) || rate > maxQuota/maxPeriod:
		return "", 0, nil, fmt.Errorf("bad rate %v CPU-s/s", rate)
	case period != 0 && (wish < minQuota || wish > maxPeriod):
		return "", 0, nil, fmt.Errorf("bad period %v: want 1ms to 1s", period)
	}
	hier, ok := h.layout.CPU()
	if !ok || p == "/" {
		return "", 0, nil, ErrNoLimit
	}
	t, err := h.tree(hier)
	if err != nil {
		return "", 0, nil, err
	}
	dir = path.Join(t.dir, p)
	if inode, err = h.Inode(dir); err != nil {
		return "", 0, nil, orGone(err)
	}
	own, err := h.readBandwidth(hier, dir)
	if errors.Is(err, ErrNoLimit) && hier == sample.Unified {
		err = cmp.Or(h.controllerError("cpu", p), err)
	}
	if err != nil {
		return "", 0, nil, err
	}
	effective, err := h.lowest(hier, t.dir, p, own)
	if err != nil {
		return "", 0, nil, err
	}
	if wish == 0 {
		wish = own.period
	}
	shortest := int64(math.Ceil(minQuota/rate - 1e-6))
	if shortest > maxPeriod {
		return "", 0, nil, fmt.Errorf("%v CPU-s/s: %w", rate, ErrTooLow)
	}
	for _, period := range [...]int64{wish, own.period, max(shortest, minQuota)} {
		limit := bandwidth{quota: int64(math.Floor(rate*float64(period) + 1e-6)), period: period, burst: own.burst}
		if limit.quota < minQuota {
			continue
		}
		if !effective.over(limit) {
			return "", 0, nil, ErrNotLower
		}
		var below []Write
		floor := bandwidth{period: 1} // the highest rate below that stays
		if hier == sample.V1CPU {
			room := mostLowered
			if below, floor, err = h.lowerBelow(dir, limit, &room); err != nil {
				return "", 0, nil, err
			}
		}
		if steps, ok := own.steps(hier, dir, limit, floor); ok {
			return dir, inode, append(below, steps...), nil
		}
	}
	return "", 0, nil, errors.New("no order of writes that the kernel accepts")
}

// mostLowered bounds the cgroups below a cgroup that are read, and the writes there: its task makes these cgroups,
// and each write is verified, journalled twice, and undone, in the agent's loop. All of that takes longer
// for a long path, so that a cgroup counts once more for each usualPath bytes of its path.
const mostLowered, usualPath = 8 << 10, 256

// take takes n of the room that there is.
func take(room *int, n int) error {
	if *room -= n; *room < 0 {
		return fmt.Errorf("lower the quotas below: %w", ErrCrowded)
	}
	return nil
}

// lowerBelow returns the writes that lower every quota below dir to limit's
// rate at most, and the highest rate that remains there; ErrCrowded if there is not enough room.
func (h *Host) lowerBelow(dir string, limit bandwidth, room *int) (w []Write, highest bandwidth, err error) {
	highest = bandwidth{period: 1}
	entries, err := readDir(h.Path(dir))
	if vanished(err) {
		return nil, highest, nil
	}
	if err != nil {
		return nil, highest, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		child := path.Join(dir, e.Name())
		if err := take(room, 1+len(child)/usualPath); err != nil {
			return nil, highest, err
		}
		b, err := h.readBandwidth(sample.V1CPU, child)
		if errors.Is(err, ErrNoLimit) || vanished(err) {
			continue
		}
		if err != nil {
			return nil, highest, err
		}
		target := limit // the limit for cgroups below the child
		if b.limited() {
			target = b
			if b.over(limit) {
				target = b.within(limit)
			}
		}
		below, floor, err := h.lowerBelow(child, target, room)
		if err != nil {
			return nil, highest, err
		}
		w = append(w, below...)
		if b.limited() && b.over(limit) {
			steps, ok := b.steps(sample.V1CPU, child, target, floor)
			if !ok {
				return nil, highest, fmt.Errorf("no order of writes for %s", child)
			}
			if err := take(room, len(steps)); err != nil {
				return nil, highest, err
			}
			inode, err := h.Inode(child)
			if vanished(err) {
				continue
			}
			if err != nil {
				return nil, highest, err
			}
			for i := range steps {
				steps[i].Inode = inode
			}
			w = append(w, steps...)
		}
		if b.limited() {
			floor = target
		}
		if floor.over(highest) {
			highest = floor
		}
	}
	return w, highest, nil
}

// within returns b lowered to limit's rate, in its own period. If that makes
// the quota too small, it returns the least quota with the shortest period for
// it. The rate is rounded down.
func (b bandwidth) within(limit bandwidth) bandwidth {
	quota, period := limit.quota*b.period/limit.period, b.period
	if quota < minQuota {
		quota, period = minQuota, (minQuota*limit.period+limit.quota-1)/limit.quota
	}
	return bandwidth{quota: quota, period: period, burst: b.burst}
}

// steps returns the writes that change b, the limit in dir, to a lower one. ok is
// false if on v1, where period and quota are written separately, every order passes
// through a rate above b's or below floor's, the highest rate of cgroups below dir.
func (b bandwidth) steps(hier sample.Hierarchy, dir string, to, floor bandwidth) (w []Write, ok bool) {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	if b.burst > to.quota {
		file := "/cpu.max.burst"
		if hier == sample.V1CPU {
			file = "/cpu.cfs_burst_us"
		}
		w = append(w, Write{File: dir + file, Old: b.burstText, New: "0"})
	}
	if hier == sample.Unified {
		return append(w, Write{File: dir + "/cpu.max", Old: b.quotaText, New: number(to.quota) + " " + number(to.period)}), true
	}
	quota := Write{File: dir + "/cpu.cfs_quota_us", Old: b.quotaText, New: number(to.quota)}
	period := Write{File: dir + "/cpu.cfs_period_us", Old: number(b.period), New: number(to.period)}
	between := func(quota, period int64) bool {
		m := bandwidth{quota: quota, period: period}
		return !m.over(b) && !floor.over(m)
	}
	switch {
	case b.period == to.period:
		w = append(w, quota)
	case b.quota == to.quota:
		w = append(w, period)
	case !b.limited() || between(b.quota, to.period):
		w = append(w, period, quota)
	case between(to.quota, b.period):
		w = append(w, quota, period)
	default:
		return nil, false
	}
	return w, true
}

// readBandwidth reads cpu.cfs_quota_us, cpu.cfs_period_us and cpu.cfs_burst_us
// (v1) or cpu.max and cpu.max.burst. Bursts came with 5.14.
func (h *Host) readBandwidth(hier sample.Hierarchy, dir string) (b bandwidth, err error) {
	names := [...]string{"cpu.max", "cpu.max.burst"}
	if hier == sample.V1CPU {
		names = [...]string{"cpu.cfs_quota_us", "cpu.cfs_burst_us"}
	}
	if b.quotaText, err = h.ReadValue(dir + "/" + names[0]); err == nil {
		text := b.quotaText
		if hier == sample.V1CPU {
			var period string
			if period, err = h.ReadValue(dir + "/cpu.cfs_period_us"); err == nil {
				text += " " + period
			}
		}
		if err == nil {
			b.quota, b.period, err = parseBandwidth(text)
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return b, fmt.Errorf("%w: %w", ErrNoLimit, err)
	}
	if err != nil {
		return b, err
	}
	b.burstText, err = h.ReadValue(dir + "/" + names[1])
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	burst, ok := parseUint([]byte(b.burstText))
	if !ok || burst > maxQuota {
		return b, fmt.Errorf("parse %s/%s: bad value %q", dir, names[1], b.burstText)
	}
	b.burst = int64(burst)
	return b, nil
}

// parseBandwidth reads "quota period", the quota -1 (v1) or max (cgroup2) if
// there is none.
func parseBandwidth(text string) (quota, period int64, err error) {
	q, p, _ := strings.Cut(text, " ")
	n, ok := parseUint([]byte(q))
	if q == "max" || q == "-1" {
		quota, ok = -1, true
	} else {
		quota = int64(n)
	}
	us, periodOK := parseUint([]byte(p))
	if !ok || !periodOK || n > maxQuota || us == 0 || us > maxPeriod {
		return 0, 0, fmt.Errorf("parse CPU limit: bad value %q", text)
	}
	return quota, int64(us), nil
}
