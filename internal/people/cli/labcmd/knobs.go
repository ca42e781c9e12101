package labcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// labJournal is the journal of changes of the machine's knobs: one for all studies, so
// that restore needs no folder.
const labJournal = "/var/lib/quell-lab/journal"

// restoreKnobs undoes the changes of a dead lab. A running lab holds the journal, and its changes are left.
func restoreKnobs(dir string, h *host.Host, now time.Time) (outcomes []enforce.Outcome, err error) {
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	e, err := enforce.Open(dir, observe.Knobs{Host: h})
	if errors.Is(err, enforce.ErrLocked) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("restore knobs: %w", err)
	}
	outcomes, err = e.RestoreAll(sample.At(now), "restore of the lab")
	return outcomes, errors.Join(err, e.Close())
}

// knobSetter changes knobs of the machine and restores them, with a journal.
type knobSetter struct {
	enforcer *enforce.Enforcer
	knobs    observe.Knobs
	now      func() time.Time
	// until is only an upper bound: a change is undone by this process, or by restore after a kill.
	until sample.Millis
}

// setKnobs takes the journal, makes the changes for a study's whole time, and returns a
// turner for those of single runs.
func setKnobs(dir string, h *host.Host, s *study.Study, now func() time.Time) (*knobSetter, error) {
	t := &knobSetter{knobs: observe.Knobs{Host: h}, now: now}
	var err error
	t.enforcer, err = enforce.Open(dir, t.knobs)
	if errors.Is(err, enforce.ErrLocked) {
		return nil, app.Usage(fmt.Errorf("set knobs: another lab has changed some: %w", err), "wait until it ends")
	}
	if err != nil {
		return nil, fmt.Errorf("set knobs: %w", err)
	}
	if _, err := t.enforcer.RestoreAll(sample.At(now()), "left by a lab that was killed"); err != nil {
		return nil, errors.Join(fmt.Errorf("set knobs: %w", err), t.enforcer.Close())
	}
	t.until = sample.At(now().Add(time.Hour + total(s.Plan())*time.Duration(2+s.Run.Retries)))
	if _, err := t.set(s.Preconditions.Set); err != nil {
		remedy := "see `quell doctor`, or remove it from the study's preconditions.set"
		if lack, ok := errors.AsType[*observe.KnobError](err); ok && lack.Remedy != "" {
			remedy = lack.Remedy
		}
		return nil, errors.Join(app.Negative(err, remedy), t.close())
	}
	return t, nil
}

func (t *knobSetter) set(settings map[string]string) (made []string, err error) {
	return t.knobs.Set(t.enforcer, sample.At(t.now()), t.until, settings, "quell lab")
}

// setForRun is lab.Options.SetKnobs.
func (t *knobSetter) setForRun(settings map[string]string) (undo func() error, err error) {
	made, err := t.set(settings)
	if lack, ok := errors.AsType[*observe.KnobError](err); ok {
		return nil, &lab.LackError{What: err.Error(), Remedy: lack.Remedy}
	}
	if err != nil {
		return nil, err
	}
	return func() error { return observe.Unset(t.enforcer, sample.At(t.now()), made, "the run is done") }, nil
}

func (t *knobSetter) close() error {
	_, err := t.enforcer.RestoreAll(sample.At(t.now()), "the study is done")
	return errors.Join(err, t.enforcer.Close())
}

// changesKnobs reports whether a study changes knobs of the machine.
func changesKnobs(s *study.Study) bool {
	return len(s.Preconditions.Set) > 0 || slices.ContainsFunc(s.Factors, func(f study.Factor) bool { return f.Knob != "" })
}
