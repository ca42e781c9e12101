// Command deps installs the programs that the test suites run, as Debian
// packages, with apt-get. It does nothing if all are installed.
//
//	deps [-n] [SUITE …]
//
// Suites are test, guests, browser and soak; all if none is named. With -n it
// prints in one line what is missing, and installs nothing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
)

// program is found in PATH and comes with a Debian package.
type program struct{ name, pkg string }

// suite is a target of make and the programs that its tests run.
type suite struct {
	name     string
	programs []program
}

func suites() []suite {
	return []suite{
		{"test", []program{
			// -race and DuckDB are linked with C and C++.
			{"gcc", "gcc"}, {"g++", "g++"}, {"make", "make"}, {"git", "git"},
			{"cc", "gcc"}, {"nm", "binutils"}, {"readelf", "binutils"},
			// The writers of docs/progress-file.md.
			{"dd", "coreutils"}, {"sh", "dash"}, {"python3", "python3"}, {"java", "default-jdk-headless"}, {"javac", "default-jdk-headless"}, {"rustc", "rustc"},
			// Networks, namespaces, other hosts.
			{"ip", "iproute2"}, {"tc", "iproute2"}, {"nsenter", "util-linux"}, {"unshare", "util-linux"}, {"setpriv", "util-linux"},
			{"sshd", "openssh-server"}, {"ssh-keygen", "openssh-client"},
			// The lab's environments.
			{"lxc-start", "lxc"}, {"qemu-system-x86_64", "qemu-system-x86"}, {"cpio", "cpio"},
		}},
		{"guests", []program{
			{"qemu-system-x86_64", "qemu-system-x86"}, {"qemu-system-aarch64", "qemu-system-arm"}, {"depmod", "kmod"}, {"xz", "xz-utils"},
			// The host's systemd is PID 1 of a guest.
			{"systemctl", "systemd"}, {"systemd-analyze", "systemd"},
			// The module of internal/lab/guest/fakepmu.
			{"make", "make"}, {"gcc", "gcc"}, {"aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"},
		}},
		{"browser", []program{{"chromium", "chromium"}}},
		{"soak", []program{{"git", "git"}, {"make", "make"}, {"stress-ng", "stress-ng"}}},
	}
}

func main() {
	tell := flag.Bool("n", false, "only print what is missing")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Stdout, flag.Args(), *tell, lacks, aptGet); err != nil {
		fmt.Fprintln(os.Stderr, "deps:", err)
		os.Exit(1)
	}
}

// run finds the programs of the named suites that the machine lacks, installs
// their packages unless tell is set, and looks for them again.
func run(ctx context.Context, w io.Writer, names []string, tell bool, lacks func(string) bool, apt func(context.Context, ...string) error) error {
	programs, err := of(names)
	if err != nil {
		return err
	}
	missing, packages := find(programs, lacks)
	switch {
	case len(missing) == 0:
		return nil
	case tell:
		fmt.Fprintf(w, "not installed: %s; tests that need them are skipped (make test-deps installs them)\n", strings.Join(missing, ", "))
		return nil
	}
	fmt.Fprintf(w, "apt-get install %s\n", strings.Join(packages, " "))
	if err := apt(ctx, "update", "-qq"); err != nil {
		return err
	}
	if err := apt(ctx, append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...)...); err != nil {
		return err
	}
	if missing, _ := find(programs, lacks); len(missing) > 0 {
		return fmt.Errorf("still missing: %s", strings.Join(missing, ", "))
	}
	return nil
}

// of returns the programs of the named suites, or of all.
func of(names []string) (programs []program, err error) {
	known := suites()
	for _, name := range names {
		if !slices.ContainsFunc(known, func(s suite) bool { return s.name == name }) {
			err = errors.Join(err, fmt.Errorf("unknown suite %q: want test, guests, browser or soak", name))
		}
	}
	for _, s := range known {
		if len(names) == 0 || slices.Contains(names, s.name) {
			programs = append(programs, s.programs...)
		}
	}
	return programs, err
}

// find returns the programs that are missing, and their packages, each once.
func find(programs []program, lacks func(string) bool) (missing, packages []string) {
	for _, p := range programs {
		if !slices.Contains(missing, p.name) && lacks(p.name) {
			missing = append(missing, p.name)
			if !slices.Contains(packages, p.pkg) {
				packages = append(packages, p.pkg)
			}
		}
	}
	return missing, packages
}

func lacks(name string) bool {
	_, err := exec.LookPath(name)
	return err != nil
}

// aptGet waits for another apt-get to end, and does not prompt.
func aptGet(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-o", "DPkg::Lock::Timeout=300"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
