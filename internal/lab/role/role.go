// Package role is what the lab's engine and the programs that it runs in roles share: the
// barrier, and the lines by which a program reports to the engine.
package role

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
)

// IterationLine is the prefix of the line that a workload prints for each iteration: its
// begin and end by host.Monotonic, and its number of units.
const IterationLine = "quell-lab iteration "

// ValueLine is the prefix of the line by which a workload reports a value in addition
// to its iterations: a name and a number, stored in the part's record as Values.
const ValueLine = "quell-lab value "

// SaturatedValue, if not 0, is a load generator's report that it fell behind its own
// schedule. UnreachableValue is its report that the server was not there. Either makes
// the run invalid.
const (
	SaturatedValue   = "generator-saturated"
	UnreachableValue = "unreachable"
)

// Slice is the length of a load generator's iteration.
const Slice = 100 * time.Millisecond

// Instant returns an instant by both clocks, which are read as close together as this
// process can: between the readings it may lose its CPU.
func Instant() (at time.Time, monotonic int64) {
	least := int64(1 << 62)
	for range 5 {
		from := host.Monotonic()
		now := time.Now()
		if width := host.Monotonic() - from; width < least {
			at, monotonic, least = now, from+width/2, width
		}
	}
	return at, monotonic
}

// Barrier waits for a line on in; ok is false if in or ctx ends before. The returned
// context ends with ctx, and when in closes.
func Barrier(ctx context.Context, in io.Reader) (_ context.Context, cancel context.CancelFunc, ok bool) {
	ctx, cancel = context.WithCancel(ctx)
	began := make(chan struct{})
	go func() {
		// The reader may stay blocked after the work is over; the process ends.
		defer cancel()
		lines := bufio.NewReader(in)
		if _, err := lines.ReadString('\n'); err != nil {
			return
		}
		close(began)
		_, _ = io.Copy(io.Discard, lines)
	}()
	select {
	case <-began:
	case <-ctx.Done():
	}
	select {
	case <-began: // also if in has closed since
		ok = true
	default:
	}
	return ctx, cancel, ok
}

// PrintIteration prints an iteration.
func PrintIteration(out io.Writer, from, to int64, units float64) error {
	if _, err := fmt.Fprintf(out, "%s%d %d %s\n", IterationLine, from, to, number(units, 10)); err != nil {
		return fmt.Errorf("report an iteration: %w", err)
	}
	return nil
}

// ParseIteration reads the line of an iteration; false for any other line, and where the units are
// no number, which no record can have.
func ParseIteration(line string) (from, to int64, units float64, ok bool) {
	words, ok := strings.CutPrefix(line, IterationLine)
	f := strings.Fields(words)
	if !ok || len(f) != 3 {
		return 0, 0, 0, false
	}
	from, err1 := strconv.ParseInt(f[0], 10, 64)
	to, err2 := strconv.ParseInt(f[1], 10, 64)
	units, err3 := strconv.ParseFloat(f[2], 64)
	return from, to, units, errors.Join(err1, err2, err3) == nil && to >= from && !math.IsNaN(units) && !math.IsInf(units, 0)
}

// PrintValues prints values with a number of digits, in the order of their names and in one
// write: a reader of the output sees all values or none.
func PrintValues(out io.Writer, values map[string]float64, digits int) error {
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(values)) {
		text = fmt.Appendf(text, "%s%s %s\n", ValueLine, name, number(values[name], digits))
	}
	if _, err := out.Write(text); err != nil {
		return fmt.Errorf("report values: %w", err)
	}
	return nil
}

func number(v float64, digits int) string { return strconv.FormatFloat(v, 'g', digits, 64) }
