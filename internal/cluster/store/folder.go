package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/quell-dev/quell/internal/format/atomicfile"
)

// folder is the Bucket of a store without one: the store's own folder, to which one
// process writes. Files that are Put are already in their place.
type folder struct{ dir string }

func (f folder) path(name string) string { return filepath.Join(f.dir, filepath.FromSlash(name)) }

func (f folder) Put(context.Context, string, string) error { return nil }

// Create leaves no file behind when it reports failure. If it cannot remove the file, the error is ErrBroken.
func (f folder) Create(_ context.Context, name string, data []byte) error {
	path := f.path(name)
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("create %s: %w", path, fs.ErrExist)
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		// It may exist all the same, if only the sync of its folder failed.
		if bad := os.Remove(path); bad != nil && !errors.Is(bad, fs.ErrNotExist) {
			return fmt.Errorf("%w: %w", ErrBroken, errors.Join(err, bad))
		}
		return err
	}
	return nil
}

func (f folder) Read(_ context.Context, name string) ([]byte, error) {
	return os.ReadFile(f.path(name))
}

func (f folder) Get(context.Context, string, string) error { return errors.ErrUnsupported }

func (f folder) List(_ context.Context, below string) ([]Entry, error) {
	var all []Entry
	err := filepath.WalkDir(f.path(below), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // none yet, or removed meanwhile
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(f.dir, path)
		all = append(all, Entry{Name: filepath.ToSlash(name), Bytes: info.Size(), At: info.ModTime()})
		return err
	})
	return all, err
}

func (f folder) Remove(_ context.Context, name string) error {
	if err := os.Remove(f.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (f folder) URL(name string) string { return f.path(name) }

// unfinished reports whether a file was still being written, by atomicfile or as a segment.
func unfinished(name string) bool {
	return strings.HasPrefix(name[strings.LastIndexByte(name, '/')+1:], ".")
}
