package host

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ProcessStat is /proc/PID/stat of a process or a thread (proc_pid_stat(5)). Fields that
// the text lacks are zero.
type ProcessStat struct {
	Name  string
	State byte          // R: runs, or waits for a CPU; T: stopped; Z, X: has ended
	Flags uint64        // PF_… of linux/sched.h
	Used  time.Duration // CPU time
	// Start is when it began, in ticks since boot; with its id it identifies a process.
	Start    uint64
	Nice     int           // -20 to 19
	Policy   int           // SCHED_… of linux/sched.h
	CPU      int           // the last that it ran on
	Guest    time.Duration // CPU time of a virtual CPU, included in Used
	EnvStart uint64        // address of its environment, which moves at exec
}

// ReadProcessStat reads such a file. A process that has ended gives ESRCH or fs.ErrNotExist.
func ReadProcessStat(file string) (ProcessStat, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return ProcessStat{}, err
	}
	s, err := parseProcessStat(text)
	if err != nil {
		return ProcessStat{}, fmt.Errorf("read %s: %w", file, err)
	}
	return s, nil
}

// parseProcessStat counts fields after the name, which may contain anything, also
// parentheses.
func parseProcessStat(text []byte) (_ ProcessStat, err error) {
	from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if from < 0 || to < from {
		return ProcessStat{}, fmt.Errorf("parse stat %.80q: no name", text)
	}
	f := bytes.Fields(text[to+1:])
	if len(f) == 0 {
		return ProcessStat{}, fmt.Errorf("parse stat %.80q: no state", text)
	}
	var bad error
	number := func(field int) uint64 {
		if field -= 3; field >= len(f) {
			return 0
		}
		n, ok := parseUint(f[field])
		if !ok {
			bad = fmt.Errorf("parse stat: bad field %q", f[field])
		}
		return n
	}
	s := ProcessStat{Name: string(text[from+1 : to]), State: f[0][0], Flags: number(9), Used: duration(number(14)+number(15), tick),
		Start: number(22), Policy: int(number(41)), CPU: int(number(39)), Guest: duration(number(43), tick), EnvStart: number(50)}
	if bad != nil {
		return ProcessStat{}, bad
	}
	if at := 19 - 3; at < len(f) {
		if s.Nice, err = strconv.Atoi(string(f[at])); err != nil {
			return ProcessStat{}, fmt.Errorf("parse stat: bad niceness %q", f[at])
		}
	}
	return s, nil
}

// Schedstat is /proc/PID/schedstat of a thread, since it began
// (Documentation/scheduler/sched-stats.rst).
type Schedstat struct {
	Run, Wait uint64 // ns on a CPU; runnable and not running
	Slices    uint64 // times that it was put on a CPU
}

// ReadSchedstat reads such a file.
func ReadSchedstat(file string) (Schedstat, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Schedstat{}, err
	}
	s, err := parseSchedstat(string(text))
	if err != nil {
		return Schedstat{}, fmt.Errorf("read %s: %w", file, err)
	}
	return s, nil
}

func parseSchedstat(text string) (Schedstat, error) {
	var n [3]uint64
	f := strings.Fields(text)
	if len(f) != len(n) {
		return Schedstat{}, fmt.Errorf("parse schedstat %q: want 3 numbers", text)
	}
	for i := range n {
		var err error
		if n[i], err = strconv.ParseUint(f[i], 10, 64); err != nil {
			return Schedstat{}, fmt.Errorf("parse schedstat %q: %w", text, err)
		}
	}
	return Schedstat{n[0], n[1], n[2]}, nil
}
