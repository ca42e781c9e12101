//go:build guests && xen

package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Xen is Debian's Xen in the cache: a hypervisor that QEMU boots, a kernel for all of its
// domains, and the toolstack with its libraries. Nothing of it is installed on the host.
type Xen struct {
	Hypervisor string // ELF image, for Machine.Kernel
	Kernel     Kernel // Image is also an ELF image, which TCG need not unpack
	tree       string
}

// Names in the cache; xenKernel is the kernel's unpacked image.
const (
	xenFolder     = "xen"
	xenKernel     = "vmlinux"
	xenHypervisor = "xen"
)

// fetchXen returns the Xen in the cache. If there is none it downloads it: about 110 MB of
// Debian's packages for amd64, unpacked. It includes the generic kernel, because the
// cloud kernels of Fetch cannot be the first domain's (CONFIG_XEN_DOM0).
func fetchXen(ctx context.Context, log io.Writer) (x Xen, err error) {
	err = withCacheLock(ctx, func(cache string) bool {
		x, err = findXen(filepath.Join(cache, xenFolder))
		return err == nil
	}, func(cache string, d *debian) error {
		release, err := d.xen(filepath.Join(d.dir, xenFolder))
		if err != nil {
			return fmt.Errorf("fetch Xen: %w", err)
		}
		place := filepath.Join(cache, xenFolder)
		if err := os.RemoveAll(place); err != nil {
			return fmt.Errorf("fetch Xen: %w", err)
		}
		if err := os.Rename(filepath.Join(d.dir, xenFolder), place); err != nil {
			return fmt.Errorf("fetch Xen: %w", err)
		}
		fmt.Fprintf(log, "Xen for amd64, with kernel %s\n", release)
		x, err = findXen(place)
		return err
	})
	return x, err
}

func findXen(tree string) (Xen, error) {
	x := Xen{Hypervisor: filepath.Join(tree, xenHypervisor), tree: tree}
	for _, p := range []string{x.Hypervisor, filepath.Join(tree, xenKernel)} {
		if _, err := os.Stat(p); err != nil {
			return x, fmt.Errorf("find Xen: %w", err)
		}
	}
	dirs, err := filepath.Glob(filepath.Join(tree, "lib", "modules", "*"))
	if err == nil && len(dirs) != 1 {
		err = fmt.Errorf("%d kernels' modules in %s, want one", len(dirs), tree)
	}
	if err != nil {
		return x, fmt.Errorf("find Xen: %w", err)
	}
	x.Kernel = Kernel{Arch: AMD64, Release: filepath.Base(dirs[0]), Image: filepath.Join(tree, xenKernel), Modules: dirs[0]}
	return x, nil
}

// xen downloads and unpacks Xen into a folder and returns its kernel's release.
func (d *debian) xen(tree string) (release string, err error) {
	const foreign = ":" + string(AMD64)
	versioned, err := d.depends("xen-system-amd64"+foreign, "xen-hypervisor-4", "xen-utils-4")
	if err != nil {
		return "", err
	}
	image, err := d.depends("linux-image-amd64"+foreign, "linux-image-")
	if err != nil {
		return "", err
	}
	packages := append(versioned, image[0], "xenstore-utils", "busybox-static")
	libraries, err := d.libraries("xenstore-utils", versioned[1])
	if err != nil {
		return "", err
	}
	packages = append(packages, libraries...)
	if err := d.unpack(tree, packages, foreign); err != nil {
		return "", err
	}
	release = strings.TrimPrefix(image[0], "linux-image-")
	if _, err := d.run("depmod", "-b", tree, release); err != nil {
		return "", err
	}
	if err := d.vmlinux(filepath.Join(tree, "boot", "vmlinuz-"+release), filepath.Join(tree, xenKernel)); err != nil {
		return "", err
	}
	hypervisors, err := filepath.Glob(filepath.Join(tree, "boot", "xen-*-amd64.gz"))
	if err == nil && len(hypervisors) != 1 {
		err = fmt.Errorf("%d hypervisors in %s/boot, want one", len(hypervisors), tree)
	}
	if err != nil {
		return "", err
	}
	plain, err := d.run("gzip", "-dc", hypervisors[0])
	if err != nil {
		return "", err
	}
	return release, os.WriteFile(filepath.Join(tree, xenHypervisor), plain, 0o644)
}

// libraries are the library packages that these packages depend on, directly or
// indirectly.
func (d *debian) libraries(packages ...string) (all []string, err error) {
	for next := packages; len(next) > 0; {
		args := []string{"depends", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"}
		for _, p := range next {
			args = append(args, p+":"+string(AMD64))
		}
		out, err := d.apt("apt-cache", args...)
		if err != nil {
			return nil, err
		}
		next = nil
		for line := range strings.Lines(string(out)) {
			_, name, found := strings.Cut(line, "Depends: ")
			name, _, _ = strings.Cut(strings.TrimSpace(name), ":")
			if found && (strings.HasPrefix(name, "lib") || strings.HasPrefix(name, "zlib")) && !slices.Contains(all, name) {
				all, next = append(all, name), append(next, name)
			}
		}
	}
	return all, nil
}

// vmlinux writes the ELF image in a bzImage; the header has its position
// (Documentation/arch/x86/boot.rst, payload_offset).
func (d *debian) vmlinux(bzImage, to string) error {
	image, err := os.ReadFile(bzImage)
	if err != nil {
		return err
	}
	packed, err := payload(image)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", bzImage, err)
	}
	program := "xz"
	if bytes.HasPrefix(packed, []byte("\x28\xb5\x2f\xfd")) {
		program = "zstd"
	}
	if err := os.WriteFile(to, packed, 0o644); err != nil {
		return err
	}
	plain, err := d.run(program, "-dc", to)
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(plain, []byte(elf.ELFMAG)) {
		return fmt.Errorf("unpack %s: no ELF image in it", bzImage)
	}
	return os.WriteFile(to, plain, 0o644)
}

// payload is the compressed kernel in a bzImage, without the size of the unpacked kernel
// that follows it.
func payload(image []byte) ([]byte, error) {
	const sectsAt, offsetAt, lengthAt, end = 0x1f1, 0x248, 0x24c, 0x250
	if len(image) < end || string(image[0x202:0x206]) != "HdrS" {
		return nil, errors.New("not a bzImage")
	}
	sects := int(image[sectsAt])
	if sects == 0 {
		sects = 4
	}
	from := (sects+1)*512 + int(binary.LittleEndian.Uint32(image[offsetAt:]))
	to := from + int(binary.LittleEndian.Uint32(image[lengthAt:])) - 4
	if from >= to || to > len(image) {
		return nil, fmt.Errorf("payload from byte %d to %d, image of %d bytes", from, to, len(image))
	}
	return image[from:to], nil
}
