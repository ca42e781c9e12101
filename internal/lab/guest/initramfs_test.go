package guest

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// entries reads an archive of the format "newc" like the kernel's init/initramfs.c, and
// returns "mode name=content" of each entry.
func entries(t *testing.T, b []byte) (all []string) {
	t.Helper()
	at := 0
	take := func(n int) []byte {
		t.Helper()
		if n > len(b)-at {
			t.Fatalf("the archive ends at %d of %d", at, at+n)
		}
		at += n
		return b[at-n : at]
	}
	align := func() { take(-at & 3) }
	inodes := map[string]bool{}
	for {
		head := take(110)
		if string(head[:6]) != "070701" {
			t.Fatalf("magic %q at %d", head[:6], at)
		}
		field := func(i int) int {
			n, err := strconv.ParseUint(string(head[6+8*i:14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		if inode := string(head[6:14]); inodes[inode] {
			t.Errorf("inode %s twice: the kernel would take them for links", inode)
		} else {
			inodes[inode] = true
		}
		name := strings.TrimSuffix(string(take(field(11))), "\x00")
		align()
		data := take(field(6))
		align()
		if name == "TRAILER!!!" {
			if at != len(b) {
				t.Errorf("%d bytes after the end", len(b)-at)
			}
			return all
		}
		all = append(all, fmt.Sprintf("%o %s=%s", field(1), name, data))
	}
}

func TestInitramfs(t *testing.T) {
	program := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(program, []byte("ELF"), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	err := Initramfs(&b, program, Init{Run: [][]string{{"/bin/a", "-x"}}, Modules: []string{"/m.ko n=1"}, BareCgroups: true},
		File{Path: "/bin/a", Data: []byte("12345")}, File{Path: "/etc/x/y", Mode: 0o640, Data: []byte("z")}, File{Path: "/etc/x/empty", Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"100755 init=ELF", `100644 init.json={"modules":["/m.ko n=1"],"bare_cgroups":true,"run":[["/bin/a","-x"]]}`,
		"40755 bin=", "100755 bin/a=12345", "40755 etc=", "40755 etc/x=", "100640 etc/x/y=z", "100600 etc/x/empty=",
	}
	if got := entries(t, b.Bytes()); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestInitramfsTwin: the cpio program unpacks the same files.
func TestInitramfsTwin(t *testing.T) {
	quelltest.Need(t, "cpio")
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, bytes.Repeat([]byte("p"), 1001), 0o600); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Initramfs(&b, program, Init{}, File{Path: "/a/b/c", Data: []byte("text"), Mode: 0o604}); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cpio", "--extract", "--quiet", "--make-directories")
	cmd.Dir, cmd.Stdin = out, &b
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cpio: %v: %s", err, text)
	}
	for name, want := range map[string]struct {
		mode fs.FileMode
		size int64
	}{"init": {0o755, 1001}, "init.json": {0o644, 2}, "a/b": {0o755 | fs.ModeDir, -1}, "a/b/c": {0o604, 4}} {
		info, err := os.Stat(filepath.Join(out, name))
		if err != nil || info.Mode() != want.mode || want.size >= 0 && info.Size() != want.size {
			t.Errorf("%s: %v, %v; want %+v", name, info, err, want)
		}
	}
}

func TestInitramfsRefuses(t *testing.T) {
	program := filepath.Join(t.TempDir(), "init")
	if err := os.WriteFile(program, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"", "a", "/a/../b", "/a/", "/", "/init", "/init.json"} {
		var b bytes.Buffer
		if err := Initramfs(&b, program, Init{}, File{Path: path}); err == nil {
			t.Errorf("path %q was taken", path)
		}
	}
	var b bytes.Buffer
	if err := Initramfs(&b, program, Init{}, File{Path: "/a", From: "/no/such/file"}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := Initramfs(&b, program, Init{}, File{Path: "/a/b"}, File{Path: "/a"}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file where a directory is: %v", err)
	}
}
