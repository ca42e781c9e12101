//go:build guests && (packages || node)

package guest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// debianTree is a minimal Debian with systemd and apt, as a cpio archive in the cache.
func debianTree(t *testing.T) string {
	t.Helper()
	cache, err := CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(cache, "debian-bookworm.cpio")
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	dir := t.TempDir()
	script := `set -e
mmdebstrap --quiet --variant=apt --include=systemd,systemd-sysv,libstdc++6,iproute2,procps \
	--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
	--dpkgopt='path-include=/usr/share/doc/quell*' --dpkgopt='path-include=/usr/share/man/man*/quell*' bookworm "$1/tree"
rm -rf "$1"/tree/var/lib/apt/lists/* "$1"/tree/var/cache/apt/*
cd "$1/tree" && find . | cpio --quiet -o -H newc >"$2.new" && mv "$2.new" "$2"`
	if out, err := exec.Command("sh", "-c", script, "sh", dir, archive).CombinedOutput(); err != nil {
		t.Fatalf("make a Debian tree: %v\n%s", err, out)
	}
	return archive
}
