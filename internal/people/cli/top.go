package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
	"github.com/quell-dev/quell/internal/people/top"
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
	var past pastFlags
	var at *scope
	cmd := &cobra.Command{
		Use: "top", Short: "watch the tasks, look at one in detail, and act on it", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := report.SortTasks(nil, sort); err != nil {
				return err
			}
			here, err := at.here(cmd)
			if err != nil {
				return err
			}
			agent, every := a.agent(at), time.Second
			if !here {
				every = everyMachine
			}
			switch {
			case !here && past.at != "":
				return app.Usage(errors.New("--at and --machine"), "run quell on that machine, or use `quell incidents --machine`")
			case past.at == "" && (len(past.recordings) > 0 || past.stateDir != ""):
				return app.Usage(errors.New("--trace and --state-dir without a time"), "add --at TIME")
			case past.at != "" && (once || a.JSON || !a.interactive()):
				return app.Usage(errors.New("--at is for the screen of a terminal"), "use `quell incidents` or `quell replay` in scripts")
			case past.at != "":
				return a.showPast(cmd.Context(), past, sort)
			case !once && !a.JSON && a.interactive():
				o := a.screen(sort)
				o.Agent, o.Every, o.Remote = agent, every, !here
				return top.Run(cmd.Context(), o)
			case !once:
				return a.live(cmd.Context(), agent, sort, every)
			}
			tasks, err := sorted(cmd.Context(), agent, sort)
			if err != nil {
				return err
			}
			return app.Show(a.App, tasks, report.Tasks)
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&once, "once", false, "print the table once")
	flags.StringVar(&sort, "sort", "worst", "sort by: worst, cpu, name, or a signal such as cpi")
	flags.StringVar(&past.at, "at", "", "show what was recorded of a `time`: 15:04, 2006-01-02 15:04:05, RFC 3339, or how long ago (30m)")
	flags.StringArrayVar(&past.recordings, "trace", nil, "with --at, a `file` with the samples of all tasks: the agent's record, or a segment; may be repeated")
	flags.StringVar(&past.stateDir, "state-dir", "", "with --at, read the log in the agent's state `directory` instead of asking the agent")
	at = a.addMachine(cmd)
	return a.WithJSON(cmd)
}

// interactive reports whether a person can use keys: both ends are a terminal that obeys
// control sequences.
func (a *commands) interactive() bool {
	_, _, screen := a.Terminal()
	return screen && a.Keyboard != nil && a.Getenv("TERM") != "dumb" && a.Getenv("TERM") != ""
}

// screen is the interactive screen of this terminal.
func (a *commands) screen(sort string) top.Options {
	var env []string
	for _, name := range []string{"TERM", "COLORTERM", "TERM_PROGRAM", "TMUX", "SSH_TTY", "NO_COLOR"} {
		if v := a.Getenv(name); v != "" {
			env = append(env, name+"="+v)
		}
	}
	return top.Options{Agent: a.client(), Every: time.Second, Sort: sort, Style: a.Style(), In: a.Keyboard, Out: printable.Raw(a.Out), Env: env}
}

type pastFlags struct {
	at, stateDir string
	recordings   []string
}

// showPast shows what was recorded of a time.
func (a *commands) showPast(ctx context.Context, f pastFlags, sort string) error {
	at, err := parseAt(f.at, a.Now(), a.Zone)
	if err != nil {
		return err
	}
	var book top.Book
	machine := ""
	st, err := a.client().Status(ctx)
	switch {
	case f.stateDir != "":
		b, err := a.book(f.stateDir)
		if err != nil {
			return err
		}
		book = top.LogBook{Book: b}
	case err == nil:
		book, machine = top.AgentBook{Agent: a.client()}, st.Machine
	case len(f.recordings) == 0:
		return noAgent(err)
	}
	past, err := top.LoadPast(ctx, sample.At(at), machine, book, f.recordings)
	if err != nil {
		return err
	}
	o := a.screen(sort)
	o.Past = past
	return top.Run(ctx, o)
}

// parseAt reads a point in time: a time of day is the last one before now.
func parseAt(text string, now time.Time, zone *time.Location) (time.Time, error) {
	if ago, err := sample.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04:05", "2006-01-02T15:04", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, zone); err == nil {
			return t, nil
		}
	}
	for _, layout := range []string{"15:04:05", "15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			now = now.In(zone)
			at := time.Date(now.Year(), now.Month(), now.Day(), t.Hour(), t.Minute(), t.Second(), 0, zone)
			if at.After(now) {
				at = at.AddDate(0, 0, -1)
			}
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("--at %q: want a time such as 15:04, \"2006-01-02 15:04:05\" or 2006-01-02T15:04:05Z, or how long ago, such as 30m", text)
}

// sorted returns the agent's tasks in the order of a key.
func sorted(ctx context.Context, of top.Agent, sort string) ([]api.TaskView, error) {
	tasks, err := of.Tasks(ctx)
	return app.List(tasks), cmp.Or(err, report.SortTasks(tasks, sort))
}

// live writes the tasks repeatedly until ctx ends, which is no error.
func (a *commands) live(ctx context.Context, of top.Agent, sort string, every time.Duration) error {
	_, _, screen := a.Terminal()
	screen = screen && !a.JSON
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for first := true; ; first = false {
		text, err := a.frame(ctx, of, sort, screen)
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
func (a *commands) frame(ctx context.Context, of top.Agent, sort string, screen bool) (string, error) {
	st, err := of.Status(ctx)
	if err != nil {
		return "", err
	}
	tasks, err := sorted(ctx, of, sort)
	if err != nil {
		return "", err
	}
	if a.JSON {
		line, err := json.Marshal(tasks)
		return string(line) + "\n", err
	}
	s := a.Style()
	_, height, known := a.Terminal()
	known = known && height > 0 // as it is not on a serial line
	if known {
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
	// A note may take several lines. One more than the screen has would scroll the heading away.
	lines := strings.SplitAfter(safe.String(), "\n")
	if known {
		lines = append(lines[:min(len(lines)-1, max(height-1, 1))], "")
	}
	return home + line + strings.Join(lines, line) + pageEnd, nil
}
