package guest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Kernel is a kernel in the cache, in the layout of its packages.
type Kernel struct {
	Arch    Arch
	Release string // output of uname -r: "6.1.0-50-cloud-arm64"
	Image   string // path of the image to boot
	Modules string // directory of its modules, with modules.dep
	Headers string // directory to build modules against: make -C
}

// CacheDir is where Fetch stores kernels: quell/guest below the user's cache.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache of guest kernels: %w", err)
	}
	return filepath.Join(dir, "quell", "guest"), nil
}

// Find returns the kernel of an architecture from the cache. Without one the error is a
// *MissingError.
func Find(arch Arch) (Kernel, error) {
	cache, err := CacheDir()
	if err != nil {
		return Kernel{}, err
	}
	return find(cache, arch)
}

// find reads the tree that Fetch has stored at arch below the cache.
func find(cache string, arch Arch) (Kernel, error) {
	tree := filepath.Join(cache, string(arch))
	images, err := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if err == nil && len(images) == 0 {
		err = fmt.Errorf("no boot/vmlinuz-* in %s: %w", tree, fs.ErrNotExist)
	}
	if err != nil {
		return Kernel{}, fmt.Errorf("find kernel: %w", &MissingError{"a kernel for " + string(arch) + " guests", "go run ./internal/lab/guest/fetch", err})
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return Kernel{Arch: arch, Release: release, Image: images[0],
		Modules: filepath.Join(tree, "lib", "modules", release),
		Headers: filepath.Join(tree, "usr", "src", "linux-headers-"+release)}, nil
}
