package enforce

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Files is the part of a host that changes are made to. Errors about a file or
// a directory that is gone wrap fs.ErrNotExist or ENODEV.
type Files interface {
	// ReadValue returns a file's text, trimmed.
	ReadValue(file string) (string, error)
	// WriteValue writes in one write(2) and never creates a file.
	WriteValue(file, value string) error
	// Inode returns the inode of a cgroup directory: its kernel id.
	Inode(dir string) (uint64, error)
	// BootID returns /proc/sys/kernel/random/boot_id.
	BootID() (string, error)
	// Hold makes the files usable without any further descriptor until they are released.
	// It holds all or none.
	Hold(files ...string) error
	Release(files ...string)
	// Held reports whether a file of a cgroup directory is held and still there, at whatever path.
	Held(dir string) bool
}

// Change is a set of writes to the files of one cgroup, with a lease. Old and
// New are spelt as the kernel reads them back: a value that reads back
// differently could not be distinguished from another process's.
//
// Writes may also be to files of cgroups below Dir, which then have their inodes (v1
// requires that quotas there are lowered first). Each cgroup is handled separately:
// if a process takes over or removes one, the others still get their old values back.
type Change struct {
	ID     string          `json:"id"`
	Dir    string          `json:"dir"`   // cgroup directory that holds the files
	Inode  uint64          `json:"inode"` // of Dir
	Writes []host.Write    `json:"writes"`
	From   sample.Millis   `json:"from"`
	Until  sample.Millis   `json:"until"` // end of the lease
	Task   sample.TaskName `json:"task,omitempty"`
	Who    string          `json:"who,omitempty"`
	Why    string          `json:"why,omitempty"`
}

var (
	// ErrRefused: the change could not be undone.
	ErrRefused = errors.New("change refused")
	// ErrOverlap: an active change holds one of the files, or has the same ID.
	ErrOverlap = errors.New("conflicts with active change")
	// ErrChanged: a file does not hold the old value; nothing was written.
	ErrChanged = errors.New("file does not hold the old value")
	// ErrGone: the cgroup is not there any more, or is another one.
	ErrGone = errors.New("cgroup is gone")
	// ErrNotTaken: a file was written without an error and reads differently.
	ErrNotTaken = errors.New("kernel did not accept the value")
	// ErrUnknown: no active change has that ID.
	ErrUnknown = errors.New("unknown change")
	// ErrJournal: the journal cannot be written, so nothing may be applied.
	ErrJournal = errors.New("journal not writable")
	// ErrLocked: another process has the journal.
	ErrLocked = errors.New("journal is in use")
)

// Result says how a change ended.
type Result uint8

const (
	// Restored: every file holds its old value. Exceptions in cgroups below are in the note.
	Restored Result = iota
	// TakenOver: a file holds another process's value; all files of that cgroup
	// were left alone.
	TakenOver
	// Gone: the cgroup was removed, or the machine was rebooted.
	Gone
)

var resultNames = [...]string{"restored", "taken-over", "gone"}

func (r Result) String() string {
	if int(r) < len(resultNames) {
		return resultNames[r]
	}
	return fmt.Sprintf("result(%d)", uint8(r))
}

// Outcome is the end of a change.
type Outcome struct {
	Change Change
	Result Result
	Note   string // for people: which file, which value; may be empty
}

// check returns ErrRefused for a change that undo could not handle.
func (c *Change) check() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("change %q: %w: %s", c.ID, ErrRefused, fmt.Sprintf(format, args...))
	}
	switch {
	case c.ID == "":
		return refuse("no id")
	case !filepath.IsAbs(c.Dir) || filepath.Clean(c.Dir) != c.Dir:
		return refuse("directory %q is not a clean absolute path", c.Dir)
	case !utf8.ValidString(c.ID):
		// JSON would encode it differently, and the change could not be undone.
		return refuse("id is not UTF-8")
	case c.Inode == 0:
		return refuse("no inode of %s", c.Dir)
	case len(c.Writes) == 0:
		return refuse("no writes")
	}
	seen, inodes := map[string]bool{}, map[string]uint64{}
	for _, w := range c.Writes {
		dir := filepath.Dir(w.File)
		below := strings.HasPrefix(dir, c.Dir+"/")
		other, known := inodes[dir]
		switch {
		case filepath.Clean(w.File) != w.File || dir != c.Dir && !below:
			return refuse("file %q is neither in %s nor below it", w.File, c.Dir)
		case below != (w.Inode != 0):
			return refuse("file %q has inode %d; want one only below %s", w.File, w.Inode, c.Dir)
		case known && other != w.Inode:
			return refuse("%s has two inodes, %d and %d", dir, other, w.Inode)
		case !utf8.ValidString(w.Old + w.New):
			return refuse("the values of %q are not UTF-8", w.File)
		case w.Old == "":
			return refuse("%s has no old value", w.File)
		case w.New == "":
			return refuse("%s has no new value", w.File)
		case seen[w.File]:
			return refuse("%s is written twice", w.File)
		}
		seen[w.File], inodes[dir] = true, w.Inode
	}
	if _, ok := inodes[c.Dir]; !ok {
		return refuse("no writes in %s itself", c.Dir)
	}
	return nil
}

// cgroupWrites is one cgroup of a change with its writes, in order.
type cgroupWrites struct {
	dir    string
	inode  uint64
	writes []host.Write
}

// byCgroup returns the change's cgroups in the order they are written to: those
// below, if any, and Dir.
func (c *Change) byCgroup() []cgroupWrites {
	var all []cgroupWrites
	at := map[string]int{} // in all
	for _, w := range c.Writes {
		p := cgroupWrites{dir: filepath.Dir(w.File), inode: w.Inode}
		if p.dir == c.Dir {
			p.inode = c.Inode
		}
		i, known := at[p.dir]
		if !known {
			i, all = len(all), append(all, p)
			at[p.dir] = i
		}
		all[i].writes = append(all[i].writes, w)
	}
	return all
}

// maxHeld is how many files below Dir are held. Those of Dir come first: they are what limits.
const maxHeld = 64

// held lists the files that are held while the change is in force.
func (c *Change) held() []string {
	var own, below []string
	for _, w := range c.Writes {
		if w.Inode == 0 {
			own = append(own, w.File)
		} else if len(below) < maxHeld {
			below = append(below, w.File)
		}
	}
	return append(own, below...)
}

// overlaps reports whether c and d have a file or the ID in common.
func (c *Change) overlaps(d *Change) bool {
	if c.ID == d.ID {
		return true
	}
	for _, w := range c.Writes {
		for _, v := range d.Writes {
			if w.File == v.File {
				return true
			}
		}
	}
	return false
}

// isGone recognises the errors of a cgroup that was removed: ENOENT by path,
// ENODEV from a file that was opened before.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV)
}
