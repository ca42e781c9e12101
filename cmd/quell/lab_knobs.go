package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/quell-dev/quell/internal/enforce"
	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/sample"
)

// labJournal is where changes of the machine's knobs are journalled: one place
// for all studies, so that restore needs no folder.
const labJournal = "/var/lib/quell-lab/journal"

// restoreKnobs undoes what a lab that is dead has changed. Changes of one that
// runs are left: it holds the journal.
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

// setKnobs makes the changes that a study wants of the machine and returns how
// to undo them.
func setKnobs(dir string, h *host.Host, s *study.Study, now func() time.Time) (undo func() error, err error) {
	knobs := observe.Knobs{Host: h}
	e, err := enforce.Open(dir, knobs)
	if errors.Is(err, enforce.ErrLocked) {
		return nil, &usageError{fmt.Errorf("set knobs: another lab has changed some: %w", err), "wait for it"}
	}
	if err != nil {
		return nil, fmt.Errorf("set knobs: %w", err)
	}
	undo = func() error {
		_, err := e.RestoreAll(sample.At(now()), "the study is done")
		return errors.Join(err, e.Close())
	}
	if _, err := e.RestoreAll(sample.At(now()), "left by a lab that was killed"); err != nil {
		return nil, errors.Join(fmt.Errorf("set knobs: %w", err), e.Close())
	}
	// The lease is only an upper bound: nobody undoes it but the end of this
	// process, or restore after a kill.
	until := now().Add(time.Hour + total(s.Plan())*time.Duration(2+s.Run.Retries))
	if err := knobs.Set(e, sample.At(now()), sample.At(until), s.Preconditions.Set, "quell lab"); err != nil {
		return nil, errors.Join(&noError{err, "see `quell doctor`, or take it from the study's preconditions.set"}, undo())
	}
	return undo, nil
}
