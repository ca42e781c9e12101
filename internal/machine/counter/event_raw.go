package counter

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/host"
)

// pmus are the PMUs of the kernel (ABI/testing/sysfs-bus-event_source-devices-format and
// -events).
const pmus = "/sys/bus/event_source/devices/"

// pmuEvent finds an event in perf's syntax: the PMU's own name for it ("cpu/cache-misses/"),
// or the terms of its registers ("cpu/event=0x24,umask=0x3f/").
func pmuEvent(h *host.Host, name string) (event, error) {
	pmu, text, _ := strings.Cut(strings.TrimSuffix(name, "/"), "/")
	unknown := func(why string) (event, error) {
		return event{}, fmt.Errorf("look up event %q: %w: %s; want PMU/EVENT/ or PMU/TERM=VALUE,…/ as for perf", name, ErrUnknownEvent, why)
	}
	if pmu == "" || text == "" || strings.ContainsAny(pmu, "./") || strings.ContainsAny(text, "/") {
		return unknown("it is not of that form")
	}
	kind, err := h.ReadValue(pmus + pmu + "/type")
	if errors.Is(err, fs.ErrNotExist) {
		return event{}, &NotSupportedError{What: "event " + name, Reason: "this machine has no PMU " + pmu, Remedy: "use bare metal, or a guest with a virtual PMU", Err: err}
	}
	if err != nil {
		return event{}, fmt.Errorf("look up event %q: %w", name, err)
	}
	number, err := strconv.ParseUint(kind, 10, 32)
	if err != nil {
		return unknown("type " + kind)
	}
	if cpus, err := h.ReadValue(pmus + pmu + "/cpumask"); err == nil {
		return event{}, &NotSupportedError{What: "event " + name, Reason: "PMU " + pmu + " counts for whole caches or packages (CPUs " + cpus + "), not for tasks"}
	}
	if own, err := h.ReadValue(pmus + pmu + "/events/" + text); err == nil {
		text = own
	}
	e := event{name, uint32(number), 0}
	for term := range strings.SplitSeq(text, ",") {
		key, value, given := strings.Cut(term, "=")
		if !given {
			value = "1"
		}
		v, err := strconv.ParseUint(value, 0, 64)
		if err != nil {
			return unknown("term " + term)
		}
		if key == "config" {
			e.config |= v
			continue
		}
		if strings.ContainsAny(key, "./") {
			return unknown("term " + term)
		}
		layout, err := h.ReadValue(pmus + pmu + "/format/" + key)
		if err != nil {
			return unknown("PMU " + pmu + " has no term " + key)
		}
		bits, ok := spread(layout, v)
		if !ok {
			return unknown("term " + term + " does not fit " + layout)
		}
		e.config |= bits
	}
	return e, nil
}

// spread puts the bits of a value where a term's layout says, the lowest first:
// "config:0-7,32-35". Only config is supported, and a value must fit.
func spread(layout string, v uint64) (config uint64, ok bool) {
	places, ok := strings.CutPrefix(layout, "config:")
	if !ok {
		return 0, false
	}
	for span := range strings.SplitSeq(places, ",") {
		first, last, several := strings.Cut(span, "-")
		if !several {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 6)
		to, err2 := strconv.ParseUint(last, 10, 6)
		if err != nil || err2 != nil || to < from {
			return 0, false
		}
		width := to - from + 1
		config |= v & (1<<width - 1) << from
		v >>= width
	}
	return config, v == 0
}

const memoryReadsName = "memory-reads"

// haswellOn are the models of Intel's family 6 whose core PMU counts l2-misses and
// memory-reads by the codes below: Haswell, Broadwell, Skylake, Cascade Lake, Ice Lake,
// Tiger Lake, Sapphire, Emerald and Granite Rapids (perf's mapfile.csv).
var haswellOn = []int{0x3c, 0x45, 0x46, 0x3f, 0x3d, 0x47, 0x4f, 0x56, 0x4e, 0x5e, 0x8e, 0x9e, 0xa5, 0xa6, 0x55, 0x7d, 0x7e, 0x6a, 0x6c, 0xa7, 0x8c, 0x8d, 0x8f, 0xcf, 0xad, 0xae}

// vendorEvent is an event that the kernel has no generic name for: misses of the L2 cache,
// and loads that memory had to answer. The codes are those of perf's tables
// (tools/perf/pmu-events/arch): Intel L2_RQSTS.MISS and MEM_LOAD_RETIRED.L3_MISS, AMD
// ls_dmnd_fills_from_sys (local and remote memory), Arm's L2D_CACHE_REFILL and
// LL_CACHE_MISS_RD.
func vendorEvent(platform, name string) (event, bool) {
	codes := map[string]uint64{}
	f := strings.Split(platform, "-")
	switch {
	case strings.Contains(platform, "+") || len(f) < 4: // several types of CPUs
	case f[0] == "GenuineIntel" && f[1] == "6":
		if model, err := strconv.Atoi(f[2]); err == nil && slices.Contains(haswellOn, model) {
			codes = map[string]uint64{l2MissesName: 0x3f24, memoryReadsName: 0x20d1}
		}
	case f[0] == "AuthenticAMD":
		if family, err := strconv.Atoi(f[1]); err == nil && family >= 0x17 {
			codes = map[string]uint64{memoryReadsName: 0x4843}
		}
	case f[0] == "arm":
		codes = map[string]uint64{l2MissesName: 0x17, memoryReadsName: 0x37}
	}
	code, ok := codes[name]
	return event{name, unix.PERF_TYPE_RAW, code}, ok
}
