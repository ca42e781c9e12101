package atomicfile

import (
	"fmt"
	"os"
	"syscall"
)

// OwnDir makes a directory that only this user may change, with its parents. An existing one
// that other users may change is refused: they could put files in place of this program's.
func OwnDir(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("other users may write to %s: chmod go-w it", path)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return fmt.Errorf("%s belongs to user %d, this program runs as %d: chown it, or run the program as that user", path, st.Uid, os.Geteuid())
	}
	return nil
}

// PrivateDir is OwnDir for a directory that only this program uses: also an existing one
// becomes unreadable for other users.
func PrivateDir(path string) error {
	if err := OwnDir(path); err != nil {
		return err
	}
	info, err := os.Lstat(path)
	if err == nil && info.IsDir() && info.Mode().Perm()&0o077 != 0 {
		err = os.Chmod(path, 0o700)
	}
	if err != nil {
		return fmt.Errorf("close %s to other users: %w", path, err)
	}
	return nil
}
