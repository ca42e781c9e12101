// Command init is PID 1 of a guest: it mounts the kernel's file systems, sets the
// loopback interface up, executes /init.json (guest.Init), prints
//
//	GUEST-EXIT n
//
// with 0 or the first other exit status of the programs, and powers the machine off. It
// is built static, for the guest's architecture.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/quell-dev/quell/internal/lab/guest"
	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "init: works only as PID 1 of a guest: at the end it powers the machine off")
		os.Exit(2)
	}
	status, err := run()
	if err != nil {
		fmt.Println("init:", err)
		status = max(status, 1)
	}
	fmt.Printf("\nGUEST-EXIT %d\n", status)
	// Drain the UART's line before its device is gone.
	if console, err := unix.Open("/dev/console", unix.O_WRONLY, 0); err == nil {
		unix.IoctlSetInt(console, unix.TCSBRK, 1)
	}
	unix.Sync()
	err = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	fmt.Println("init: power off:", err)
	select {} // PID 1 must not end
}

// mounts are pairs of file system and mount point.
var mounts = [][2]string{
	{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
	{"cgroup2", "/sys/fs/cgroup"}, {"bpf", "/sys/fs/bpf"}, {"tracefs", "/sys/kernel/tracing"},
}

func run() (status int, err error) {
	for _, m := range mounts {
		if err := os.MkdirAll(m[1], 0o755); err != nil {
			return 1, err
		}
		// The kernel may have mounted devtmpfs itself.
		if err := unix.Mount(m[0], m[1], m[0], 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
			return 1, fmt.Errorf("mount %s: %w", m[1], err)
		}
	}
	if err := loopback(); err != nil {
		return 1, fmt.Errorf("set the loopback interface up: %w", err)
	}
	text, err := os.ReadFile(guest.InitConfig)
	if err != nil {
		return 1, err
	}
	var config guest.Init
	if err := json.Unmarshal(text, &config); err != nil {
		return 1, fmt.Errorf("read %s: %w", guest.InitConfig, err)
	}
	for _, m := range config.Modules {
		if err := load(m); err != nil {
			return 1, err
		}
	}
	if !config.BareCgroups {
		if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+cpuset +cpu +io +memory +pids"), 0); err != nil {
			return 1, err
		}
	}
	for _, args := range config.Run {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr, cmd.Dir = os.Stdout, os.Stdout, "/tmp"
		cmd.Env = append(append(os.Environ(), "PATH=/bin:/sbin", "HOME=/tmp"), config.Env...)
		if err := cmd.Run(); err != nil {
			fmt.Printf("init: %s: %v\n", args[0], err)
			code := 1
			if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() > 0 {
				code = exit.ExitCode()
			}
			if status == 0 {
				status = code
			}
		}
	}
	return status, nil
}

func loopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// load loads a module: its path and, after a space, its parameters.
func load(module string) error {
	path, params, _ := strings.Cut(module, " ")
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("load module: %w", err)
	}
	defer f.Close()
	if err := unix.FinitModule(int(f.Fd()), params, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load module %s: %w", module, err)
	}
	return nil
}
