package trace

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/quell-dev/quell/internal/core/sample"
)

// columns are the fixed columns in the order in which they are written; extras follow
// by name, and last the column of the served tasks.
var columns = [...]string{"ts", "machine", "job", "task", "platform", "signal", "variant", "class",
	"cpu", "cost", "coverage", "flags"}

// written is how every header begins that a Writer writes.
const written = "ts,machine,job,task,"

const (
	colTS = iota
	colMachine
	colJob
	colTask
	colPlatform
	colSignal
	colVariant
	colClass
	colCPU
	colCost
	colCoverage
	colFlags
	colServed
	colExtra // and colExtra+e for extra e
)

// needed are the columns without which a row says nothing.
var needed = [...]int{colTS, colTask, colSignal, colCPU, colCost}

func columnOf(name string) (int, bool) {
	if i := slices.Index(columns[:], name); i >= 0 {
		return i, true
	}
	if name == ServedColumn {
		return colServed, true
	}
	for _, e := range sample.AllExtras() {
		if e.String() == name {
			return colExtra + int(e), true
		}
	}
	return 0, false
}

func columnName(col int) string {
	switch {
	case col < len(columns):
		return columns[col]
	case col == colServed:
		return ServedColumn
	}
	return sample.Extra(col - colExtra).String()
}

// ErrSample means that a sample holds what a trace cannot: Write refuses it and
// Read counts the row as bad.
var ErrSample = errors.New("invalid sample")

// Check returns why a sample cannot be in a trace; nil if it can. All directions and
// formats agree on it, so that whatever was written can be read back unchanged, also as
// another format.
func Check(s *sample.Sample) error {
	if err := CheckValues(s); err != nil {
		return err
	}
	for _, text := range [...]string{s.Machine, string(s.Job), string(s.Task), string(s.Platform), string(s.Signal), s.Variant} {
		if err := oneLine(text); err != nil {
			return fmt.Errorf("%w: %w", ErrSample, err)
		}
	}
	return nil
}

func oneLine(text string) error {
	if strings.ContainsAny(text, "\n\r") {
		return fmt.Errorf("line break in %q", text)
	}
	return nil
}

// CheckValues is Check for a sample whose names are known to be valid.
func CheckValues(s *sample.Sample) error {
	cpu, cost, coverage := float64(s.CPU), float64(s.Cost), float64(s.Coverage)
	switch {
	case s.Task == "":
		return fmt.Errorf("%w: no task", ErrSample)
	case s.Signal == "":
		return fmt.Errorf("%w: no signal", ErrSample)
	case !(cpu >= 0) || math.IsInf(cpu, 0):
		return fmt.Errorf("%w: cpu %v", ErrSample, cpu)
	case math.IsInf(cost, 0):
		return fmt.Errorf("%w: cost %v", ErrSample, cost)
	case !(coverage >= 0 && coverage <= 1):
		return fmt.Errorf("%w: coverage %v is not in 0..1", ErrSample, coverage)
	case s.Class > sample.LatencySensitive:
		return fmt.Errorf("%w: %v", ErrSample, s.Class)
	case len(s.Served) > 0:
		return checkServed(s.Served)
	}
	return nil
}
