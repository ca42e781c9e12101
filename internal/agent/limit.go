package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
)

// actor carries out what the pipeline asks for.
type actor struct {
	base
	pipeline     *pipeline.Pipeline
	enforcer     Enforcer
	machine      Machine
	egressWrites func(dir string, bytesPerSecond uint64) []host.Write
	sharedDisks  func(a, b sample.TaskKey) []host.Device
	period       time.Duration // of CPU quotas
	// pendingUndo is why caps are to be undone that could not be undone yet, by id.
	pendingUndo map[string]string
	placement   *placement
	recorder    *recorder
}

// writes lists the writes that limit a task as an action asks, and the cgroup to write to.
func (ac *actor) writes(t *task, act plan.Action) (dir string, inode uint64, w []host.Write, err error) {
	switch {
	case !act.IO.IsZero():
		return ac.ioWrites(t, act)
	case act.Net > 0:
		return ac.netWrites(t, act)
	case t.places.Split:
		err = fmt.Errorf("its processes are in different cgroups: %s", t.places.Reason)
	case t.places.CPU == "":
		err = errors.New("it has no processes, so its CPU limit is unknown")
	default:
		return ac.machine.CapWrites(t.places.CPU, act.Rate, ac.period)
	}
	return "", 0, nil, err
}

// ioWrites lists the writes that limit a task on every disk that it shares with the
// victim. An existing limit of the task that is lower stays in force.
func (ac *actor) ioWrites(t *task, act plan.Action) (dir string, inode uint64, w []host.Write, err error) {
	place, err := t.cgroup.IOPlace()
	if err != nil {
		return "", 0, nil, err
	}
	var disks []host.Device
	if ac.sharedDisks != nil {
		disks = ac.sharedDisks(act.Victim, t.Key)
	}
	if len(disks) == 0 {
		return "", 0, nil, errors.New("no known disk is shared with the victim")
	}
	for _, disk := range disks {
		has, err := ac.machine.IOLimit(place, disk)
		if err != nil {
			return "", 0, nil, err
		}
		limit := host.IOLimit{Rbps: lower(act.IO.Bytes, has.Rbps), Wbps: lower(act.IO.Bytes, has.Wbps),
			Riops: lower(act.IO.Ops, has.Riops), Wiops: lower(act.IO.Ops, has.Wiops)}
		if limit == (host.IOLimit{}) {
			continue
		}
		var one []host.Write
		if dir, inode, one, err = ac.machine.IOWrites(place, disk, limit); err != nil {
			return "", 0, nil, err
		}
		w = append(w, one...)
	}
	if len(w) == 0 {
		return "", 0, nil, fmt.Errorf("limit I/O of %s: %w", t.Name, host.ErrNotLower)
	}
	return dir, inode, w, nil
}

// netWrites lists the write that limits what a task sends.
func (ac *actor) netWrites(t *task, act plan.Action) (dir string, inode uint64, w []host.Write, err error) {
	switch {
	case t.Key.Hierarchy != sample.Unified:
		return "", 0, nil, errors.New("cannot limit its network traffic: the task is a v1 cgroup")
	case ac.egressWrites == nil:
		return "", 0, nil, errors.New("cannot limit network traffic on this machine")
	}
	dir = t.cgroup.Dir()
	return dir, t.Key.Inode, ac.egressWrites(dir, act.Net), nil
}

// lower returns the wished limit if it is lower than the existing one, else 0, which
// keeps the existing one. 0 is no limit.
func lower(wish, has uint64) uint64 {
	if has != 0 && has <= wish {
		return 0
	}
	return wish
}
