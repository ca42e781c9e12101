package host

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"
)

// CPUTimes says how CPUs have spent their time since boot.
type CPUTimes struct {
	Total CPUTime
	CPUs  []CPUTime // those online, ascending
	// Switches counts context switches on all CPUs (ctxt); 0 if not reported.
	Switches uint64
}

// CPUTime is one line of /proc/stat (proc(5)). User includes the time of
// guests. The kernel counts in ticks of 10 ms.
type CPUTime struct {
	ID                                                    int // -1 in a total
	User, Nice, System, Idle, IOWait, IRQ, SoftIRQ, Steal time.Duration
}

// Busy returns the time that was neither idle nor stolen.
func (t CPUTime) Busy() time.Duration {
	return t.User + t.Nice + t.System + t.IRQ + t.SoftIRQ
}

// CPUTimes reads /proc/stat.
func (h *Host) CPUTimes() (CPUTimes, error) {
	text, err := os.ReadFile(h.Path("/proc/stat"))
	if err != nil {
		return CPUTimes{}, fmt.Errorf("read CPU times: %w", err)
	}
	return parseStat(text)
}

// tick is 1/USER_HZ, which is 100 on every architecture that quell runs on.
const tick = 10 * time.Millisecond

func parseStat(text []byte) (CPUTimes, error) {
	var all CPUTimes
	found := false
	for line := range bytes.Lines(text) {
		if line[0] != 'c' { // intr alone is thousands of fields
			continue
		}
		f := bytes.Fields(line)
		if len(f) == 2 && string(f[0]) == "ctxt" {
			n, ok := parseUint(f[1])
			if !ok {
				return CPUTimes{}, fmt.Errorf("parse CPU times: bad field %q of ctxt", f[1])
			}
			all.Switches = n
		}
		if len(f) == 0 || !bytes.HasPrefix(f[0], []byte("cpu")) {
			continue
		}
		t := CPUTime{ID: -1}
		if id := f[0][len("cpu"):]; len(id) > 0 {
			n, ok := parseUint(id)
			if !ok || n > 1<<16 {
				return CPUTimes{}, fmt.Errorf("parse CPU times: bad name %q", f[0])
			}
			t.ID = int(n)
		}
		if len(f) < 5 {
			return CPUTimes{}, fmt.Errorf("parse CPU times: line of %s has %d fields", f[0], len(f))
		}
		// Fields beyond the eighth are parts of user and nice (guests).
		for i, to := range []*time.Duration{&t.User, &t.Nice, &t.System, &t.Idle, &t.IOWait, &t.IRQ, &t.SoftIRQ, &t.Steal} {
			if i+1 == len(f) {
				break
			}
			n, ok := parseUint(f[i+1])
			if !ok {
				return CPUTimes{}, fmt.Errorf("parse CPU times: bad field %q of %s", f[i+1], f[0])
			}
			*to = duration(n, tick)
		}
		if t.ID < 0 {
			all.Total, found = t, true
		} else {
			all.CPUs = append(all.CPUs, t)
		}
	}
	if !found {
		return CPUTimes{}, errors.New("parse CPU times: no line for all CPUs")
	}
	return all, nil
}
