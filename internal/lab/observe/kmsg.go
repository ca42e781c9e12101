package observe

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/machine/host"
)

// kernelLog reads /dev/kmsg from the moment it is opened
// (Documentation/ABI/testing/dev-kmsg). Its methods may be called on nil.
type kernelLog struct{ fd int }

// logLine is one record of the log.
type logLine struct {
	level int // 0 emergency … 7 debug
	text  string
}

func openKernelLog(h *host.Host) *kernelLog {
	fd, err := unix.Open(h.Path("/dev/kmsg"), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		unix.Close(fd)
		return nil
	}
	return &kernelLog{fd}
}

// read returns the kernel's own lines since the last call. Lines that were overwritten in
// between are lost.
func (k *kernelLog) read() []logLine {
	if k == nil {
		return nil
	}
	var lines []logLine
	buf := make([]byte, 8192) // the largest size of a record
	for {
		n, err := unix.Read(k.fd, buf)
		switch {
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.EINTR):
			continue
		case err != nil || n == 0: // EAGAIN: no more records
			return lines
		}
		if l, ok := parseLog(string(buf[:n])); ok {
			lines = append(lines, l)
		}
	}
}

func (k *kernelLog) close() error {
	if k == nil {
		return nil
	}
	return unix.Close(k.fd)
}

// parseLog reads a record, "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;text". Records written
// by programs (a facility other than the kernel's) are skipped.
func parseLog(record string) (logLine, bool) {
	head, text, ok := strings.Cut(record, ";")
	if !ok {
		return logLine{}, false
	}
	first, _, _ := strings.Cut(head, ",")
	n, err := strconv.ParseUint(first, 10, 16)
	if err != nil || n>>3 != 0 {
		return logLine{}, false
	}
	text, _, _ = strings.Cut(text, "\n")
	return logLine{level: int(n & 7), text: text}, true
}

// criticalLevel is critical: every line at this level or below counts.
const criticalLevel = 2

// invalidatingLine matches lines of any level after which a measurement is not valid: lockups and
// stalls (kernel/watchdog.c, rcu/tree_stall.h), hung tasks, thermal throttling, errors of
// hardware and devices, a clocksource marked unstable, and out of memory.
var invalidatingLine = regexp.MustCompile(`(?i)soft lockup|hard lockup|rcu.*(detected|self-detected) .*stall|blocked for more than|cpu clock (is )?throttled|temperature above threshold|hardware error|machine check|marking clocksource .* unstable|sched: RT throttling activated|out of memory|oom-kill|i/o error|kernel BUG|^WARNING: |Call Trace`)

// judgeKernel finds the first line that makes a run invalid.
func judgeKernel(lines []logLine) *result.Evidence {
	for _, l := range lines {
		if l.level <= criticalLevel || invalidatingLine.MatchString(l.text) {
			return &result.Evidence{Reason: result.KernelLog, Value: float64(l.level), Bound: criticalLevel, Unit: "level",
				Text: fmt.Sprintf("kernel log: %s", l.text)}
		}
	}
	return nil
}
