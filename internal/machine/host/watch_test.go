package host

import (
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

func anywhere(string) bool { return true }

// What is made below a path that is not deeper is neither watched nor reported.
func TestWatchOnlyWhereAsked(t *testing.T) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWatcher(fd, func(path string) bool { return path == "/" || path == "/pods" })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dir := t.TempDir()
	w.tops = []top{{sample.Unified, dir}}
	if err := w.addAll(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/pods", 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Changes(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/pods/a/below/deep", "/pods/b"} {
		if err := os.MkdirAll(dir+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir + "/pods/b"); err != nil {
		t.Fatal(err)
	}
	seen, err := w.Changes()
	var got []string
	for _, at := range seen.Places {
		got = append(got, at.Path)
	}
	if want := []string{"/pods/a", "/pods/b", "/pods/b"}; err != nil || seen.Lost || !slices.Equal(got, want) || len(w.dirs) != 2 {
		t.Errorf("seen %q, %v, watched %v; want %q", got, err, w.dirs, want)
	}
}
