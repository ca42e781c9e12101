package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestWriteReplacesWhole(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, content := range []string{"a long first content", "short", ""} {
		if err := Write(path, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != content {
			t.Errorf("read %q, %v; wrote %q", got, err, content)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
		if names(t, dir) != "f" {
			t.Errorf("left %s", names(t, dir))
		}
	}
}

// On a full device the old file stays and no temporary file is left.
func TestWriteToFullDisk(t *testing.T) {
	quelltest.Need(t, "root")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=16k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	path := filepath.Join(dir, "f")
	if err := Write(path, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v, want ENOSPC", err)
	}
	if got, err := os.ReadFile(path); string(got) != "kept" || names(t, dir) != "f" {
		t.Errorf("file holds %q, %v; the directory %s", got, err, names(t, dir))
	}
}

func TestWriteSaysWhere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "no", "f")
	if err := Write(path, nil, 0o600); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v", err)
	}
}

// What fails half-way leaves the old file, and no other; links and permissions stay.
func TestFill(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	text := func(s string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, wrote := io.WriteString(w, s)
			return errors.Join(wrote, err)
		}
	}
	broken := errors.New("broken")
	if err := Fill(path, text("half", broken)); !errors.Is(err, broken) || names(t, dir) != "" {
		t.Errorf("%v, left %q", err, names(t, dir))
	}
	before := unix.Umask(0o027)
	err := Fill(path, text("first", nil))
	unix.Umask(before)
	if info, err2 := os.Stat(path); err != nil || err2 != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v, %v", info, err, err2)
	}
	if err := errors.Join(os.Chmod(path, 0o604), os.Symlink("f", link)); err != nil {
		t.Fatal(err)
	}
	if err := Fill(link, text("half", broken)); !errors.Is(err, broken) {
		t.Error(err)
	}
	if got, err := os.ReadFile(path); string(got) != "first" {
		t.Errorf("%q, %v", got, err)
	}
	if err := Fill(link, text("second", nil)); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(path)
	if got, _ := os.ReadFile(path); string(got) != "second" || err != nil || info.Mode().Perm() != 0o604 || names(t, dir) != "f link" {
		t.Errorf("%q, %v, %v, %q", got, info, err, names(t, dir))
	}
	if err := Fill(os.DevNull, text("gone", nil)); err != nil {
		t.Error(err)
	}
	// Links to what has no name: /dev/stdout is one to a file that was removed if the caller has such one
	// for the output, and must not be replaced.
	ahead, removed := filepath.Join(dir, "ahead"), filepath.Join(dir, "removed")
	if err := errors.Join(os.Symlink("later", ahead), Fill(ahead, text("third", nil))); err != nil || names(t, dir) != "ahead f later link" {
		t.Errorf("%v, %q", err, names(t, dir))
	}
	f, err := os.Create(removed)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := errors.Join(os.Remove(removed), Fill(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), text("fourth", nil))); err != nil {
		t.Error(err)
	}
	if got, err := io.ReadAll(f); string(got) != "fourth" {
		t.Errorf("%q, %v", got, err)
	}
	// Output to a pipe ends with its reader: quell … --out /dev/stdout | head
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := errors.Join(r.Close(), Fill(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), text("fifth", nil))); !errors.Is(err, unix.EPIPE) {
		t.Errorf("a pipe without a reader: %v", err)
	}
	if err := Fill(filepath.Join(dir, "no", "f"), text("", nil)); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// A file that was made for a user in a directory of root's is written by that user.
func TestFillInADirectoryOfOthers(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.WriteFile(path, []byte("a longer text"), 0o644), os.Chown(path, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the file system knows this thread by another user
	defer runtime.UnlockOSThread()
	if err := unix.Setfsuid(65534); err != nil {
		t.Fatal(err)
	}
	err := Fill(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "text")
		return err
	})
	if err := unix.Setfsuid(0); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "text" || err != nil || names(t, dir) != "f" {
		t.Errorf("%q, %v, %q", got, err, names(t, dir))
	}
}
