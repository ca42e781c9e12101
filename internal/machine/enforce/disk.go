package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const lockName = "lock"

// osDisk is a disk in a directory of the real file system, locked.
type osDisk struct {
	*os.Root
	lock *os.File
}

// openDisk makes the directory if needed and locks it. Write access to it is
// enough to make root write to any file, so only its owner may have it.
func openDisk(dir string) (*osDisk, error) {
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	d, err := rootDisk(dir)
	if err != nil {
		return nil, err
	}
	if err = d.acquire(lockName); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make state directory: %w", err)
	}
	return nil
}

// rootDisk opens a directory that exists, without a lock.
func rootDisk(dir string) (*osDisk, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	d := &osDisk{Root: root}
	if err := d.private(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *osDisk) private() error {
	info, err := d.Stat(".")
	if err != nil {
		return fmt.Errorf("stat state directory: %w", err)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(st.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("state directory %s is writable by others (mode %v): chown it to uid %d and chmod 700",
			d.Name(), info.Mode().Perm(), os.Geteuid())
	}
	return nil
}

// acquire takes a lock; the kernel drops it when the process ends, however
// it ends.
func (d *osDisk) acquire(name string) error {
	f, err := d.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, syscall.EROFS) {
		// A restore must work also on a file system that went read-only.
		f, err = d.Open(name)
	}
	if err != nil {
		return fmt.Errorf("open lock: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		text := make([]byte, 32)
		n, _ := f.ReadAt(text, 0)
		holder := strings.TrimSpace(string(text[:n]))
		if _, bad := strconv.Atoi(holder); bad != nil {
			holder = "unknown"
		}
		err = fmt.Errorf("%w by pid %s", ErrLocked, holder)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock %s/%s: %w", d.Name(), name, err), f.Close())
	}
	d.lock = f
	// The pid only serves the message above: if it cannot be written, the lock is
	// held nevertheless. It is padded to one length, so that it is overwritten.
	_, _ = f.WriteAt(fmt.Appendf(nil, "%-11d\n", os.Getpid()), 0)
	return nil
}

// writeFile replaces a file by one with the text, and returns it open when it is on disk.
func writeFile(d disk, name string, text []byte) (file, error) {
	f, err := d.Create(name + ".new")
	if err != nil {
		return nil, err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err == nil {
		err = d.Rename(name+".new", name)
	}
	if err == nil {
		err = d.Sync()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (d *osDisk) Create(name string) (file, error) {
	return d.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
}

func (d *osDisk) Sync() error {
	f, err := d.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *osDisk) Close() error {
	var err error
	if d.lock != nil {
		err = d.lock.Close()
	}
	return errors.Join(err, d.Root.Close())
}
