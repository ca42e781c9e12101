package counter

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// A progress file on a file system that answers when a process or a server likes is not
// opened, and its task is told why.
func TestFileSystemsThatMayHangAreNotEntered(t *testing.T) {
	for kind, refused := range map[string]bool{"fuse.sshfs": true, "nfs4": true, "9p": true, "cifs": true, "autofs": true, "": true, "ext4": false, "tmpfs": false} {
		p := newFakeProc(t)
		p.process(7, 1, 1, "QUELL_PROGRESS=/a")
		p.set("/a", 1)
		root, err := unix.Open(p.root, unix.O_PATH|unix.O_CLOEXEC, 0)
		p.check(err)
		id, err := mountID(root)
		unix.Close(root)
		p.check(err)
		text, err := os.ReadFile(p.dir + "/7/mountinfo")
		p.check(err)
		lines := strings.Split(string(text), "\n")
		for i, line := range lines {
			if line != "" && mountTypes(strings.NewReader(line))[id] != "" {
				if lines[i] = ""; kind != "" {
					left, right, _ := strings.Cut(line, " - ")
					_, rest, _ := strings.Cut(right, " ")
					lines[i] = left + " - " + kind + " " + rest
				}
			}
		}
		p.check(os.WriteFile(p.dir+"/7/mountinfo", []byte(strings.Join(lines, "\n")), 0o644))
		c := p.cpt("")
		c.begin(t)
		p.set("/a", 101)
		r := c.end(t, twoSeconds)[key(1)]
		var refusal *FileSystemError
		if errors.As(r.Err, &refusal) != refused || (r.Cost == 0.02) == refused || refused && refusal.Type != kind {
			t.Errorf("%q: %+v", kind, r)
		}
	}
}

// A progress file on a FUSE file system whose process never answers.
func TestProgressFileOnAStalledFUSE(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		quelltest.Skip(t, "fuse", err)
	}
	defer unix.Close(dev)
	dir := t.TempDir()
	if err := unix.Mount("stalled", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, "fd="+strconv.Itoa(dev)+",rootmode=40000,user_id=0,group_id=0,allow_other"); err != nil {
		quelltest.Skip(t, "fuse", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	link := t.TempDir() + "/link"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{dir + "/progress", link + "/progress", dir + "/../" + dir[strings.LastIndexByte(dir, '/')+1:] + "/progress"} {
		c := still(t, "/proc", nil)
		if err := c.Add(Target{Key: key(1), Progress: file, Members: func() ([]int, error) { return []int{os.Getpid()}, nil }}); err != nil {
			t.Fatal(err)
		}
		c.begin(t)
		var refusal *FileSystemError
		if r := c.end(t, twoSeconds)[key(1)]; !errors.As(r.Err, &refusal) || refusal.Type != "fuse" {
			t.Errorf("%s: %+v", file, r)
		}
	}
}

// FuzzMountTypes: a task can mount what it likes, so any text is read without harm.
func FuzzMountTypes(f *testing.F) {
	f.Add("31 23 0:28 / /run rw,relatime shared:9 - tmpfs tmpfs rw,size=1024k\n")
	f.Add("31 23 0:28 / /a\\040-\\040fuse rw - ext4 /dev/vda rw\n-1 - x\n")
	f.Fuzz(func(t *testing.T, text string) {
		for id, kind := range mountTypes(strings.NewReader(text)) {
			if kind == "" || strings.ContainsAny(kind, " \n") || !strings.Contains(text, strconv.Itoa(id)) {
				t.Errorf("mount %d is of type %q", id, kind)
			}
		}
	})
}
