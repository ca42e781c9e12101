package atomicfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrivateDir: an existing directory is closed to other users, and one that they may change
// is refused.
func TestPrivateDir(t *testing.T) {
	top := t.TempDir()
	made, open, shared := filepath.Join(top, "made"), filepath.Join(top, "open"), filepath.Join(top, "shared")
	for dir, mode := range map[string]os.FileMode{open: 0o755, shared: 0o777} {
		if err := os.Mkdir(dir, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{made, open} {
		if err := PrivateDir(dir); err != nil {
			t.Error(err)
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	for _, check := range []func(string) error{OwnDir, PrivateDir} {
		if err := check(shared); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
			t.Errorf("a directory for everyone: %v", err)
		}
	}
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := OwnDir(open); err != nil {
		t.Errorf("a directory that others may read: %v", err)
	}
}
