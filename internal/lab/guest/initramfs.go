package guest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// File is a file of an initramfs: Data, or the content of the host's file From.
type File struct {
	Path string      // absolute, in the guest
	Mode fs.FileMode // permissions; 0: 0755
	From string
	Data []byte
}

// Init is the configuration of the guest's PID 1, in order of execution.
type Init struct {
	// Modules are paths of kernel modules in the guest, loaded in this order; a module's
	// parameters follow after a space.
	Modules []string `json:"modules,omitempty"`
	// BareCgroups leaves cgroup.subtree_control of the cgroup2 root unwritten, as if no
	// init system had run. Otherwise cpuset, cpu, io, memory and pids are enabled.
	BareCgroups bool `json:"bare_cgroups,omitempty"`
	// Run are the programs with their arguments. They run one after another in /tmp, also
	// after one of them fails.
	Run [][]string `json:"run,omitempty"`
	// Env is added to the programs' environment.
	Env []string `json:"env,omitempty"`
}

// InitConfig is the path of the Init for PID 1, as JSON.
const InitConfig = "/init.json"

// Initramfs writes an archive of files for the kernel to unpack, with their parent
// directories. program is PID 1: internal/lab/guest/init, built static for the guest's
// architecture. The output depends only on the files and their order.
func Initramfs(w io.Writer, program string, i Init, files ...File) error {
	config, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("write initramfs: %w", err)
	}
	all := append([]File{{Path: "/init", From: program}, {Path: InitConfig, Mode: 0o644, Data: config}}, files...)
	c := cpio{w: w, made: map[string]bool{"/": true}}
	for _, f := range all {
		if err := c.file(f); err != nil {
			return fmt.Errorf("write initramfs: %s: %w", f.Path, err)
		}
	}
	if err := c.entry("TRAILER!!!", 0, nil); err != nil {
		return fmt.Errorf("write initramfs: %w", err)
	}
	return nil
}

// cpio writes the kernel's initramfs format "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	w     io.Writer
	inode int
	made  map[string]bool
}

// Types of st_mode.
const (
	modeDir  = 0o040000
	modeFile = 0o100000
)

func (c *cpio) file(f File) error {
	if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
		return fmt.Errorf("not a clean absolute path")
	}
	if c.made[f.Path] {
		return fs.ErrExist
	}
	var above []string
	for dir := path.Dir(f.Path); !c.made[dir]; dir = path.Dir(dir) {
		above = append(above, dir)
	}
	for _, dir := range slices.Backward(above) {
		c.made[dir] = true
		if err := c.entry(dir[1:], modeDir|0o755, nil); err != nil {
			return err
		}
	}
	data := f.Data
	if f.From != "" {
		var err error
		if data, err = os.ReadFile(f.From); err != nil {
			return err
		}
	}
	mode := f.Mode.Perm()
	if mode == 0 {
		mode = 0o755
	}
	c.made[f.Path] = true
	return c.entry(f.Path[1:], modeFile|int(mode), data)
}

// entry writes a header of 13 numbers, the name and the data, each padded to 4
// bytes.
func (c *cpio) entry(name string, mode int, data []byte) error {
	c.inode++
	var head strings.Builder
	head.WriteString("070701")
	for _, n := range [13]int{c.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0} {
		fmt.Fprintf(&head, "%08X", n)
	}
	head.WriteString(name + "\x00")
	for _, part := range [][]byte{[]byte(head.String()), data} {
		if _, err := c.w.Write(part); err != nil {
			return err
		}
		if _, err := c.w.Write(bytes.Repeat([]byte{0}, -len(part)&3)); err != nil {
			return err
		}
	}
	return nil
}
