//go:build guests && packages

package guest

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var packages = flag.String("packages", "", "the directory of the packages that TestPackages installs (make test-packages)")

// TestPackages installs, uses, upgrades, downgrades, removes and purges the Debian packages in a
// fresh Debian with systemd.
func TestPackages(t *testing.T) {
	const pkg = "internal/lab/guest/inside/packages"
	b := box{
		Machine:  Machine{Arch: AMD64, InstructionNS: 8, MemoryMB: 3072, Append: "rdinit=/lib/systemd/systemd systemd.unit=test.target systemd.show_status=0 systemd.log_target=kmsg"},
		base:     debianTree(t),
		deadline: 55 * time.Minute, // long enough on a busy host
		tests:    []insideTest{{pkg: pkg}},
	}
	for _, name := range []string{"quell", "quell-server"} {
		for i, deb := range versions(t, name) {
			b.files = append(b.files, File{Path: fmt.Sprintf("/debs/%s_%d.deb", name, i+1), Mode: 0o644, From: deb})
		}
	}
	for name, text := range map[string]string{
		"/etc/systemd/system/test.target": "[Unit]\nRequires=multi-user.target web.service test.service\nAfter=multi-user.target\n",
		// It listens, as a server does.
		"/etc/systemd/system/web.service":  "[Service]\nExecStart=/tests/0-packages.test web\n",
		"/etc/systemd/system/test.service": "[Service]\nType=oneshot\nTimeoutStartSec=infinity\nStandardOutput=tty\nStandardError=tty\nExecStart=/bin/sh /tests/run\n",
		"/tests/run":                       "/tests/0-packages.test -test.v=test2json -test.timeout=30m\ncode=$?\necho\necho GUEST-EXIT $code\nsystemctl poweroff --force --force\n",
	} {
		b.files = append(b.files, File{Path: name, Mode: 0o644, Data: []byte(text)})
	}
	b.run(t)
}

// versions are a package as it was built, and the same with a later version.
func versions(t *testing.T, name string) [2]string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(*packages, name+"_*_amd64.deb"))
	if err != nil || len(all) != 1 {
		t.Fatalf("%s in %s: %q, %v", name, *packages, all, err)
	}
	dir := t.TempDir()
	tree, later := filepath.Join(dir, "tree"), filepath.Join(dir, name+".deb")
	if out, err := exec.Command("dpkg-deb", "-R", all[0], tree).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	control := filepath.Join(tree, "DEBIAN", "control")
	text, err := os.ReadFile(control)
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^Version: .*$`)
	if !version.Match(text) {
		t.Fatalf("no version in\n%s", text)
	}
	text = version.ReplaceAllFunc(text, func(line []byte) []byte { return []byte(strings.TrimSpace(string(line)) + "+later") })
	if err := os.WriteFile(control, text, 0o644); err != nil {
		t.Fatal(err)
	}
	// Of a package without configuration files nfpm writes an empty line, which dpkg-deb refuses to pack.
	conffiles := filepath.Join(tree, "DEBIAN", "conffiles")
	if text, err := os.ReadFile(conffiles); err == nil && len(strings.TrimSpace(string(text))) == 0 {
		if err := os.Remove(conffiles); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", tree, later).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return [2]string{all[0], later}
}
