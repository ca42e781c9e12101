package observe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// quantity is a property of a machine that a study may bound.
type quantity struct {
	unit string // "%", "B", "s", "°C" or "" for a plain number
	help string
	read func(m *cpuInterval) (float64, error)
}

// cpuInterval is the CPU time of a machine over a short time.
type cpuInterval struct {
	host         *host.Host
	before, last host.CPUTimes
	span         time.Duration
}

func quantities() map[string]quantity {
	plain := func(read func(h *host.Host) (float64, error)) func(*cpuInterval) (float64, error) {
		return func(m *cpuInterval) (float64, error) { return read(m.host) }
	}
	return map[string]quantity{
		"idle_cpu":      {"%", "share of all CPUs that was idle for a second", (*cpuInterval).idle},
		"steal":         {"%", "share of all CPUs that the hypervisor took in a second", (*cpuInterval).steal},
		"cpus":          {"", "CPUs online", plain(func(h *host.Host) (float64, error) { t, err := h.Topology(); return float64(t.Online.Len()), err })},
		"packages":      {"", "sockets", plain(packagesOf)},
		"numa_nodes":    {"", "memory nodes", plain(func(h *host.Host) (float64, error) { t, err := h.Topology(); return float64(len(t.Memory)), err })},
		"load":          {"", "load average of the last minute", plain(load)},
		"swap_used":     {"B", "swap in use", plain(swapBytes)},
		"mem_available": {"B", "memory available without swapping", plain(func(h *host.Host) (float64, error) { return memBytes(h, "MemAvailable") })},
		"mem_total":     {"B", "memory", plain(func(h *host.Host) (float64, error) { return memBytes(h, "MemTotal") })},
		"temperature":   {"°C", "the hottest sensor", plain(hottest)},
		"ntp_offset":    {"s", "offset of the clock from its reference, from the kernel's clock discipline", plain(func(*host.Host) (float64, error) { return clockOffset() })},
		"cpu_pressure":  {"%", "share of the last 10 s in which a task waited for a CPU", plain(func(h *host.Host) (float64, error) { p, err := h.PSI("cpu"); return p.Some.Avg10, err })},
	}
}

// QuantityNames are the quantities that a study's preconditions may bound, in addition to
// knobs.
func QuantityNames() []string { return slices.Sorted(maps.Keys(quantities())) }

func (m *cpuInterval) share(of func(t host.CPUTime) time.Duration) (float64, error) {
	n := len(m.last.CPUs)
	if n == 0 || m.span <= 0 {
		return 0, errors.New("no time has passed")
	}
	return 100 * (of(m.last.Total) - of(m.before.Total)).Seconds() / (m.span.Seconds() * float64(n)), nil
}

func (m *cpuInterval) idle() (float64, error) {
	s, err := m.share(func(t host.CPUTime) time.Duration { return t.Idle + t.IOWait })
	return min(100, s), err
}

func (m *cpuInterval) steal() (float64, error) {
	return m.share(func(t host.CPUTime) time.Duration { return t.Steal })
}

func packagesOf(h *host.Host) (float64, error) {
	t, err := h.Topology()
	seen := map[int]bool{}
	for _, c := range t.CPUs {
		seen[c.Package] = true
	}
	return float64(len(seen)), err
}

func load(h *host.Host) (float64, error) {
	text, err := h.ReadValue("/proc/loadavg")
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(text, " ")
	return strconv.ParseFloat(first, 64)
}

func memBytes(h *host.Host, key string) (float64, error) {
	text, err := meminfo(h, key)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, " kB"), 64)
	return n * 1024, err
}

func swapBytes(h *host.Host) (float64, error) {
	all, err := memBytes(h, "SwapTotal")
	if err != nil {
		return 0, err
	}
	free, err := memBytes(h, "SwapFree")
	return all - free, err
}

func hottest(h *host.Host) (float64, error) {
	most, found := 0.0, false
	for _, p := range places(h, "/sys/class/thermal/thermal_zone*/temp") {
		if n, err := strconv.ParseFloat(readValue(h, p).text, 64); err == nil {
			most, found = max(most, n/1000), true
		}
	}
	if !found {
		return 0, errors.New("no sensor in /sys/class/thermal")
	}
	return most, nil
}

// clockOffset reads adjtimex(2), which has the offset where a daemon reports it to the
// kernel (ntpd, chronyd, systemd-timesyncd).
func clockOffset() (float64, error) {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return 0, fmt.Errorf("adjtimex: %w", err)
	}
	const timeError, nano = 5, 0x2000 // TIME_ERROR, STA_NANO
	if state == timeError {
		return 0, errors.New("the clock is not synchronised")
	}
	unit := 1e-6
	if t.Status&nano != 0 {
		unit = 1e-9
	}
	return max(float64(t.Offset), -float64(t.Offset)) * unit, nil
}

// bound is "OPERATOR NUMBER UNIT".
type bound struct {
	op    string
	value float64
}

var operators = []string{">=", "<=", "==", ">", "<"}

// units are the units in which a number may be written, for a quantity's own unit.
func units(of string) map[string]float64 {
	switch of {
	case "%":
		return map[string]float64{"%": 1}
	case "B":
		return map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "KB": 1e3, "MB": 1e6, "GB": 1e9}
	case "s":
		return map[string]float64{"s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
	case "°C":
		return map[string]float64{"°C": 1, "C": 1}
	}
	return map[string]float64{"": 1}
}

func parseBound(text string, q quantity) (bound, error) {
	b := bound{op: "=="}
	rest := strings.TrimSpace(text)
	for _, op := range operators {
		if after, ok := strings.CutPrefix(rest, op); ok {
			b.op, rest = op, strings.TrimSpace(after)
			break
		}
	}
	digits := strings.TrimRight(rest, "%°µABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz ")
	known := units(q.unit)
	unit := strings.TrimSpace(rest[len(digits):])
	factor, ok := known[unit]
	n, err := strconv.ParseFloat(digits, 64)
	if err == nil && n == 0 && unit == "" {
		factor, ok = 1, true // zero needs no unit
	}
	if err != nil || !ok {
		return b, fmt.Errorf("want e.g. \">=1%s\": an operator (%s), a number, a unit (%s)", q.unit, strings.Join(operators, " "), strings.Join(slices.Sorted(maps.Keys(known)), " "))
	}
	b.value = n * factor
	return b, nil
}

func (b bound) holds(v float64) bool {
	switch b.op {
	case ">=":
		return v >= b.value
	case "<=":
		return v <= b.value
	case ">":
		return v > b.value
	case "<":
		return v < b.value
	}
	return v == b.value
}

// Problems returns the preconditions of a study that cannot be measured or set.
func Problems(p study.Preconditions) []keyed.Problem {
	var all []keyed.Problem
	for section, wanted := range map[string]map[string]string{"require": p.Require, "prefer": p.Prefer} {
		for name, text := range wanted {
			key := "preconditions." + section + "." + name
			if q, ok := quantities()[name]; ok {
				if _, err := parseBound(text, q); err != nil {
					all = append(all, keyed.Problem{Key: key, Value: strconv.Quote(text), Want: strings.TrimPrefix(err.Error(), "want ")})
				}
				continue
			}
			if _, ok := knobs()[name]; !ok {
				all = append(all, keyed.Problem{Key: key, Value: "unknown quantity", Want: "one of " + strings.Join(append(QuantityNames(), KnobNames()...), ", ")})
			} else if err := CheckKnob(name, text); err != nil {
				all = append(all, keyed.Problem{Key: key, Value: strconv.Quote(text), Want: err.Error()})
			}
		}
	}
	for name, text := range p.Set {
		if err := CheckKnob(name, text); err != nil {
			all = append(all, keyed.Problem{Key: "preconditions.set." + name, Value: strconv.Quote(text), Want: err.Error()})
		}
	}
	slices.SortFunc(all, func(a, b keyed.Problem) int { return strings.Compare(a.Key, b.Key) })
	return all
}

// Unmet is a precondition that a machine does not meet.
type Unmet struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Have string `json:"have"` // the measured value, or why there is none
	// Required is true if nothing may run; otherwise it is only a line in the report.
	Required bool `json:"required"`
}

func (u Unmet) String() string { return fmt.Sprintf("%s is %s, wanted %s", u.Name, u.Have, u.Want) }

// Measure checks a machine against a study's preconditions over the given time.
func Measure(ctx context.Context, h *host.Host, p study.Preconditions, over time.Duration) ([]Unmet, error) {
	m := &cpuInterval{host: h}
	var err error
	if m.before, err = h.CPUTimes(); err != nil {
		return nil, fmt.Errorf("measure preconditions: %w", err)
	}
	from := time.Now()
	if err := wait(ctx, over); err != nil {
		return nil, err
	}
	if m.last, err = h.CPUTimes(); err != nil {
		return nil, fmt.Errorf("measure preconditions: %w", err)
	}
	m.span = time.Since(from)
	var unmet []Unmet
	for _, required := range []bool{true, false} {
		wanted := p.Prefer
		if required {
			wanted = p.Require
		}
		for _, name := range slices.Sorted(maps.Keys(wanted)) {
			if have, ok := m.meets(name, wanted[name]); !ok {
				unmet = append(unmet, Unmet{name, wanted[name], have, required})
			}
		}
	}
	return unmet, nil
}

// meets returns what a quantity or knob is, and whether that is as wanted.
func (m *cpuInterval) meets(name, want string) (have string, ok bool) {
	q, isQuantity := quantities()[name]
	if !isQuantity {
		return m.knob(name, want)
	}
	b, err := parseBound(want, q)
	if err != nil {
		return err.Error(), false
	}
	v, err := q.read(m)
	if err != nil {
		return "unknown: " + err.Error(), false
	}
	return strconv.FormatFloat(v, 'g', 6, 64) + q.unit, b.holds(v)
}

func (m *cpuInterval) knob(name, want string) (have string, ok bool) {
	k := Knobs{m.host}
	changes, err := k.changes(name, want)
	var none *KnobError
	switch {
	case errors.As(err, &none) && none.Err != nil:
		return none.Error(), false
	case errors.As(err, &none):
		return "not available", false
	case err != nil:
		return err.Error(), false
	case len(changes) == 0:
		return want, true
	}
	return changes[0].Writes[0].Old, false
}
