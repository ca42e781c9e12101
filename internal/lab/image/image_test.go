package image

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// fakeBuild stands for mmdebstrap: it copies what its first hook copies, and makes a kernel
// and an initrd. FAKE says what goes wrong.
const fakeBuild = `#!/bin/sh
for a; do
	case $a in
	--setup-hook=*) hook=${a#--setup-hook=};;
	/*/tree) tree=$a;;
	esac
done
echo "I: installing"
case $FAKE in
fails) echo "E: unable to locate package nosuch"; exit 2;;
hangs) touch "$STARTED"; sleep 1000;;
esac
mkdir -p "$tree/boot" && sh -c "$hook" hook "$tree" && echo kernel >"$tree/boot/vmlinuz-6.1" && echo initrd >"$tree/boot/initrd.img-6.1"
`

// building prepares a cache and the stand-in for mmdebstrap.
func building(t *testing.T, fake string) (dir string) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, "mke2fs")
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mmdebstrap"), []byte(fakeBuild), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("FAKE", fake)
	t.Setenv("STARTED", filepath.Join(dir, "started"))
	if err := os.WriteFile(filepath.Join(dir, "sources.list"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// left are the names in the cache of images.
func left(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(filepath.Join(dir, "quell", "guest", "images"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// A build leaves an image that Find finds: a disk with one partition, which has a file
// system with the contract's programs and more, and its kernel and initrd. A build of the
// same name replaces it.
func TestBuild(t *testing.T) {
	dir := building(t, "")
	more := t.TempDir()
	if err := os.WriteFile(filepath.Join(more, "mine"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var steps []string
	o := Options{apt: dir, Size: 8 << 20, Bench: more, Log: func(line string) { steps = append(steps, line) }}
	for range 2 {
		i, err := Build(t.Context(), "small", o)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := Find("small", ""); err != nil || found != i || i.Format != "raw" || i.Disk != filepath.Join(dir, "quell", "guest", "images", "small", "disk.img") {
			t.Errorf("built %+v, found %+v, %v", i, found, err)
		}
		if text, err := os.ReadFile(i.Kernel); err != nil || string(text) != "kernel\n" {
			t.Errorf("kernel %q, %v", text, err)
		}
		data, err := os.ReadFile(i.Disk)
		if err != nil {
			t.Fatal(err)
		}
		if p := data[446:462]; p[4] != 0x83 || binary.LittleEndian.Uint32(p[8:])*sector != 1<<20 || len(data) != 8<<20 {
			t.Errorf("partition %x on %d bytes", p, len(data))
		}
		if super := data[1<<20+1024:]; binary.LittleEndian.Uint16(super[56:]) != 0xef53 || !strings.HasPrefix(string(super[120:136]), rootLabel) {
			t.Errorf("superblock %x", super[:136])
		}
		for _, text := range []string{"/bench/run PROGRAM [ARGUMENT ...] does one fixed piece", "datasource_list: [NoCloud, None]", "exec sysbench", "mine"} {
			if !strings.Contains(string(data), text) {
				t.Errorf("%q is not on the disk", text)
			}
		}
	}
	if names := left(t, dir); !slices.Equal(names, []string{"small"}) {
		t.Errorf("left %q", names)
	}
	if len(steps) == 0 || !slices.Contains(steps, "I: installing") {
		t.Errorf("steps %q", steps)
	}
}

// A build that fails says why, and one that is stopped ends at once. Neither leaves
// anything.
func TestBuildFails(t *testing.T) {
	dir := building(t, "fails")
	if _, err := Build(t.Context(), "x", Options{apt: dir}); err == nil || !strings.Contains(err.Error(), "unable to locate package nosuch") {
		t.Errorf("%v", err)
	}
	t.Setenv("FAKE", "hangs")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := Build(ctx, "x", Options{apt: dir})
		ended <- err
	}()
	quelltest.Until(t, "it builds", func() bool {
		_, err := os.Stat(os.Getenv("STARTED"))
		return err == nil
	})
	if _, err := Build(t.Context(), "x", Options{apt: dir}); err == nil || !strings.Contains(err.Error(), "another process builds it") {
		t.Errorf("the second of two builds: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	if names := left(t, dir); len(names) > 0 {
		t.Errorf("left %q", names)
	}
}

// One process at a time has the lock, also while holders remove its file.
func TestLockFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	var inside, held atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				f, err := lockFile(name)
				if err != nil {
					continue // another has it
				}
				held.Add(1)
				if inside.Add(1) > 1 {
					t.Error("two have the lock")
				}
				inside.Add(-1)
				if err := errors.Join(os.Remove(name), f.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if held.Load() == 0 {
		t.Error("no lock was taken")
	}
}

// The old image changes its name with the new one: neither is ever missing.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	work, place := filepath.Join(dir, ".build"), filepath.Join(dir, "name")
	text := func(folder string) string {
		b, err := os.ReadFile(filepath.Join(folder, "disk"))
		if err != nil {
			return ""
		}
		return string(b)
	}
	for _, was := range []string{"", "old"} {
		now := was + "new"
		if was != "" {
			if err := write(filepath.Join(place, "disk"), was, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := write(filepath.Join(work, "disk"), now, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := replace(work, place); err != nil {
			t.Fatal(err)
		}
		if text(place) != now || text(work) != was {
			t.Errorf("%q is in place, %q in its stead", text(place), text(work))
		}
	}
}

// A container whose own image has a guest's image builds that anew: overlayfs renames no folder of a
// lower layer.
func TestReplaceOnOverlayfs(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	dir := t.TempDir()
	mount := func(kind, at, options string) {
		t.Helper()
		if err := unix.Mount(kind, at, kind, 0, options); err != nil {
			quelltest.Skip(t, "overlayfs", err)
		}
		t.Cleanup(func() { unix.Unmount(at, unix.MNT_DETACH) })
	}
	mount("tmpfs", dir, "size=1m,mode=700") // overlayfs has no upper layer on another overlayfs
	lower, upper, scratch, merged := dir+"/lower", dir+"/upper", dir+"/scratch", dir+"/merged"
	if err := errors.Join(write(lower+"/name/disk", "old", 0o600), os.Mkdir(upper, 0o755), os.Mkdir(scratch, 0o755), os.Mkdir(merged, 0o755)); err != nil {
		t.Fatal(err)
	}
	mount("overlay", merged, "redirect_dir=off,lowerdir="+lower+",upperdir="+upper+",workdir="+scratch)
	if err := write(merged+"/.build/disk", "new", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := replace(merged+"/.build", merged+"/name"); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(merged + "/name/disk"); err != nil || string(text) != "new" {
		t.Errorf("%q is in place, %v", text, err)
	}
}

// An image is a name or a file; a kernel brings its initrd.
func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	disk, kernel := filepath.Join(dir, "cloud.qcow2"), filepath.Join(dir, "vmlinuz-6.1")
	for file, text := range map[string]string{disk: "QFI\xfb\x00\x00\x00\x03" + strings.Repeat("\x00", 16) + "\x00\x00\x00\x00\x80\x00\x00\x00", kernel: "k", filepath.Join(dir, "initrd.img-6.1"): "i"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if i, err := Find(disk, ""); err != nil || i != (Image{Disk: disk, Format: "qcow2"}) || i.ID() == "" {
		t.Errorf("%+v, %v", i, err)
	}
	for file, want := range map[string]int64{disk: 2 << 30, kernel: 1} {
		i, err := Find(file, "")
		if size, bad := i.Size(); err != nil || bad != nil || size != want {
			t.Errorf("%s has %d bytes, %v, %v, want %d", file, size, err, bad, want)
		}
	}
	if i, err := Find(disk, kernel); err != nil || i.Initrd != filepath.Join(dir, "initrd.img-6.1") {
		t.Errorf("%+v, %v", i, err)
	}
	for _, name := range []string{"nosuch", "./nosuch.img"} {
		var missing *guest.MissingError
		if _, err := Find(name, ""); !errors.As(err, &missing) || !strings.Contains(missing.Remedy, "quell lab image build NAME, as the user that runs the lab") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The contract: /bench/run runs a program once in an empty folder, passes on its status,
// and says which programs there are.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	script, err := files.ReadFile("files/run")
	if err != nil {
		t.Fatal(err)
	}
	run := filepath.Join(dir, "run")
	text := strings.ReplaceAll(string(script), "/bench/programs", dir+"/programs")
	if err := errors.Join(write(run, text, 0o755), write(dir+"/programs/three", "#!/bin/sh\necho $1 >file; cat file; ls | wc -l; exit 3\n", 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		want   string
		status int
	}{
		{[]string{"three", "a b"}, "a b\n1\n", 3},
		{nil, "three\n", 0},
		{[]string{"four"}, "/bench/run: no program four in this image; it has: three\n", 127},
	} {
		cmd := exec.Command("sh", append([]string{run}, c.args...)...)
		out, _ := cmd.CombinedOutput()
		if string(out) != c.want || cmd.ProcessState.ExitCode() != c.status {
			t.Errorf("%q: %q, status %d", c.args, out, cmd.ProcessState.ExitCode())
		}
	}
}

// TestSizeOfACutOffImage: the error says what is wrong with the file.
func TestSizeOfACutOffImage(t *testing.T) {
	disk := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, []byte("QFI\xfb"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Image{Disk: disk, Format: "qcow2"}).Size(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("%v", err)
	}
}
