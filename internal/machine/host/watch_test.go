package host

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
)

func anywhere(string) bool { return true }

func ofNone(string) int { return -1 }

// What is made below a path that is not deeper is neither watched nor reported.
func TestWatchOnlyWhereAsked(t *testing.T) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWatcher(fd, func(path string) bool { return path == "/" || path == "/pods" }, ofNone)
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

// However many cgroups a user makes, a bounded number are watched, and all of others.
func TestWatchesOfAUserAreBounded(t *testing.T) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	w, err := newWatcher(fd, anywhere, func(path string) int {
		if strings.HasPrefix(path, "/theirs/") {
			return 1000
		}
		return -1
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	dir := t.TempDir()
	w.tops = []top{{sample.Unified, dir}}
	mkdir := func(name string) {
		if err := os.MkdirAll(dir+name, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i := range mostWatched + 10 {
		mkdir("/theirs/" + strconv.Itoa(i))
	}
	mkdir("/zone")
	if err := w.addAll(); err != nil {
		t.Fatal(err)
	}
	const most = 3 + mostWatched // the top, theirs and zone
	if len(w.dirs) != most || w.wds[dir+"/zone"] == 0 {
		t.Errorf("%d are watched, want %d", len(w.dirs), most)
	}
	mkdir("/theirs/more")
	if seen, err := w.Changes(); err != nil || !slices.Equal(seen.Places, []Place{{sample.Unified, "/theirs/more"}}) || len(w.dirs) != most {
		t.Errorf("seen %+v, %v; %d are watched, want %d", seen, err, len(w.dirs), most)
	}
	if err := os.Remove(dir + "/theirs/0"); err != nil {
		t.Fatal(err)
	}
	mkdir("/theirs/again")
	if _, err := w.Changes(); err != nil || len(w.dirs) != most || w.wds[dir+"/theirs/again"] == 0 {
		t.Errorf("after one was removed: %v; %d are watched, want %d", err, len(w.dirs), most)
	}
}
