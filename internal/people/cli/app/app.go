// Package app is what all commands of quell share: input and output, the global flags,
// errors with exit codes, and JSON.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/report"
)

// Exit codes, the same for every command.
const (
	ExitOK       = iota
	ExitNegative // the answer is negative
	ExitUsage
)

// codedError is an error with a remedy and an exit code.
type codedError struct {
	error
	remedy string
	code   int
}

func (e *codedError) Unwrap() error  { return e.error }
func (e *codedError) Remedy() string { return e.remedy }

// Negative returns a negative answer that is not an error of quell: the object does not
// exist, the request was refused, or the result was bad.
func Negative(err error, remedy string) error { return &codedError{err, remedy, ExitNegative} }

// IsNegative reports whether an error is a negative answer.
func IsNegative(err error) bool {
	e, ok := errors.AsType[*codedError](err)
	return ok && e.code == ExitNegative
}

// Usage returns an error of the command line or of the environment.
func Usage(err error, remedy string) error { return &codedError{err, remedy, ExitUsage} }

// App is the surroundings of a command.
type App struct {
	Out, Err io.Writer
	Getenv   func(string) string
	// Terminal returns the size of the terminal if Out is one.
	Terminal func() (width, height int, ok bool)
	Keyboard io.Reader // nil: there is no terminal to read keys from
	Now      func() time.Time
	Zone     *time.Location
	Version  string // quell's

	JSON, NoColor, ASCII bool
}

// NoArgs refuses arguments: those of a command with subcommands are the name of one, and the
// nearest is suggested.
func NoArgs(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return nil
	case !cmd.HasAvailableSubCommands():
		return Usage(fmt.Errorf("%s takes no argument, not %q", cmd.CommandPath(), args[0]), "see `"+cmd.CommandPath()+" --help`")
	}
	err := fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return Usage(err, "try `"+cmd.CommandPath()+" "+near[0]+"`; `"+cmd.CommandPath()+" --help` lists the commands")
	}
	return Usage(err, "see `"+cmd.CommandPath()+" --help`")
}

// DurationVar adds a flag for a duration with the units that people use, days included. A default
// of 0 is not shown.
func DurationVar(flags *pflag.FlagSet, d *time.Duration, name string, value time.Duration, usage string) {
	*d = value
	flags.Var((*sample.Duration)(d), name, usage)
	if value == 0 {
		flags.Lookup(name).DefValue = ""
	}
}

// Run executes a command line and returns the exit code.
func (a *App) Run(ctx context.Context, root *cobra.Command, args []string) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetOut(a.Out)
	root.SetErr(a.Err)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return ExitOK
	}
	remedy := "see `" + cmd.CommandPath() + " --help`"
	var remedied interface{ Remedy() string }
	refused, isRefused := errors.AsType[*api.RefusedError](err)
	switch {
	case isRefused:
		remedy = refused.Failure.Remedy
	case errors.As(err, &remedied):
		remedy = remedied.Remedy()
	}
	fmt.Fprintln(a.Err, "quell:", message(err.Error(), isRefused))
	if remedy != "" {
		fmt.Fprintln(a.Err, "what to do:", message(remedy, isRefused))
	}
	if isRefused || IsNegative(err) {
		return ExitNegative
	}
	return ExitUsage
}

// message is an error or a remedy for people. If it came from a peer, its further lines are
// indented: they cannot look like others of quell's own.
func message(text string, peer bool) string {
	text = printable.Lines(text)
	if peer {
		text = strings.ReplaceAll(text, "\n", "\n  ")
	}
	return text
}

// WithJSON adds --json to a command with structured output.
func (a *App) WithJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.JSON, "json", false, "write JSON instead of text")
	return cmd
}

// WriteJSON writes a value as JSON, indented for readability. What is not printable is escaped
// as JSON does, so that the document is the same.
func (a *App) WriteJSON(v any) error {
	e := json.NewEncoder(printable.NewWriter(a.Out))
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// Show writes a value as JSON or, without --json, as text.
func Show[T any](a *App, v T, text func(io.Writer, T, report.Style) error) error {
	if a.JSON {
		return a.WriteJSON(v)
	}
	return text(a.Out, v, a.Style())
}

// Table writes values as a JSON list or, without --json, as a table. The names of columns
// of numbers begin with #.
func Table[T any](a *App, all []T, columns []string, row func(T) []string) error {
	if a.JSON {
		return a.WriteJSON(List(all))
	}
	heads := make([]report.Column, len(columns))
	for i, name := range columns {
		heads[i].Name, heads[i].Number = strings.CutPrefix(name, "#")
	}
	rows := make([][]string, len(all))
	for i, v := range all {
		rows[i] = row(v)
	}
	return report.Table(a.Out, heads, rows, false, a.Style())
}

// List turns nil into an empty list for JSON.
func List[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

// Style is computed each time: a terminal may have been resized.
func (a *App) Style() report.Style {
	s := report.Style{ASCII: a.ASCII || !a.utf8(), Zone: a.Zone, Now: sample.At(a.Now())}
	if width, _, ok := a.Terminal(); ok {
		s.Width = width
		s.Color = !a.NoColor && a.Getenv("NO_COLOR") == "" && a.Getenv("TERM") != "dumb"
	}
	return s
}

// utf8 checks the locale (POSIX, 8.2): the first variable that is set counts.
func (a *App) utf8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(a.Getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// Text is the writer for text: with --json, standard output is for the result.
func (a *App) Text() io.Writer {
	if a.JSON {
		return a.Err
	}
	return a.Out
}

// clearLine goes to the beginning of the line and clears it (ECMA-48).
const clearLine = "\r\x1b[K"

// Progress is a line that is redrawn on a terminal.
type Progress struct {
	w           io.Writer
	live, drawn bool
}

// Progress returns a progress line on w, which is never drawn without a terminal or with
// --json.
func (a *App) Progress(w io.Writer) *Progress {
	_, _, ok := a.Terminal()
	return &Progress{w: w, live: ok && !a.JSON}
}

// Live reports whether the line is drawn.
func (p *Progress) Live() bool { return p.live }

// Draw replaces the line.
func (p *Progress) Draw(format string, args ...any) {
	if p.live {
		fmt.Fprint(printable.Raw(p.w), clearLine)
		fmt.Fprint(p.w, printable.Text(fmt.Sprintf(format, args...)))
		p.drawn = true
	}
}

// Clear removes the line.
func (p *Progress) Clear() {
	if p.drawn {
		fmt.Fprint(printable.Raw(p.w), clearLine)
		p.drawn = false
	}
}

// Bar is a bar of width characters for a share from 0 to 1.
func Bar(share float64, width int, full, empty string) string {
	n := min(int(share*float64(width)), width)
	return strings.Repeat(full, n) + strings.Repeat(empty, width-n)
}

// WriteFile makes a file and fills it. After an error or a kill the old one is still there.
func WriteFile(name string, fill func(io.Writer) error) error { return atomicfile.Fill(name, fill) }

// Program finds another program of quell: the named one, else next to this one, else in
// PATH.
func Program(name, named string) (string, error) {
	if named != "" {
		return named, nil
	}
	if self, err := os.Executable(); err == nil {
		sibling := filepath.Join(filepath.Dir(self), name)
		if _, err := os.Stat(sibling); err == nil {
			return sibling, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return path, nil
}
