// Package atomicfile writes files atomically: a file is complete or absent, also after a
// crash or a power failure.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Write replaces the file at path with the content. It writes and fsyncs a temporary file
// in the same directory, renames it and fsyncs the directory. After an error before the
// rename the old file is unchanged and no temporary file is left.
func Write(path string, content []byte, perm os.FileMode) error {
	return replace(path, perm, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

// Fill makes or replaces the file at path, as os.Create does, with what fill writes: symbolic links
// are followed, an existing file keeps its permissions, and a new one has those of the umask. What
// is no regular file (/dev/stdout), or has no name yet or any more, is written directly, and so is a
// file in a directory in which this user may make none.
func Fill(path string, fill func(io.Writer) error) error {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	info, err := os.Lstat(path) // a link still: to a file that is not there, or was removed
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return replace(path, fromUmask, fill)
	case err != nil:
		return err
	case info.Mode().IsRegular():
		f, err := temporary(path, info.Mode().Perm())
		if !errors.Is(err, fs.ErrPermission) {
			return rename(f, err, path, fill)
		}
	}
	// Not for reading too: of a pipe whose reader has gone there must be none, or a write waits forever.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) { // where the link leads
		f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	}
	if err != nil {
		return err
	}
	return errors.Join(fill(f), f.Close())
}

// Replace makes or replaces the file at path with what fill writes, also where a symbolic link was: what
// that leads to stays as it is. The file has the permissions of the umask.
func Replace(path string, fill func(io.Writer) error) error { return replace(path, fromUmask, fill) }

// fromUmask stands for the permissions that the umask leaves.
const fromUmask = os.FileMode(1 << 9)

// temporary makes a file next to path, which only this user can open until it has its permissions,
// unless those are from the umask.
func temporary(path string, perm os.FileMode) (*os.File, error) {
	dir, base := filepath.Dir(path), filepath.Base(path)
	if perm == fromUmask {
		return os.OpenFile(filepath.Join(dir, fmt.Sprintf(".%s.%d", base, rand.Uint64())), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	}
	f, err := os.CreateTemp(dir, "."+base+".*")
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(perm); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

func replace(path string, perm os.FileMode, fill func(io.Writer) error) error {
	f, err := temporary(path, perm)
	return rename(f, err, path, fill)
}

// rename fills the file that temporary has made, and gives it the name path.
func rename(f *os.File, err error, path string, fill func(io.Writer) error) error {
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = write(f, fill)
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: sync its directory: %w", path, err)
	}
	return nil
}

func write(f *os.File, fill func(io.Writer) error) error {
	err := fill(f)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// SyncDir makes creations, renames and removals of files in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
