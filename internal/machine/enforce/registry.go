package enforce

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Registry is a directory in which every agent of a machine notes where its journal is, so
// that a restore, or the next agent, finds what an agent with another state directory left.
type Registry struct{ Dir string }

// note is the content of a file of the registry. The file's name is made from the device and
// the inode: the same path may be another directory in another mount namespace.
type note struct {
	Journal string `json:"journal"`
	Boot    string `json:"boot"`
}

const noteSuffix = ".json"

func noteName(dir string) (string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return "", err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("stat %s: no inode", dir)
	}
	return fmt.Sprintf("%x-%d%s", st.Dev, st.Ino, noteSuffix), nil
}

// Note notes the journal in dir, which exists.
func (r Registry) Note(dir string, files Files) error {
	fail := func(err error) error { return fmt.Errorf("note journal %s in %s: %w", dir, r.Dir, err) }
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fail(err)
	}
	boot, err := files.BootID()
	if err != nil {
		return fail(err)
	}
	name, err := noteName(dir)
	if err != nil {
		return fail(err)
	}
	text, err := json.Marshal(note{Journal: dir, Boot: boot})
	if err != nil {
		return fail(err)
	}
	if err := makeDir(r.Dir); err != nil {
		return fail(err)
	}
	d, err := rootDisk(r.Dir)
	if err != nil {
		return fail(err)
	}
	defer d.Close()
	f, err := writeFile(d, name, append(text, '\n'))
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		return fail(err)
	}
	return nil
}

// Forget removes the note of the journal in dir: nothing is left to undo there.
func (r Registry) Forget(dir string) error {
	name, err := noteName(dir)
	if err == nil {
		err = os.Remove(filepath.Join(r.Dir, name))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget journal %s: %w", dir, err)
	}
	return nil
}

// Others lists the noted journals except the one in own. unreachable are those that this
// process cannot open by their path: they are on a file system of another mount namespace, or
// were deleted. Notes of an earlier boot are left out: no cap outlives that.
func (r Registry) Others(own string, files Files) (journals, unreachable []string, err error) {
	fail := func(err error) ([]string, []string, error) {
		return nil, nil, fmt.Errorf("list journals in %s: %w", r.Dir, err)
	}
	boot, err := files.BootID()
	if err != nil {
		return fail(err)
	}
	switch info, err := os.Stat(r.Dir); {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, nil
	case err != nil:
		return fail(err)
	default: // another user's agents are not this one's
		if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
			return nil, nil, nil
		}
	}
	d, err := rootDisk(r.Dir)
	if err != nil {
		return fail(err)
	}
	defer d.Close()
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return fail(err)
	}
	mine, _ := noteName(own) // it need not exist
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), noteSuffix) || e.Name() == mine {
			continue
		}
		text, err := d.ReadFile(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fail(err)
		}
		var n note
		if json.Unmarshal(text, &n) != nil || !filepath.IsAbs(n.Journal) {
			unreachable = append(unreachable, filepath.Join(r.Dir, e.Name())+" (damaged)")
			continue
		}
		if n.Boot != boot {
			continue
		}
		if name, err := noteName(n.Journal); err != nil || name != e.Name() {
			unreachable = append(unreachable, n.Journal)
			continue
		}
		journals = append(journals, n.Journal)
	}
	return journals, unreachable, nil
}
