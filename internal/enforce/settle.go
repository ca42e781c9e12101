package enforce

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/host"
)

// settler ends changes on the machine; it knows nothing of the journal.
type settler struct {
	files Files
	boot  string
}

func newSettler(files Files) (settler, error) {
	boot, err := files.BootID()
	if err == nil && boot == "" {
		err = errors.New("empty")
	}
	if err != nil {
		return settler{}, fmt.Errorf("read boot id: %w", err)
	}
	return settler{files, boot}, nil
}

// settle puts the files back where they are still ours. It may be repeated
// from wherever it was cut off: a file holds its old or its new value.
func (s settler) settle(c *entry) (Outcome, error) {
	out := Outcome{Change: c.Change}
	gone, note, err := s.gone(c)
	if err != nil {
		return out, err
	}
	if gone {
		out.Result, out.Note = Gone, note
		return out, nil
	}
	var ours []host.Write
	var stranger string
	missing := 0
	for _, w := range c.Writes {
		v, err := s.files.ReadValue(w.File)
		switch {
		case isGone(err): // the controller was taken from the cgroup
			missing++
		case err != nil:
			return out, fmt.Errorf("compare: %w", err)
		case v == w.Old:
		case v == w.New:
			ours = append(ours, w)
		default:
			stranger += fmt.Sprintf("%s holds %q, neither our %q nor the old %q; ", w.File, v, w.New, w.Old)
		}
	}
	if stranger != "" {
		out.Result = TakenOver
		for _, w := range ours {
			stranger += fmt.Sprintf("%s is left at our %q, was %q; ", w.File, w.New, w.Old)
		}
		out.Note = strings.TrimSuffix(stranger, "; ")
		return out, nil
	}
	if missing == len(c.Writes) {
		out.Result, out.Note = Gone, "its files are gone from "+c.Dir
		return out, nil
	}
	for _, w := range slices.Backward(ours) {
		if err := s.putBack(w); err != nil {
			return out, err
		}
	}
	switch {
	case !c.applied:
		out.Note = "had not been fully applied"
	case len(ours) == 0:
		out.Note = "held the old values already"
	}
	return out, nil
}

func (s settler) putBack(w host.Write) error {
	err := s.files.WriteValue(w.File, w.Old)
	if err != nil && !isGone(err) {
		return fmt.Errorf("write old value: %w", err)
	}
	if v, _ := s.files.ReadValue(w.File); v == w.New {
		return fmt.Errorf("%w: %s still reads %q after writing %q", ErrNotTaken, w.File, v, w.Old)
	}
	return nil
}

// gone reports whether what the change was made to is no more, and why.
func (s settler) gone(c *entry) (bool, string, error) {
	if c.boot != s.boot {
		return true, "made before a reboot", nil
	}
	inode, err := s.files.Inode(c.Dir)
	switch {
	case isGone(err):
		return true, c.Dir + " was removed", nil
	case err != nil:
		return false, "", fmt.Errorf("identify %s: %w", c.Dir, err)
	case inode != c.Inode:
		return true, c.Dir + " was removed and made again", nil
	}
	return false, "", nil
}
