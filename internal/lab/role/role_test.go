package role

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/machine/host"
)

// The barrier opens with a line. Afterwards the context ends with the input.
func TestBarrier(t *testing.T) {
	in, stdin := io.Pipe()
	go func() { _, _ = io.WriteString(stdin, "\n") }()
	ctx, cancel, ok := Barrier(t.Context(), in)
	defer cancel()
	if !ok || ctx.Err() != nil {
		t.Fatalf("opened %t, %v", ok, ctx.Err())
	}
	stdin.Close()
	<-ctx.Done()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	never, _ := io.Pipe()
	for name, c := range map[string]struct {
		ctx  context.Context
		in   io.Reader
		want bool
	}{
		"closed":               {t.Context(), strings.NewReader(""), false},
		"no whole line":        {t.Context(), strings.NewReader("placed"), false},
		"a line, then closed":  {t.Context(), strings.NewReader("\n"), true},
		"the context is ended": {ended, never, false},
	} {
		_, cancel, ok := Barrier(c.ctx, c.in)
		cancel()
		if ok != c.want {
			t.Errorf("%s: opened %t", name, ok)
		}
	}
}

// What is printed can be read, and what is not an iteration is refused.
func TestIterations(t *testing.T) {
	var out strings.Builder
	if err := PrintIteration(&out, 1, 1<<60, 1234567890); err != nil {
		t.Fatal(err)
	}
	if out.String() != "quell-lab iteration 1 1152921504606846976 1234567890\n" {
		t.Errorf("%q", out.String())
	}
	if from, to, units, ok := ParseIteration(strings.TrimSpace(out.String())); !ok || from != 1 || to != 1<<60 || units != 1234567890 {
		t.Errorf("%d, %d, %g, %t", from, to, units, ok)
	}
	for _, line := range []string{"", "other words", IterationLine, IterationLine + "1 2", IterationLine + "2 1 1", IterationLine + "1 2 x", IterationLine + "1 2 NaN", IterationLine + "1 2 -inf", IterationLine + "1 2 3 4"} {
		if _, _, _, ok := ParseIteration(line); ok {
			t.Errorf("%q is an iteration", line)
		}
	}
}

// writes are the texts that were written, each with one call.
type writes []string

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, string(p))
	return len(p), nil
}

// A reader of the output sees all values or none.
func TestValuesAreOneWrite(t *testing.T) {
	var out writes
	err := PrintValues(&out, map[string]float64{"b": 1.0 / 3, "a": 2}, 8)
	if want := (writes{"quell-lab value a 2\nquell-lab value b 0.33333333\n"}); err != nil || !slices.Equal(out, want) {
		t.Errorf("%q, %v, want %q", out, err, want)
	}
}

// An instant lies between two readings of either clock.
func TestInstant(t *testing.T) {
	before, from := time.Now(), host.Monotonic()
	at, ns := Instant()
	if at.Before(before) || at.After(time.Now()) || ns < from || ns > host.Monotonic() {
		t.Errorf("%v and %d", at, ns)
	}
}
