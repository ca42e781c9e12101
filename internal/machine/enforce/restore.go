package enforce

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/machine/host"
)

// restorer ends changes on the machine; it does not use the journal.
type restorer struct {
	files Files
	boot  string
}

func newSettler(files Files) (restorer, error) {
	boot, err := files.BootID()
	if err == nil && boot == "" {
		err = errors.New("empty")
	}
	if err != nil {
		return restorer{}, fmt.Errorf("read boot id: %w", err)
	}
	return restorer{files, boot}, nil
}

// restoreChange restores the files that still hold the new values, cgroup by cgroup, Dir
// first: v1 accepts no quota above that of the cgroup above it. It may be repeated
// after an interruption at any point: a file holds its old or its new value.
func (s restorer) restoreChange(c *entry) (Outcome, error) {
	out := Outcome{Change: c.Change}
	if c.boot != s.boot {
		out.Result, out.Note = Gone, rebooted
		return out, nil
	}
	var notes []string
	var errs []error
	ours := 0
	for _, p := range slices.Backward(c.byCgroup()) {
		result, note, n, err := s.restoreCgroup(p)
		if p.dir == c.Dir {
			out.Result = result
		}
		if note != "" {
			notes = append(notes, note)
		}
		ours, errs = ours+n, append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return Outcome{Change: c.Change}, err
	}
	switch {
	case out.Result != Restored:
	case !c.applied:
		notes = append(notes, "had not been fully applied")
	case ours == 0 && len(notes) == 0:
		notes = append(notes, "already held the old values")
	}
	out.Note = strings.Join(notes, "; ")
	return out, nil
}

// restoreCgroup is settle for one cgroup; ours is the number of restored files.
func (s restorer) restoreCgroup(p cgroupWrites) (result Result, note string, ours int, err error) {
	gone, note, err := s.lost(p.dir, p.inode)
	if gone || err != nil {
		return Gone, note, 0, err
	}
	var back []host.Write
	var strangers []string
	missing := 0
	for _, w := range p.writes {
		v, err := s.files.ReadValue(w.File)
		switch {
		case isGone(err): // the controller was taken from the cgroup
			missing++
		case err != nil:
			return 0, "", 0, fmt.Errorf("compare: %w", err)
		case v == w.Old:
		case v == w.New:
			back = append(back, w)
		default:
			strangers = append(strangers, fmt.Sprintf("%s holds %q, neither our %q nor the old %q", w.File, v, w.New, w.Old))
		}
	}
	if len(strangers) > 0 {
		for _, w := range back {
			strangers = append(strangers, fmt.Sprintf("%s is left at our %q, was %q", w.File, w.New, w.Old))
		}
		return TakenOver, strings.Join(strangers, "; "), 0, nil
	}
	if missing == len(p.writes) {
		return Gone, "its files are gone from " + p.dir, 0, nil
	}
	for _, w := range slices.Backward(back) {
		if err := s.writeOld(w); err != nil {
			return 0, "", 0, err
		}
	}
	return Restored, "", len(back), nil
}

func (s restorer) writeOld(w host.Write) error {
	err := s.files.WriteValue(w.File, w.Old)
	if err != nil && !isGone(err) {
		return fmt.Errorf("write old value: %w", err)
	}
	if v, _ := s.files.ReadValue(w.File); v == w.New {
		return fmt.Errorf("%w: %s still reads %q after writing %q", ErrNotTaken, w.File, v, w.Old)
	}
	return nil
}

const rebooted = "made before a reboot"

// gone reports whether the change's cgroup no longer exists, and why.
func (s restorer) gone(c *entry) (bool, string, error) {
	if c.boot != s.boot {
		return true, rebooted, nil
	}
	return s.lost(c.Dir, c.Inode)
}

// lost reports whether a cgroup was removed, and whether another has its path now. One that was
// renamed is not lost while its files are held.
func (s restorer) lost(dir string, inode uint64) (bool, string, error) {
	now, err := s.files.Inode(dir)
	switch {
	case (isGone(err) || err == nil && now != inode) && s.files.Held(dir):
	case isGone(err):
		return true, dir + " was removed", nil
	case err != nil:
		return false, "", fmt.Errorf("identify %s: %w", dir, err)
	case now != inode:
		return true, dir + " was removed and made again", nil
	}
	return false, "", nil
}
