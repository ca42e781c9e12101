//go:build guests && packages

package guest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestRPMPackages installs the RPM packages into a tree with rpm, their scripts included, runs the
// programs there, and removes the packages. Dependencies are left out: the tree is Debian's.
func TestRPMPackages(t *testing.T) {
	tree := filepath.Join(t.TempDir(), "tree")
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.Command(name, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return string(out)
	}
	run("sh", "-c", `mkdir "$1" && cd "$1" && cpio --quiet -idm <"$2"`, "sh", tree, debianTree(t))
	run("mkdir", "-p", tree+"/var/lib/rpm")
	rpm := func(args ...string) string {
		t.Helper()
		return run("rpm", append([]string{"--root", tree, "--dbpath", "/var/lib/rpm"}, args...)...)
	}
	files := func() map[string]bool {
		all := map[string]bool{}
		err := filepath.WalkDir(tree, func(name string, _ fs.DirEntry, err error) error {
			if name == tree+"/var/lib/rpm" {
				return fs.SkipDir
			}
			all[strings.TrimPrefix(name, tree)] = true
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := files()
	var packed []string
	for _, name := range []string{"quell", "quell-server"} {
		all, err := filepath.Glob(filepath.Join(*packages, name+"-[0-9]*.x86_64.rpm"))
		if err != nil || len(all) != 1 {
			t.Fatalf("%s in %s: %q, %v", name, *packages, all, err)
		}
		packed = append(packed, all[0])
	}
	rpm(append([]string{"-i", "--nodeps"}, packed...)...)

	for program, version := range map[string]string{"quell": "version", "quell-agent": "--version", "quell-server": "--version"} {
		run("chroot", tree, program, version)
	}
	run("chroot", tree, "quell-server", "config", "--config", "/etc/quell/server.yaml")
	if out := run("chroot", tree, "stat", "-c", "%U:%G %a", "/etc/quell/server.yaml"); out != "root:quell-server 640\n" {
		t.Errorf("the script after the installation left server.yaml to %s", out)
	}
	// The script changes the owner of that file only.
	out, _ := exec.Command("rpm", "--root", tree, "--dbpath", "/var/lib/rpm", "-V", "--nodeps", "quell", "quell-server").CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if !strings.HasSuffix(line, " /etc/quell/server.yaml\n") {
			t.Errorf("rpm -V: %s", line)
		}
	}
	rpm("-e", "quell", "quell-server")
	var left []string
	for name := range files() {
		// What systemd-sysusers itself leaves; the user stays, as for other RPM packages.
		if !before[name] && !(strings.HasPrefix(name, "/etc/") && strings.HasSuffix(name, "-")) {
			left = append(left, name)
		}
	}
	if slices.Sort(left); len(left) > 0 {
		t.Errorf("rpm -e left:\n%s", strings.Join(left, "\n"))
	}
	if _, err := os.Stat(tree + "/usr/bin/quell"); !os.IsNotExist(err) {
		t.Errorf("rpm -e left quell: %v", err)
	}
}
