package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

// Control sequences of the live view (ECMA-48; the alternate screen is xterm's).
const (
	enter   = "\x1b[?1049h\x1b[?25l\x1b[?7l" // alternate screen, no cursor, no wrapping
	leave   = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	home    = "\x1b[H"
	line    = "\x1b[2K" // clear the line; after a full line it would clear the last character
	pageEnd = "\x1b[J"  // clear everything below
)

func (a *commands) top() *cobra.Command {
	var once bool
	var sort string
	cmd := &cobra.Command{
		Use: "top", Short: "watch the tasks: usage, cost against threshold, caps", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := report.SortTasks(nil, sort); err != nil {
				return err
			}
			if !once {
				return a.live(cmd.Context(), sort, time.Second)
			}
			tasks, err := a.tasks(cmd.Context(), sort)
			if err != nil {
				return err
			}
			return app.Show(a.App, tasks, report.Tasks)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print the table once")
	cmd.Flags().StringVar(&sort, "sort", "worst", "sort by: worst, cpu, name, or a signal such as cpi")
	return a.WithJSON(cmd)
}

// tasks returns the agent's tasks in the order of a key.
func (a *commands) tasks(ctx context.Context, sort string) ([]api.TaskView, error) {
	tasks, err := a.client().Tasks(ctx)
	return app.List(tasks), cmp.Or(err, report.SortTasks(tasks, sort))
}

// live writes the tasks repeatedly until ctx ends, which is no error.
func (a *commands) live(ctx context.Context, sort string, every time.Duration) error {
	_, _, screen := a.Terminal()
	screen = screen && !a.JSON
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for first := true; ; first = false {
		text, err := a.frame(ctx, sort, screen)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if screen && first {
			if _, err := io.WriteString(printable.Raw(a.Out), enter); err != nil {
				return err
			}
			defer io.WriteString(printable.Raw(a.Out), leave)
		}
		out := a.Out
		if screen { // the text went through the printer, and has control sequences now
			out = printable.Raw(out)
		}
		if _, err := io.WriteString(out, text); err != nil {
			return fmt.Errorf("write tasks: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
	}
}

// frame returns one complete frame of the live view, so that it does not flicker.
func (a *commands) frame(ctx context.Context, sort string, screen bool) (string, error) {
	tasks, err := a.tasks(ctx, sort)
	if err != nil {
		return "", err
	}
	if a.JSON {
		line, err := json.Marshal(tasks)
		return string(line) + "\n", err
	}
	st, err := a.client().Status(ctx)
	if err != nil {
		return "", err
	}
	s := a.Style()
	if _, height, ok := a.Terminal(); ok {
		s.Height = max(height-5, 1) // heading, blank, table's head, "and N more", last line
	}
	var b strings.Builder
	b.WriteString(report.Heading(st, s) + "\n\n")
	if err := report.Tasks(&b, tasks, s); err != nil {
		return "", err
	}
	if !screen {
		return b.String() + "\n", nil
	}
	var safe strings.Builder
	if _, err := io.WriteString(printable.NewWriter(&safe), b.String()); err != nil {
		return "", err
	}
	return home + line + strings.ReplaceAll(safe.String(), "\n", "\n"+line) + pageEnd, nil
}
