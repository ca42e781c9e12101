package egress

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

const (
	// Name is the file's name in a cgroup's directory.
	Name = "net.max"
	// None is the file's value without a limit.
	None = "max"
	// Grace is how long a limit stays in force without being read.
	Grace = time.Minute
	// minRate and most are the lowest and the highest accepted rate, in bytes/s.
	minRate, maxRate = 1 << 10, 1 << 33
)

// Files are the host's files, and net.max in every cgroup directory of v2. They
// are used from one goroutine.
type Files struct {
	enforce.Files
	held map[string]*activeLimit // by directory
}

// activeLimit is a limit in force.
type activeLimit struct {
	inode uint64
	value string
	objs  egressObjects
	link  link.Link
}

// NewFiles returns files with net.max in addition. Nothing is loaded until a limit
// is written.
func NewFiles(inner enforce.Files) *Files {
	return &Files{Files: inner, held: map[string]*activeLimit{}}
}

// Writes returns the write that limits a cgroup to bytesPerSecond. dir is the
// cgroup's directory in cgroup2.
func Writes(dir string, bytesPerSecond uint64) []host.Write {
	return []host.Write{{File: filepath.Join(dir, Name), Old: None, New: strconv.FormatUint(bytesPerSecond, 10)}}
}

// ReadValue reads a file. Reading net.max keeps its limit in force for Grace.
func (f *Files) ReadValue(file string) (string, error) {
	dir, ok := f.mine(file)
	if !ok {
		return f.Files.ReadValue(file)
	}
	inode, err := f.Inode(dir)
	h := f.held[dir]
	if h != nil && (err != nil || inode != h.inode) {
		h.close() // the cgroup is gone, and the kernel has detached the program
		delete(f.held, dir)
		h = nil
	}
	switch {
	case err != nil:
		return "", err
	case h == nil:
		return None, nil
	}
	return h.value, h.renew()
}

// WriteValue writes a file. If a limit cannot be set, the old one stays.
func (f *Files) WriteValue(file, value string) error {
	dir, ok := f.mine(file)
	if !ok {
		return f.Files.WriteValue(file, value)
	}
	inode, err := f.Inode(dir)
	if err != nil {
		return err
	}
	var next *activeLimit
	if value != None {
		rate, err := strconv.ParseUint(value, 10, 64)
		if err != nil || rate < minRate || rate > maxRate {
			return fmt.Errorf("write %s: %q: want max or %d to %d bytes/s", file, value, minRate, int64(maxRate))
		}
		if next, err = attach(dir, rate); err != nil {
			return fmt.Errorf("write %s: %w", file, err)
		}
		next.inode, next.value = inode, value
	}
	if old := f.held[dir]; old != nil {
		if err := old.close(); err != nil {
			if next != nil {
				err = errors.Join(err, next.close())
			}
			return fmt.Errorf("write %s: %w", file, err)
		}
		delete(f.held, dir)
	}
	if next != nil {
		f.held[dir] = next
	}
	return nil
}

// Hold implements enforce.Files. A limit in force has all that its end needs.
func (f *Files) Hold(files ...string) error { return f.Files.Hold(f.others(files)...) }

// Release implements enforce.Files.
func (f *Files) Release(files ...string) { f.Files.Release(f.others(files)...) }

// others are the files that are not net.max.
func (f *Files) others(files []string) []string {
	return slices.DeleteFunc(slices.Clone(files), func(file string) bool {
		_, mine := f.mine(file)
		return mine
	})
}

// mine returns the file's directory and whether the file is net.max, by its
// name only. In a v1 cgroup a limit fails with ErrNoLimit when it is written.
func (f *Files) mine(file string) (dir string, ok bool) {
	dir, name := filepath.Split(file)
	return filepath.Clean(dir), name == Name
}

// Close ends every limit.
func (f *Files) Close() error {
	var errs []error
	for dir, h := range f.held {
		errs = append(errs, h.close())
		delete(f.held, dir)
	}
	return errors.Join(errs...)
}

// attach attaches the program to the cgroup's egress hook.
func attach(dir string, rate uint64) (_ *activeLimit, err error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("remove RLIMIT_MEMLOCK: %w", err)
	}
	h := &activeLimit{}
	if err := loadEgressObjects(&h.objs, nil); err != nil {
		return nil, refusal(err)
	}
	b := egressBucket{Rate: rate, Seen: uint64(host.Monotonic())}
	if err := errors.Join(h.objs.Buckets.Put(uint32(0), &b), h.renew()); err != nil {
		return nil, errors.Join(refusal(err), h.close())
	}
	h.link, err = link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupInetEgress, Program: h.objs.Limit})
	if err != nil {
		return nil, errors.Join(refusal(err), h.close())
	}
	return h, nil
}

// renew extends the limit to Grace from now.
func (h *activeLimit) renew() error {
	if err := h.objs.Until.Set(uint64(host.Monotonic()) + uint64(Grace)); err != nil {
		return fmt.Errorf("renew limit: %w", err)
	}
	return nil
}

func (h *activeLimit) close() error {
	var err error
	if h.link != nil {
		err = h.link.Close()
	}
	return errors.Join(err, h.objs.Close())
}

// ErrNoLimit means that the kernel does not accept the program, or not from
// this process, or that the directory is not a v2 cgroup.
var ErrNoLimit = errors.New("sent traffic cannot be limited")

func refusal(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w: grant CAP_BPF and CAP_NET_ADMIN, and check for an exclusive egress program on a cgroup above", ErrNoLimit, err)
	case errors.Is(err, btf.ErrNotFound), errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrNoLimit, err)
	}
	return fmt.Errorf("%w: %w: needs Linux 5.7, CONFIG_CGROUP_BPF and a v2 cgroup", ErrNoLimit, err)
}
