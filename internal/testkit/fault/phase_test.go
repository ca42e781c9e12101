package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// phase is the stage in the life of a cap that a process is in, determined by
// the effect that it is about to make and those before.
type phase int

const (
	// anywhere: at a random moment, untraced.
	anywhere phase = iota
	rewriting
	rewriteNotSynced
	rewriteNotNamed
	nameNotSynced
	notIntended
	intentNotSynced
	intended
	halfApplied
	notAcknowledged
	acknowledgeNotSynced
	inForce
	expired
	halfUndone
	notRecorded
	recordNotSynced
	phases
)

var phaseNames = [phases]string{"any moment, untraced", "journal to be rewritten", "rewritten, not fsynced", "fsynced, not renamed", "renamed, directory not fsynced",
	"intent to be journalled", "intent written, not fsynced", "intent on disk, no limit written", "limits half written", "limits written, not acknowledged",
	"acknowledged, not fsynced", "in force", "to be undone, nothing written", "half undone", "undone, not journalled", "undone, record not fsynced"}

func (p phase) String() string { return phaseNames[p] }

// effect is a system call that changes the journal or a limit.
type effect int

const (
	none effect = iota
	writeIntent
	writeApplied
	writeUndone
	syncJournal
	writeNew
	syncNew
	renameNew
	syncDirectory
	writeLimit
)

// watched is the journal and the cgroup whose effects are recognised.
type watched struct{ journal, cgroup string }

var recordKind = regexp.MustCompile(`"kind":"(\w+)"`)

// effect returns what a call is about to do.
func (w watched) effect(c call) effect {
	file := func() string {
		name, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", c.pid, int32(c.args[0])))
		return name
	}
	switch c.nr {
	case unix.SYS_WRITE, unix.SYS_PWRITE64:
		switch name := file(); {
		case name == w.journal+"/journal":
			kind := recordKind.FindSubmatch(c.bytes(c.args[1], c.args[2]))
			if kind == nil {
				return none
			}
			return map[string]effect{"intend": writeIntent, "applied": writeApplied, "undone": writeUndone}[string(kind[1])]
		case name == w.journal+"/journal.new":
			return writeNew
		case filepath.Dir(name) == w.cgroup && strings.HasPrefix(filepath.Base(name), "cpu."):
			return writeLimit
		}
	case unix.SYS_FSYNC, unix.SYS_FDATASYNC:
		switch file() {
		case w.journal + "/journal":
			return syncJournal
		case w.journal + "/journal.new":
			return syncNew
		case w.journal:
			return syncDirectory
		}
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2:
		if file() == w.journal {
			return renameNew
		}
	}
	return none
}

// phaseTracker follows a process through the phases. The zero value is at its start.
type phaseTracker struct{ at phase }

// next returns the phase just before the effect, and advances past it.
func (c *phaseTracker) next(e effect) phase {
	was := c.at
	move := func(before, after phase) phase {
		c.at = after
		return before
	}
	switch e {
	case writeNew:
		return move(rewriting, was)
	case syncNew:
		return rewriteNotSynced
	case renameNew:
		return rewriteNotNamed
	case syncDirectory:
		return nameNotSynced
	case writeIntent:
		return move(notIntended, intentNotSynced)
	case writeApplied:
		return move(notAcknowledged, acknowledgeNotSynced)
	case writeUndone:
		return move(notRecorded, recordNotSynced)
	case syncJournal:
		switch was {
		case intentNotSynced:
			return move(was, intended)
		case acknowledgeNotSynced:
			return move(was, inForce)
		case recordNotSynced:
			return move(was, anywhere)
		}
	case writeLimit:
		switch was {
		case intended:
			return move(intended, halfApplied)
		case halfApplied:
			return halfApplied
		case halfUndone:
			return halfUndone
		}
		return move(expired, halfUndone) // in force, or an earlier process's
	}
	return anywhere
}
