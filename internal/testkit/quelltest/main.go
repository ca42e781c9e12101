package quelltest

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// Main is for a package's TestMain. It runs the tests and exits with 1 if
// goroutines or file descriptors that the tests opened still exist after a
// grace period of a minute, and names them.
func Main(m *testing.M) {
	before := openFiles()
	// Child processes that are this test binary would each sleep a second before
	// they end, so that race reports that are being written can complete.
	if os.Getenv("GORACE") == "" {
		os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
	code := m.Run()
	_ = os.RemoveAll(programs()) // leftovers do no harm
	if code == 0 && !fuzzing() {
		if leaks := leaked(before, time.Minute); len(leaks) > 0 {
			fmt.Fprintf(os.Stderr, "--- FAIL: leaked by the tests of this package:\n%s\n", strings.Join(leaks, "\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// fuzzing reports whether this process is a fuzz coordinator or a fuzz worker;
// those keep pipes of their own.
func fuzzing() bool {
	for _, name := range []string{"test.fuzz", "test.fuzzworker"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != f.DefValue {
			return true
		}
	}
	return false
}

// leaked waits until nothing is left, at most for the grace, and returns the rest.
func leaked(before map[string]string, grace time.Duration) []string {
	for end := time.Now().Add(grace); ; <-time.After(5 * time.Millisecond) {
		leaks := goroutines()
		for fd, target := range openFiles() {
			if before[fd] != target && !runtimeFile.MatchString(target) {
				leaks = append(leaks, "fd "+fd+" -> "+target)
			}
		}
		if len(leaks) == 0 || time.Now().After(end) {
			return leaks
		}
	}
}

// runtimeFile matches what the Go runtime opens once and keeps: its poller.
var runtimeFile = regexp.MustCompile(`^anon_inode:\[(eventpoll|eventfd)\]$`)

// openFiles maps descriptor numbers to their targets.
func openFiles() map[string]string {
	files := map[string]string{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return files // not Linux
	}
	for _, e := range entries {
		// The descriptor that listed the directory is gone by now.
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			files[e.Name()] = target
		}
	}
	return files
}

// goroutines returns the stacks of all goroutines except this one, the testing
// package's and the runtime's.
func goroutines() []string {
	buf := make([]byte, 1<<20)
	all := strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
	var rest []string
	for _, stack := range all[1:] {
		if !strings.Contains(stack, "os/signal.signal_recv") && !strings.Contains(stack, "testing.(*M).") {
			rest = append(rest, stack)
		}
	}
	return rest
}
