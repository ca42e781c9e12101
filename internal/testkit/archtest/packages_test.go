package archtest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// An operator has removed /etc/quell/server.yaml, since the unit's drop-in names another file. dpkg does not
// bring it back, and the package is upgraded all the same.
func TestTheServersPackageWithoutItsConfiguration(t *testing.T) {
	if _, err := os.Stat("/etc/quell/server.yaml"); !errors.Is(err, fs.ErrNotExist) {
		t.Skip("this machine has /etc/quell/server.yaml")
	}
	dir := t.TempDir()
	for name, script := range map[string]string{
		"systemd-sysusers": "exit 0", "systemctl": "exit 0",
		"chown": "[ -e \"$2\" ]", "chmod": "[ -e \"$2\" ]", // as the real ones, and nothing is changed
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("sh", root+"/deploy/packages/quell-server.postinst", "configure", "1.0")
	cmd.Env = []string{"PATH=" + dir}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
