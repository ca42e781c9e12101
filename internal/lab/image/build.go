package image

import (
	"context"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/role"
)

// Options say what an image has. The zero value is the image of the shipped studies.
type Options struct {
	Packages []string // more of Debian's packages
	Bench    string   // folder with more programs for /bench/programs; "": none
	Size     int64    // of the disk, bytes; 0: 2 GiB
	// Log, if not nil, receives the steps of the work.
	Log func(line string)

	apt string // apt's configuration; "": /etc/apt
}

// packages are what the contract needs: a system that cloud-init sets up and that is
// reached by SSH, and the programs of the shipped studies.
var packages = []string{"linux-image-cloud-" + runtime.GOARCH, "initramfs-tools", "systemd-sysv", "udev", "cloud-init", "cloud-guest-utils", "fdisk",
	"openssh-server", "iproute2", "ca-certificates", "sysbench", "stress-ng", "nginx-light"}

//go:embed files
var files embed.FS

// initrdModules are the drivers of disks in the initrd. Debian's default, all drivers, is
// 30 MB, which an emulated CPU unpacks for half a minute.
const initrdModules = "virtio_pci\nvirtio_blk\nvirtio_scsi\nsd_mod\nnvme\nxen-blkfront\next4\n"

// cloudConfig leaves out what a guest of some minutes has no use for: each module is Python
// that an emulated CPU imports for a second.
const cloudConfig = `datasource_list: [NoCloud, None]
manage_etc_hosts: true
apt_preserve_sources_list: true
cloud_init_modules: [write-files, growpart, resizefs, set_hostname, update_etc_hosts, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user]
`

// masked are units that would delay a guest's boot or work during its runs.
const masked = "systemd-networkd-wait-online.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer dpkg-db-backup.timer nginx.service"

// Build makes an image of a name: Debian's packages, from the archive that apt is configured
// for, in a file system on a disk with one partition. An older image of that name is
// replaced when the new one is complete. It needs root.
func Build(ctx context.Context, name string, o Options) (Image, error) {
	i, err := build(ctx, name, &o)
	if err != nil {
		return i, fmt.Errorf("build image %s: %w", name, err)
	}
	return i, nil
}

func build(ctx context.Context, name string, o *Options) (i Image, err error) {
	if o.Size == 0 {
		o.Size = 2 << 30
	}
	if o.apt == "" {
		o.apt = "/etc/apt"
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	for program, pkg := range map[string]string{"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs"} {
		if _, err := exec.LookPath(program); err != nil {
			return i, &guest.MissingError{What: program, Remedy: "apt-get install " + pkg, Err: err}
		}
	}
	place, err := folder(name)
	if err != nil {
		return i, err
	}
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		return i, err
	}
	work := filepath.Join(filepath.Dir(place), ".build-"+name)
	// The lock says whether a folder of that name belongs to a living process.
	lock, err := lockFile(work + ".lock")
	if err != nil {
		return i, err
	}
	defer lock.Close()
	if err := os.RemoveAll(work); err != nil {
		return i, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work), os.Remove(lock.Name())) }()
	if err := os.Mkdir(work, 0o755); err != nil {
		return i, err
	}
	tree := filepath.Join(work, "tree")
	if err := install(ctx, work, tree, o); err != nil {
		return i, err
	}
	o.Log("writing the disk")
	if err := disk(ctx, filepath.Join(work, diskFile), tree, o.Size); err != nil {
		return i, err
	}
	if err := os.RemoveAll(tree); err != nil {
		return i, err
	}
	if err := replace(work, place); err != nil {
		return i, err
	}
	return Find(name, "")
}

// lockFile locks a file that its holder removes: a process that opened it before that and locks it
// afterwards has locked what has no name any more, while the next one makes another.
func lockFile(name string) (*os.File, error) {
	for {
		lock, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return nil, errors.Join(fmt.Errorf("another process builds it (%s): %w", name, err), lock.Close())
		}
		mine, err := lock.Stat()
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		if there, err := os.Stat(name); err == nil && os.SameFile(mine, there) {
			return lock, nil
		}
		if err := lock.Close(); err != nil {
			return nil, err
		}
	}
}

// replace gives a folder the name place. At every instant, also of a crash, a folder of that name is
// complete: the old one or the new one, which change their names with each other. On file systems
// that cannot do that there is none for a moment: NFS, and overlayfs with a folder of a lower layer.
func replace(work, place string) error {
	err := unix.Renameat2(unix.AT_FDCWD, work, unix.AT_FDCWD, place, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, unix.ENOENT): // there is no old one
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EXDEV):
		if err := os.RemoveAll(place); err != nil {
			return err
		}
	default:
		return err // the caller removes what is in work now
	}
	return os.Rename(work, place)
}

// install unpacks the packages into a tree and configures them, and takes the kernel and
// the initrd out of it.
func install(ctx context.Context, work, tree string, o *Options) error {
	extra := filepath.Join(work, "extra")
	for to, text := range map[string]string{
		"etc/initramfs-tools/conf.d/quell":          "MODULES=list\n",
		"usr/share/initramfs-tools/modules.d/quell": initrdModules,
		"etc/cloud/cloud.cfg.d/90_quell.cfg":        cloudConfig,
		"etc/fstab":                                 "LABEL=" + rootLabel + " / ext4 defaults 0 1\n",
		"etc/dpkg/dpkg.cfg.d/quell":                 "path-exclude=/usr/share/doc/*\npath-exclude=/usr/share/man/*\npath-exclude=/usr/share/locale/*\n",
	} {
		if err := write(filepath.Join(extra, to), text, 0o644); err != nil {
			return err
		}
	}
	err := fs.WalkDir(files, "files", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		to := filepath.Join(extra, "bench", "programs", d.Name())
		if d.Name() == "run" {
			to = filepath.Join(extra, "bench", "run")
		}
		return write(to, string(text), 0o755)
	})
	if err != nil {
		return err
	}
	if o.Bench != "" {
		if err := os.CopyFS(filepath.Join(extra, "bench", "programs"), os.DirFS(o.Bench)); err != nil {
			return fmt.Errorf("copy benchmarks: %w", err)
		}
	}
	sources, err := sources(o.apt)
	if err != nil {
		return err
	}
	args := []string{"--variant=minbase", "--mode=root", "--format=directory", "--include=" + strings.Join(slices.Concat(packages, o.Packages), ","),
		"--setup-hook=cp -r '" + extra + "/.' \"$1\"",
		"--customize-hook=chroot \"$1\" systemctl --quiet enable systemd-networkd && chroot \"$1\" systemctl --quiet mask " + masked,
		"--customize-hook=rm -f \"$1\"/etc/ssh/ssh_host_* \"$1\"/etc/machine-id && touch \"$1\"/etc/machine-id",
		"", tree}
	o.Log("installing " + fmt.Sprint(len(packages)+len(o.Packages)) + " packages and what they need")
	if err := run(ctx, o.Log, "mmdebstrap", append(args, sources...)...); err != nil {
		return err
	}
	for file, pattern := range map[string]string{kernelFile: "vmlinuz-*", initrdFile: "initrd.img-*"} {
		all, err := filepath.Glob(filepath.Join(tree, "boot", pattern))
		if err == nil && len(all) != 1 {
			err = fmt.Errorf("%d files boot/%s, want one", len(all), pattern)
		}
		if err == nil {
			err = copyFile(filepath.Join(work, file), all[0])
		}
		if err != nil {
			return err
		}
	}
	return os.RemoveAll(extra)
}

// sources returns the files that say where apt gets packages from.
func sources(apt string) (all []string, err error) {
	for _, pattern := range []string{"sources.list", "sources.list.d/*.sources", "sources.list.d/*.list"} {
		some, err := filepath.Glob(filepath.Join(apt, pattern))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	if len(all) == 0 {
		return nil, &guest.MissingError{What: "a source of Debian's packages in " + apt, Remedy: "build the image on a Debian system", Err: fs.ErrNotExist}
	}
	return all, nil
}

// run runs a program in its own mount and process namespaces, so that nothing that it has
// mounted or started is left however it ends. What it prints is logged; its end is in the
// error.
func run(ctx context.Context, log func(string), program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID}
	cmd.WaitDelay = 5 * time.Second
	var last []string
	lines := &role.LineWriter{Line: func(line string) {
		if line = strings.TrimSpace(line); line != "" {
			last = append(last[max(0, len(last)-9):], line)
			log(line)
		}
	}}
	cmd.Stdout, cmd.Stderr = lines, lines
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%s: %w: %s", program, err, strings.Join(last, "; "))
	}
	return nil
}

const (
	rootLabel  = "quell-root"
	sector     = 512
	firstBlock = 2048 // sectors before the partition, as all partition programs leave them
)

// disk writes a tree to a disk with one partition of Linux. mke2fs -d needs neither a
// mount nor a loop device.
func disk(ctx context.Context, file, tree string, size int64) error {
	size -= size % (1 << 20)
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = f.Write(masterBootRecord(size))
	if err := errors.Join(err, f.Truncate(size), f.Close()); err != nil {
		return err
	}
	err = run(ctx, func(string) {}, "mke2fs", "-q", "-F", "-t", "ext4", "-L", rootLabel, "-d", tree, "-E", fmt.Sprintf("offset=%d", firstBlock*sector),
		file, fmt.Sprintf("%dk", (size-firstBlock*sector)>>10))
	if err != nil {
		return fmt.Errorf("%w: if the packages do not fit, give a larger size", err)
	}
	return nil
}

// masterBootRecord is the partition table of a disk with one partition.
func masterBootRecord(size int64) []byte {
	b := make([]byte, sector)
	p := b[446:]
	p[0], p[4] = 0x80, 0x83 // bootable, Linux
	binary.LittleEndian.PutUint32(p[8:], firstBlock)
	binary.LittleEndian.PutUint32(p[12:], uint32(min(size/sector-firstBlock, 1<<32-1)))
	b[510], b[511] = 0x55, 0xaa
	return b
}

func write(file, text string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text), mode)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
