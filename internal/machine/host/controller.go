package host

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// ControllerError is ErrNoLimit: cgroup2 does not enable a controller for a cgroup, so that it
// has none of the controller's files. systemd enables a controller for all units of a slice
// as soon as one of them asks for it; on a default Debian none asks for cpu.
type ControllerError struct {
	Controller string
	Cgroup     string   // its path below the mount
	Lacking    []string // the cgroups above it whose cgroup.subtree_control lacks the controller, from the top
	// Unit is the systemd unit for which a property enables the controller; "" if
	// systemd does not run, or does not manage the cgroups that lack it.
	Unit string
}

func (e *ControllerError) Error() string {
	return fmt.Sprintf("%v: controller %s is not enabled for %s, because cgroup.subtree_control of %s lacks it (to enable it: %s)",
		ErrNoLimit, e.Controller, e.Cgroup, strings.Join(e.Lacking, " and "), e.Remedy())
}

func (e *ControllerError) Unwrap() error { return ErrNoLimit }

// Remedy says what a person can do about it.
func (e *ControllerError) Remedy() string {
	property := map[string]string{"cpu": "CPUWeight", "io": "IOWeight"}[e.Controller]
	if e.Unit == "" || property == "" {
		return fmt.Sprintf("write +%s to cgroup.subtree_control of %s", e.Controller, strings.Join(e.Lacking, ", then of "))
	}
	unit := e.Unit
	if strings.Contains(unit, `\`) {
		unit = "'" + unit + "'"
	}
	return fmt.Sprintf("systemctl set-property %s %s=100", unit, property)
}

// controllerError returns a *ControllerError if a controller is not enabled for a cgroup of
// cgroup2, nil if it is or if that cannot be read.
func (h *Host) controllerError(controller, p string) error {
	e := &ControllerError{Controller: controller, Cgroup: p}
	for at := p; at != "/"; {
		at = path.Dir(at)
		if h.lacks(controller, at) {
			e.Lacking = append(e.Lacking, at)
		}
	}
	if len(e.Lacking) == 0 {
		return nil
	}
	slices.Reverse(e.Lacking)
	e.Unit = h.unit(p, e.Lacking[0])
	return e
}

// lacks reports whether a cgroup does not pass a controller on to those below it.
func (h *Host) lacks(controller, p string) bool {
	text, err := h.ReadValue(path.Join(h.layout.Unified, p, "cgroup.subtree_control"))
	return err == nil && !slices.Contains(strings.Fields(text), controller)
}

// unitName is what systemd accepts (systemd.unit(5)), for the units that have cgroups.
var unitName = regexp.MustCompile(`^[A-Za-z0-9:_.\\@-]+\.(slice|service|scope)$`)

// unit returns the unit of systemd's that a cgroup is part of, if it is below a cgroup: the
// first service or scope on the path, else the last slice. What is below that is managed
// by the unit itself.
func (h *Host) unit(p, below string) (unit string) {
	if _, err := h.Inode("/run/systemd/system"); err != nil { // sd_booted(3)
		return ""
	}
	at := "/"
	for name := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if !unitName.MatchString(name) {
			break
		}
		if at == below || strings.HasPrefix(at, strings.TrimSuffix(below, "/")+"/") {
			unit = name
		}
		if at = path.Join(at, name); !strings.HasSuffix(name, ".slice") {
			break
		}
	}
	return unit
}

// Uncontrolled returns the first cgroup with processes below each cgroup of cgroup2 that does
// not pass a controller on. The inner cgroups of systemd's services and scopes are left out:
// the service is the task.
func (h *Host) Uncontrolled(controller string) (all []*ControllerError, err error) {
	without := "" // the last cgroup that lacks it
	_, err = h.WalkAt(Place{sample.Unified, "/"}, func(p string, _ uint64) error {
		unit := unitName.MatchString(path.Base(p))
		slice := unit && strings.HasSuffix(p, ".slice")
		switch {
		case without != "" && strings.HasPrefix(p, strings.TrimSuffix(without, "/")+"/"):
			var e *ControllerError
			if !h.populated(p) {
				return fs.SkipDir
			}
			if slice {
				return nil
			}
			if n := len(all); (n == 0 || all[n-1].Lacking[0] != without) && errors.As(h.controllerError(controller, p), &e) {
				all = append(all, e)
			}
			return fs.SkipDir
		case unit && !slice:
			return fs.SkipDir
		case h.lacks(controller, p):
			without = p
		}
		return nil
	})
	return all, err
}

// populated reports whether a cgroup or one below it has processes.
func (h *Host) populated(p string) bool {
	text, err := h.ReadValue(path.Join(h.layout.Unified, p, "cgroup.events"))
	return err == nil && slices.Contains(strings.Split(text, "\n"), "populated 1")
}
