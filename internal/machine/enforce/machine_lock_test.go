package enforce

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// Two agents exclude each other by the directory, whatever name it has for them. The first
// that ends releases it.
func TestOneAgentHoldsTheMachine(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	link := other + "/mounted-elsewhere"
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	first, err := LockMachine([]string{other, dir})
	if err != nil || len(first.Ignored) > 0 {
		t.Fatalf("%+v, %v", first, err)
	}
	_, err = LockMachine([]string{link})
	if !errors.Is(err, ErrMachine) || !strings.Contains(err.Error(), "by pid ") {
		t.Errorf("the second: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := LockMachine([]string{link})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if _, err := LockMachine([]string{dir + "/none"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the directory: %v", err)
	}
}

// Any user can lock a directory that it can read: such a process must not keep the agent from
// working. A process that cannot be seen may be an agent.
func TestWhoMayHoldTheMachine(t *testing.T) {
	dir := t.TempDir()
	held, err := LockMachine([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	mine, ended := Holder{PID: 1, UID: os.Geteuid(), Name: "quell-agent"}, Holder{PID: 2, UID: -1}
	user := Holder{PID: 3, UID: os.Geteuid() + 1, Name: "x\nUid:\t0"}
	su := Holder{PID: 4, UID: os.Geteuid(), Name: "su", Setuid: true}
	for _, c := range []struct {
		holders []Holder
		refused string // "": ignored
	}{
		{nil, "another container"},
		{[]Holder{mine}, `pid 1 ("quell-agent"`},
		{[]Holder{user, mine}, "pid 1 "},
		{[]Holder{user}, ""},
		{[]Holder{ended, user}, ""},
		{[]Holder{su}, ""},
		{[]Holder{su, mine}, "pid 1 "},
	} {
		l, err := lockMachine([]string{dir}, func(*os.File) ([]Holder, error) { return c.holders, nil })
		if c.refused != "" {
			if !errors.Is(err, ErrMachine) || !strings.Contains(err.Error(), c.refused) {
				t.Errorf("%v: %v", c.holders, err)
			}
			continue
		}
		if err != nil || !slices.Equal(l.Ignored, c.holders) {
			t.Errorf("%v: %+v, %v", c.holders, l, err)
			continue
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := lockMachine([]string{dir}, func(*os.File) ([]Holder, error) { return nil, os.ErrPermission }); !errors.Is(err, ErrMachine) || !errors.Is(err, os.ErrPermission) {
		t.Errorf("holders unknown: %v", err)
	}
}

// A user's process with a lock can become one of root by executing a program of root's with the mode
// for that, as in "flock --no-fork /sys/fs/cgroup su". Nothing is asked of another user's program, which
// may be on a file system of the user's that never answers.
func TestAUsersLockInAProgramWithSetuid(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	own, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(own)
	if err != nil {
		t.Fatal(err)
	}
	for owner, setuid := range map[int]bool{0: true, 1: false} {
		dir := t.TempDir()
		program := filepath.Join(dir, "su")
		if err := errors.Join(os.WriteFile(program, text, 0o755), os.Chown(program, owner, 0), os.Chmod(program, 0o755|os.ModeSetuid), os.Chmod(dir, 0o755), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(program)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), childMode+"=lock")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		child := quelltest.StartChild(t, cmd, "")
		if said := child.Hear(); said != "locked" {
			t.Fatal(said)
		}
		want := Holder{PID: child.PID, UID: owner, Name: "su", Setuid: setuid}
		l, err := LockMachine([]string{dir})
		if err != nil || !slices.Equal(l.Ignored, []Holder{want}) {
			t.Fatalf("%+v, %v, want %+v", l, err, want)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// childLock locks the working directory until its input ends.
func childLock() error {
	dir, err := os.Open(".")
	if err == nil {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	fmt.Println("locked")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func TestLockedBy(t *testing.T) {
	const text = `1: FLOCK  ADVISORY  WRITE 4711 00:1b:1 0 EOF
1: -> FLOCK  ADVISORY  WRITE 4712 00:1b:1 0 EOF
2: POSIX  ADVISORY  READ 4713 00:1b:1 0 EOF
3: FLOCK  ADVISORY  READ  4714 00:1b:1 0 EOF
4: FLOCK  ADVISORY  WRITE 4715 00:1b:12 0 EOF
5: OFDLCK ADVISORY  WRITE -1 00:1b:1 0 0
6: FLOCK  ADVISORY  WRITE -1 00:1b:1 0 EOF
torn
`
	if got := lockedBy([]byte(text), "00:1b:1"); !slices.Equal(got, []int{4711, 4714}) {
		t.Errorf("held by %v", got)
	}
	if name, uid := parseStatus([]byte("Name:\tquell-agent\nUmask:\t0077\nUid:\t1000\t7\t1000\t1000\n")); name != "quell-agent" || uid != 7 {
		t.Errorf("%q, %d", name, uid)
	}
	if _, uid := parseStatus(nil); uid != -1 {
		t.Errorf("uid %d of no status", uid)
	}
}

func FuzzLocks(f *testing.F) {
	f.Add([]byte("1: FLOCK  ADVISORY  WRITE 4711 00:1b:1 0 EOF\n"), []byte("Name:\tx\nUid:\t0\t0\t0\t0\n"))
	f.Fuzz(func(t *testing.T, locks, status []byte) {
		for _, pid := range lockedBy(locks, "00:1b:1") {
			if pid <= 0 {
				t.Errorf("pid %d", pid)
			}
		}
		parseStatus(status)
	})
}
