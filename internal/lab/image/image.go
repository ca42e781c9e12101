package image

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/quell-dev/quell/internal/lab/guest"
)

// Image is what a guest boots.
type Image struct {
	Disk   string
	Format string // of the disk: qcow2 or raw
	// Kernel and Initrd are empty for an image that boots by firmware.
	Kernel, Initrd string
}

// Names of an image's files in its folder.
const (
	diskFile   = "disk.img"
	kernelFile = "vmlinuz"
	initrdFile = "initrd.img"
)

// folder returns where Build stores the image of a name.
func folder(name string) (string, error) {
	cache, err := guest.CacheDir()
	return filepath.Join(cache, "images", name), err
}

// Find returns the image of a study's image and kernel. An image is a disk's file or the
// name of an image that Build has made; a kernel other than the image's has its initrd in
// the same folder, named as Debian does. What is not there is a *guest.MissingError.
func Find(name, kernel string) (Image, error) {
	i := Image{Disk: name}
	if !strings.ContainsRune(name, '/') {
		dir, err := folder(name)
		if err != nil {
			return i, err
		}
		if _, err := os.Stat(dir); err == nil {
			i = Image{Disk: filepath.Join(dir, diskFile), Kernel: filepath.Join(dir, kernelFile), Initrd: filepath.Join(dir, initrdFile)}
		}
	}
	if kernel != "" {
		i.Kernel, i.Initrd = kernel, filepath.Join(filepath.Dir(kernel), strings.Replace(filepath.Base(kernel), "vmlinuz", "initrd.img", 1))
	}
	for _, file := range []string{i.Disk, i.Kernel, i.Initrd} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return i, &guest.MissingError{What: fmt.Sprintf("file %s of image %q", file, name), Remedy: "make it with quell lab image build NAME, as the user that runs the lab (each has a cache of its own, root too), and write image: NAME, or give the path of a disk with cloud-init, as clouds have them", Err: err}
		}
	}
	var err error
	i.Format, err = format(i.Disk)
	return i, err
}

// format returns the format of a disk by its first bytes (QEMU's docs/interop/qcow2.txt).
func format(disk string) (string, error) {
	head, err := header(disk)
	if err == nil && bytes.HasPrefix(head, []byte("QFI\xfb")) {
		return "qcow2", nil
	}
	return "raw", err
}

// header returns the first bytes of a disk, at most as many as tell a qcow2 image's size.
func header(disk string) ([]byte, error) {
	f, err := os.Open(disk)
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, 32))
	if err != nil {
		return nil, fmt.Errorf("read image: %w", err)
	}
	return head, nil
}

// Size is the size of the disk that a guest sees, in bytes.
func (i *Image) Size() (int64, error) {
	if i.Format == "qcow2" {
		head, err := header(i.Disk)
		if err == nil && len(head) < 32 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return 0, fmt.Errorf("read the size of image %s: %w", i.Disk, err)
		}
		return int64(binary.BigEndian.Uint64(head[24:])), nil
	}
	info, err := os.Stat(i.Disk)
	if err != nil {
		return 0, fmt.Errorf("read image: %w", err)
	}
	return info.Size(), nil
}

// ID changes when the image does: results of different images must not be mixed.
func (i *Image) ID() string {
	info, err := os.Stat(i.Disk)
	if err != nil {
		return fs.ErrNotExist.Error()
	}
	return fmt.Sprintf("%d-%d", info.Size(), info.ModTime().Unix())
}
