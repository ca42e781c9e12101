package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestOpenLocks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	w := oneDir()
	e, err := Open(dir, w)
	must(t, err)
	_, err = Open(dir, w)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("got %v, want ErrLocked by pid %d", err, os.Getpid())
	}
	must(t, e.Close())
	e, err = Open(dir, w)
	must(t, err)
	must(t, e.Close())
	for name, want := range map[string]fs.FileMode{".": fs.ModeDir | 0o700, "journal": 0o600, "lock": 0o600} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
}

func TestOpenRefusesADirectoryOthersMayWriteIn(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	if _, err := Open(dir, oneDir()); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
}

func TestOpenNeedsABootID(t *testing.T) {
	w := oneDir()
	w.boot = ""
	if _, err := Open(t.TempDir(), w); err == nil {
		t.Error("opened without a boot id: a reboot would go unseen")
	}
}

func TestDamageIsKeptAside(t *testing.T) {
	dir := t.TempDir()
	w := oneDir()
	before := maps.Clone(w.values)
	for n := 1; n <= maxAside+2; n++ {
		e, err := Open(dir, w)
		must(t, err)
		must(t, e.Apply(2000, w.change("A", "/cg/a", "x")))
		must(t, e.journal.close()) // as if killed
		path := filepath.Join(dir, journalName)
		text, err := os.ReadFile(path)
		must(t, err)
		bad := string(text) + fmt.Sprintf("%08d {\"kind\":\"inten", n)
		must(t, os.WriteFile(path, []byte(bad), 0o600))

		e, err = Open(dir, w)
		must(t, err)
		aside := fmt.Sprintf("%s.corrupt-%d", journalName, min(n, maxAside))
		if !strings.Contains(e.Damage(), "truncated") || !strings.Contains(e.Damage(), aside) {
			t.Errorf("damage %q, want truncated and %s", e.Damage(), aside)
		}
		if kept, err := os.ReadFile(filepath.Join(dir, aside)); err != nil || string(kept) != bad {
			t.Errorf("%s holds %q, %v; want %q", aside, kept, err, bad)
		}
		_, err = e.RestoreAll(3000, "start")
		must(t, err)
		must(t, e.Close())
		if !maps.Equal(w.values, before) {
			t.Errorf("files hold %v", w.values)
		}
	}
}

// inMounts runs a child in its own mount namespace, where it may mount a tmpfs.
func inMounts(t *testing.T, mode string) {
	quelltest.Need(t, quelltest.Root)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childMode+"="+mode, "QUELL_ENFORCE_STATE="+t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil {
		quelltest.Skip(t, "namespaces", err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDiskFull(t *testing.T)       { inMounts(t, "full") }
func TestDiskIsReadOnly(t *testing.T) { inMounts(t, "read-only") }

func mountTmpfs() (string, error) {
	mount := os.Getenv("QUELL_ENFORCE_STATE")
	return mount, syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=256k,mode=700")
}

func fill(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return f.Close()
}

func childFull() error {
	mount, err := mountTmpfs()
	if err != nil {
		return err
	}
	dir := filepath.Join(mount, "state")
	w := newWorld(map[string][]string{"/cg/a": {"x", "y"}, "/cg/bb": {"x"}})
	before := maps.Clone(w.values)
	e, err := Open(dir, w)
	if err != nil {
		return err
	}
	if err := e.Apply(2000, w.change("A", "/cg/a", "x", "y")); err != nil {
		return err
	}
	capped := maps.Clone(w.values)
	if err := fill(filepath.Join(mount, "filler")); err != nil {
		return err
	}
	// The last page of the journal has room for a few more records.
	for i := 0; err == nil; i++ {
		if i > 100 {
			return errors.New("the disk does not get full")
		}
		id := fmt.Sprint("B", i)
		if err = e.Apply(2000, w.change(id, "/cg/bb", "x")); err == nil {
			_, err = e.Undo(2000, id, "test")
		}
	}
	switch {
	case !errors.Is(err, ErrJournal) || !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir):
		return fmt.Errorf("disk full: %w, want ErrJournal for ENOSPC that names the directory", err)
	case !maps.Equal(w.values, capped):
		return fmt.Errorf("disk full: files hold %v, want %v", w.values, capped)
	}
	if _, err := Open(filepath.Join(mount, "other"), w); !errors.Is(err, ErrJournal) {
		return fmt.Errorf("open on a full disk: %w, want ErrJournal", err)
	}
	if err := e.journal.close(); err != nil { // as if killed
		return err
	}
	if e, err = Open(dir, w); err != nil {
		return fmt.Errorf("open with a cap in force on a full disk: %w", err)
	}
	// Whether A is alone depends on which record was the first without room.
	if out, err := e.RestoreAll(3000, "start"); !errors.Is(err, ErrJournal) || len(out) == 0 || out[len(out)-1].Change.ID != "A" {
		return fmt.Errorf("restore on a full disk: %v, %w", out, err)
	}
	if !maps.Equal(w.values, before) {
		return fmt.Errorf("restore on a full disk left %v", w.values)
	}
	if err := os.Remove(filepath.Join(mount, "filler")); err != nil {
		return err
	}
	if err := e.Apply(4000, w.change("C", "/cg/a", "x")); err != nil {
		return fmt.Errorf("after making room: %w", err)
	}
	return e.Close()
}

func childReadOnly() error {
	mount, err := mountTmpfs()
	if err != nil {
		return err
	}
	dir := filepath.Join(mount, "state")
	w := oneDir()
	before := maps.Clone(w.values)
	e, err := Open(dir, w)
	if err != nil {
		return err
	}
	if err := e.Apply(2000, w.change("A", "/cg/a", "x", "y")); err != nil {
		return err
	}
	if err := e.journal.close(); err != nil { // as if killed
		return err
	}
	if err := syscall.Mount("", mount, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		return err
	}
	if e, err = Open(dir, w); err != nil {
		return fmt.Errorf("open with a cap in force, read-only: %w", err)
	}
	if !errors.Is(e.Err(), syscall.EROFS) {
		return fmt.Errorf("Err is %w, want EROFS", e.Err())
	}
	if out, err := e.RestoreAll(3000, "start"); !errors.Is(err, ErrJournal) || len(out) != 1 || !maps.Equal(w.values, before) {
		return fmt.Errorf("restore, read-only: %v, %w; files hold %v", out, err, w.values)
	}
	if err := e.Apply(4000, w.change("B", "/cg/a", "x")); !errors.Is(err, ErrJournal) || !maps.Equal(w.values, before) {
		return fmt.Errorf("apply, read-only: %w; files hold %v", err, w.values)
	}
	if err := e.Close(); !errors.Is(err, ErrJournal) {
		return fmt.Errorf("close, read-only: %w", err)
	}
	if _, err := Open(filepath.Join(mount, "other"), w); !errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("fresh, read-only: %w, want EROFS", err)
	}
	return nil
}
