package quelltest

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// noPackage is what CI promises and no Debian package provides: capabilities of the
// machine and its kernel, Go itself, and what `make test-deps` builds or downloads.
const noPackage = `root two-cpus cgroups cgroup-v1 cgroup-v1-blkio cpuacct-apart cgroup-2 cgroup-freezer
	ebpf tracepoints perf-software schedstat psi inotify inotify-queue namespaces ipv6 procfs loop-device deadline disk
	c-compiler go versitygw guest-kernel`

// Every other promise is a program that deps.sh installs.
func TestPromisedProgramsAreInstalled(t *testing.T) {
	text, err := os.ReadFile("programs.txt")
	if err != nil {
		t.Fatal(err)
	}
	known := strings.Fields(noPackage)
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if len(f) != 3 || !slices.Contains([]string{"test", "guests", "browser", "packages", "prometheus", "soak"}, f[0]) {
			t.Fatalf("programs.txt: %q is not a suite, a program and a package", line)
		}
		known = append(known, f[1])
	}
	for _, name := range Promised() {
		if !slices.Contains(known, name) {
			t.Errorf("%s is promised, is not said to come without a package, and no suite installs it", name)
		}
	}
}

// TestDeps runs deps.sh with a PATH that has some programs, and an apt-get that records
// its calls and installs chromium and make.
func TestDeps(t *testing.T) {
	const update, install = "-o DPkg::Lock::Timeout=300 update -qq\n", "-o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "
	for _, c := range []struct{ name, has, args, out, apt string }{
		{"what is missing is installed, each once", "git stress-ng npm", "browser soak soak", "apt-get install chromium make", update + install + "chromium make\n"},
		{"nothing is missing", "git stress-ng make", "soak", "", ""},
		{"a package without its program", "git make", "soak", "apt-get install stress-ng\ndeps: still missing: stress-ng stress-ng", update + install + "stress-ng\n"},
		{"told only", "git", "-n soak", "not installed: make, stress-ng; tests that need them are skipped (make test-deps installs them)", ""},
		{"an unknown suite", "", "tset", `deps: unknown suite "tset": want test, guests, browser, packages, prometheus or soak`, ""},
		{"apt-get fails", "npm", "browser", "apt-get install chromium\ndeps: apt-get update -qq: no network", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range append(strings.Fields("awk dirname grep ln"), strings.Fields(c.has)...) {
				real, err := exec.LookPath(name)
				if err != nil {
					real = "/bin/true"
				}
				if err := os.Symlink(real, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			apt := "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\ncase \"$*\" in *install*chromium*) ln -s /bin/true " + dir + "/chromium; ln -s /bin/true " + dir + "/make;; esac\n"
			if strings.HasSuffix(c.out, "no network") {
				apt = "#!/bin/sh\necho no network; exit 100\n"
			}
			if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte(apt), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("/bin/sh", append([]string{"deps.sh"}, strings.Fields(c.args)...)...)
			cmd.Env = []string{"PATH=" + dir}
			out, err := cmd.CombinedOutput()
			calls, _ := os.ReadFile(filepath.Join(dir, "calls")) // it may not exist
			if got := strings.TrimSpace(string(out)); got != c.out || string(calls) != c.apt || (err != nil) != strings.Contains(c.out, "deps: ") {
				t.Errorf("it says %q and %v, and calls apt-get %q; want %q and %q", got, err, calls, c.out, c.apt)
			}
		})
	}
}
