package duck

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// reached is what a child says that tries to reach beyond its process.
type reached struct {
	Fences []string
	Worked []string // what no query may do
	Failed []string // what its libraries need
}

// reaches is a child that does what a defect of DuckDB might let a query do.
func reaches(dir string) error {
	fences, err := sandbox(dir)
	if err != nil {
		return err
	}
	r := reached{Fences: fences}
	parent := os.Getppid()
	socket := func(domain, kind int) func() error {
		return func() error {
			_, err := unix.Socket(domain, kind, 0)
			return err
		}
	}
	for name, try := range map[string]func() error{
		"start a program":        func() error { _, err := syscall.ForkExec("/proc/self/exe", []string{"none"}, nil); return err },
		"become another program": func() error { return syscall.Exec("/proc/self/exe", []string{"none"}, nil) },
		"fork":                   func() error { return errnoOf(unix.SYS_CLONE, uintptr(unix.SIGCHLD)) },
		"fork by clone3":         func() error { return errnoOf(unix.SYS_CLONE3, 0) },
		"signal another process": func() error { return unix.Kill(parent, 0) },
		"signal all":             func() error { return unix.Kill(-1, 0) },
		"signal its threads":     func() error { return unix.Tgkill(parent, parent, 0) },
		"attach to it":           func() error { return unix.PtraceSeize(parent) },
		"limit it":               func() error { return unix.Prlimit(parent, unix.RLIMIT_CORE, nil, &unix.Rlimit{}) },
		"a Unix socket":          socket(unix.AF_UNIX, unix.SOCK_STREAM),
		"UDP":                    socket(unix.AF_INET, unix.SOCK_DGRAM),
		"TCP":                    socket(unix.AF_INET6, unix.SOCK_STREAM),
		"netlink":                socket(unix.AF_NETLINK, unix.SOCK_RAW),
		"a file in memory":       func() error { _, err := unix.MemfdCreate("x", 0); return err },
		"new executable memory": func() error {
			_, err := unix.Mmap(-1, 0, 1<<12, unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
			return err
		},
		"remove a file":        func() error { return unix.Unlink(filepath.Join(dir, "kept")) },
		"rename a file":        func() error { return unix.Rename(filepath.Join(dir, "kept"), filepath.Join(dir, "gone")) },
		"change a file's mode": func() error { return unix.Chmod(filepath.Join(dir, "kept"), 0o777) },
	} {
		if err := try(); !errors.Is(err, unix.EPERM) && (name != "fork by clone3" || !errors.Is(err, unix.ENOSYS)) {
			r.Worked = append(r.Worked, name)
		}
	}
	var threads sync.WaitGroup
	for range 20 {
		threads.Go(func() {
			runtime.LockOSThread() // each in one of its own, which ends with it
			runtime.Gosched()
		})
	}
	threads.Wait()
	for name, try := range map[string]func() error{
		"signal itself": func() error { return unix.Kill(os.Getpid(), 0) },
		"limit itself":  func() error { return unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}) },
		"memory": func() error {
			_, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
			return err
		},
		"read its folder": func() error { _, err := os.ReadDir(dir); return err },
	} {
		if err := try(); err != nil {
			r.Failed = append(r.Failed, name+": "+err.Error())
		}
	}
	return json.NewEncoder(os.Stdout).Encode(&r)
}

// errnoOf makes a call that ends the process that it makes, if it makes one.
func errnoOf(call, arg uintptr) error {
	pid, _, errno := unix.RawSyscall6(call, arg, 0, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	if pid == 0 {
		unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
	}
	return nil
}

// TestAttackBeyondTheProcess: code that runs in the process of a query, if a defect of DuckDB lets it, starts no program,
// reaches no other process, opens no socket, and changes no file, also not where Landlock is missing.
func TestAttackBeyondTheProcess(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kept"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "query-child-reaches", dir)
	cmd.Env, cmd.Stderr = []string{}, os.Stderr
	text, err := cmd.Output()
	var r reached
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(r.Fences, "seccomp") {
		t.Log("no seccomp here: DuckDB's fence and Landlock remain")
		return
	}
	if len(r.Worked)+len(r.Failed) > 0 {
		t.Errorf("with %q it did: %q; and could not: %q", r.Fences, r.Worked, r.Failed)
	}
	if _, err := os.Stat(filepath.Join(dir, "kept")); err != nil {
		t.Error(err)
	}
}
