package labcmd

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// labProgress is a lab.Progress with text output: one line per run, and on a terminal a
// progress line.
type labProgress struct {
	*app.Progress
	w     io.Writer
	now   func() time.Time
	began time.Time
	runs  int
	left  time.Duration // remaining time according to the plan
	of    time.Duration // of the current run
	done  time.Duration // planned time of the finished runs
	line  string
}

// Plan implements lab.Progress.
func (p *labProgress) Plan(runs int, takes time.Duration) {
	p.runs, p.left, p.began = runs, takes, p.now()
	fmt.Fprintf(p.w, "%d runs to do, %s\n", runs, formatDuration(takes))
}

// Run implements lab.Progress.
func (p *labProgress) Run(i int, r *study.Planned, try int) {
	again := ""
	if try > 0 {
		again = fmt.Sprintf(", try %d", try+1)
	}
	p.of = r.Takes
	p.line = fmt.Sprintf("[%*d/%d] %s%s", len(fmt.Sprint(p.runs)), i+1, max(p.runs, i+1), r.Cell.String(), again)
}

// Phase implements lab.Progress.
func (p *labProgress) Phase(name string, part, whole time.Duration) {
	share := ""
	if whole > time.Second {
		share = fmt.Sprintf(" %.0f/%.0f s", part.Seconds(), whole.Seconds())
	}
	p.Draw("%s: %s%s; %s left", p.line, name, share, formatDuration(p.remaining()))
}

// Done implements lab.Progress.
func (p *labProgress) Done(r *result.Run) {
	p.Clear()
	p.left, p.done = max(0, p.left-p.of), p.done+p.of
	fmt.Fprintf(p.w, "%s: %s", p.line, r.Verdict)
	for i, e := range r.Evidence {
		if i == 2 {
			fmt.Fprintf(p.w, "; and %d more", len(r.Evidence)-i)
			break
		}
		fmt.Fprintf(p.w, "; %s: %s", e.Reason, e.Text)
	}
	fmt.Fprintln(p.w)
}

// remaining is the remaining planned time, scaled by the pace of the finished runs.
func (p *labProgress) remaining() time.Duration {
	if p.done == 0 {
		return p.left
	}
	return time.Duration(float64(p.left) * p.now().Sub(p.began).Seconds() / p.done.Seconds())
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
