package labcmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// costFile is the cost of observation as measured at the start of a study.
const costFile = "cost.json"

// costGroups is the number of groups of four pieces of two seconds that are measured.
const costGroups = 4

// cost measures the cost of the study's observation to a loop of additions in a cgroup on
// the last CPU, once for each folder.
func (l *labMachine) cost(ctx context.Context, s *study.Study, f *result.Folder) error {
	if _, err := os.Stat(f.Path(costFile)); !s.Observe.Cost || len(realDrivers(s)) == 0 || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	p := &study.Part{Role: "cost", Environment: study.Environment{Name: "cost", Driver: study.Cgroup, CPUs: 1},
		Workload: study.Workload{Name: "cost", Builtin: "cpu-burn", Options: "-work=1000000"}}
	e, err := l.maker.Make(ctx, p)
	if err != nil {
		return fmt.Errorf("measure the cost of observation: %w", err)
	}
	defer e.Close() // the maker's error repeats it
	cpus := l.allowed.Numbers()
	last := sample.SetOf(cpus[len(cpus)-1])
	if err := e.Pin([]sample.Set{last}); err != nil {
		return fmt.Errorf("measure the cost of observation: %w", err)
	}
	job, err := l.command(p)
	if err != nil {
		return err
	}
	c, err := observe.Options{Host: l.host, Observe: s.Observe}.Cost(ctx, e, job, last, costGroups)
	if err != nil {
		return err
	}
	return writeJSONFile(f.Path(costFile), c)
}

// costOf returns the measured cost of a folder's study, "" if it was not measured.
func costOf(f *result.Folder) (string, error) {
	var c observe.Cost
	err := result.Load(f.Path(costFile), &c)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	return c.String(), nil
}
