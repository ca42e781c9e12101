package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
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

// At returns the kernel of an image in a system, where modules and image are in the places of
// Debian's packages: boot/vmlinuz-RELEASE and lib/modules/RELEASE.
func At(image string) Kernel {
	_, release, _ := strings.Cut(filepath.Base(image), "-")
	return Kernel{Release: release, Image: image, Modules: filepath.Join(filepath.Dir(filepath.Dir(image)), "lib", "modules", release)}
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

// Module returns the files of a kernel module and its dependencies, in the order to load
// them; their Paths are for Init.Modules. A built-in module has none. names are without
// ".ko"; '_' and '-' are equivalent.
func (k Kernel) Module(names ...string) ([]File, error) {
	depends, err := k.readDep()
	if err != nil {
		return nil, fmt.Errorf("find modules of %s: %w", k.Release, err)
	}
	builtin, err := os.ReadFile(filepath.Join(k.Modules, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("find modules of %s: %w", k.Release, err)
	}
	var files []File
	for _, name := range names {
		line, ok := depends[moduleName(name)]
		if !ok {
			isIt := func(p string) bool { return moduleName(p) == moduleName(name) }
			if slices.ContainsFunc(strings.Fields(string(builtin)), isIt) {
				continue
			}
			return nil, fmt.Errorf("find modules of %s: no %s", k.Release, name)
		}
		// modules.dep lists the module first, then its dependencies in reverse order of
		// loading.
		for _, p := range slices.Backward(line) {
			f := File{Path: "/modules/" + path.Base(p), Mode: 0o644, From: filepath.Join(k.Modules, p)}
			if !slices.ContainsFunc(files, func(o File) bool { return o.Path == f.Path }) {
				files = append(files, f)
			}
		}
	}
	return files, nil
}

// readDep reads modules.dep: "kernel/a.ko: kernel/b.ko kernel/c.ko".
func (k Kernel) readDep() (map[string][]string, error) {
	f, err := os.Open(filepath.Join(k.Modules, "modules.dep"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &MissingError{"modules.dep of " + k.Image, "run depmod (apt-get install kmod) for that kernel; for one of the cache: go run ./internal/lab/guest/fetch -renew", err}
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	depends := map[string][]string{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		module, needs, _ := strings.Cut(lines.Text(), ":")
		depends[moduleName(module)] = append([]string{module}, strings.Fields(needs)...)
	}
	return depends, lines.Err()
}

// moduleName is the name of the module in a file.
func moduleName(p string) string {
	name, _, _ := strings.Cut(path.Base(p), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}
