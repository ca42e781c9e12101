package counter

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Descriptors returns how many file descriptors this process has open and how
// many it may have: RLIMIT_NOFILE, which Go's runtime has raised to the hard
// limit at start.
func Descriptors() (open, limit int, err error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return 0, 0, fmt.Errorf("read RLIMIT_NOFILE: %w", err)
	}
	const dir = "/proc/self/fd"
	// Since Linux 6.2 the directory's size is the number of descriptors.
	info, err := os.Stat(dir)
	if err != nil {
		return 0, 0, fmt.Errorf("count file descriptors: %w", err)
	}
	if open = int(info.Size()); open == 0 {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return 0, 0, fmt.Errorf("count file descriptors: %w", err)
		}
		open = len(entries) - 1 // without the one that lists them
	}
	return open, int(min(l.Cur, 1<<30)), nil
}
