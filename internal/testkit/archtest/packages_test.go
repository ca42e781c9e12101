package archtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maintain runs a script of a package as dpkg does, on a machine with systemd and an empty /etc/quell. The
// programs that it calls are stubs: of each the text of a script.
func maintain(t *testing.T, name string, programs map[string]string, args ...string) (string, error) {
	t.Helper()
	text, err := os.ReadFile(root + "/deploy/packages/" + name)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	here := strings.NewReplacer("/run/systemd/system", dir, "/etc/quell", dir+"/etc/quell").Replace(string(text))
	cmd := exec.Command("sh", append([]string{"-c", here, name}, args...)...)
	cmd.Env = []string{"PATH=" + dir}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// An operator has removed /etc/quell/server.yaml, since the unit's drop-in names another file. dpkg does not
// bring it back, and the package is upgraded all the same.
func TestTheServersPackageWithoutItsConfiguration(t *testing.T) {
	there := `[ -e "$2" ]` // as the real ones, and nothing is changed
	if out, err := maintain(t, "quell-server.postinst", map[string]string{"systemd-sysusers": "exit 0", "systemctl": "exit 0", "chown": there, "chmod": there}, "configure", "1.0"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// A program that does not start again after an upgrade, for example because of its configuration, is said,
// and leaves no package half configured.
func TestAnUpgradeOfWhatDoesNotStart(t *testing.T) {
	for name, unit := range map[string]string{"quell.postinst": "quell-agent", "quell-server.postinst": "quell-server"} {
		out, err := maintain(t, name, map[string]string{"systemd-sysusers": "exit 0", "systemctl": `[ "$1" != try-restart ]`}, "configure", "1.0")
		if err != nil || !strings.Contains(out, "journalctl -u "+unit) {
			t.Errorf("%s: %v: %q", name, err, out)
		}
	}
}
