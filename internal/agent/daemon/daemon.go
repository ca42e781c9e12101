// Package daemon is what quell's daemons have in common: how they exit and report why,
// how they log, the commands for the configuration that each of them has, and listeners
// with bounds.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/format/printable"
)

// Exit codes. A program may have additional ones (ExitCoder).
const (
	Failed    = 1 // something failed while running
	ExitUsage = 2 // the configuration, the environment or the command line is wrong, and nothing was changed
)

// UsageError makes a program exit with ExitUsage.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }
func (e UsageError) Unwrap() error { return e.Err }

// Usage marks an error as one that the user must fix, before anything was changed.
func Usage(err error) error { return UsageError{err} }

// ExitCoder is an error that ends a program with its own exit code.
type ExitCoder interface {
	error
	Code() int
}

// Remedier is an error that says how to fix it.
type Remedier interface{ Remedy() string }

// Main carries out a command line and returns the exit code. The error, and how to fix
// it, is on the standard error.
func Main(ctx context.Context, root *cobra.Command, stderr io.Writer) int {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintf(stderr, "%s: %s\n", root.Name(), printable.Lines(err.Error()))
	var remedied Remedier
	if errors.As(err, &remedied) {
		fmt.Fprintln(stderr, "what to do:", printable.Lines(remedied.Remedy()))
	}
	var usage UsageError
	var coded ExitCoder
	switch {
	case errors.As(err, &coded):
		return coded.Code()
	case errors.As(err, &usage):
		return ExitUsage
	}
	return Failed
}

// NoArgs is cobra.NoArgs with a UsageError.
func NoArgs(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w; did you mean `%s %s`?", err, cmd.CommandPath(), near[0])
	}
	return Usage(err)
}

// Config is the sources of a daemon's configuration of type C: a file, the environment
// and --set, in this order.
type Config[C any] struct {
	load func(file string, environ, settings []string) (*C, error)
	file string
	set  []string
}

// AddConfig gives a daemon the flags --config and --set, and the commands check and
// config. file and setting are examples for the help.
func AddConfig[C any](root *cobra.Command, load func(file string, environ, settings []string) (*C, error), reference func() string, file, setting string) *Config[C] {
	c := &Config[C]{load: load}
	root.PersistentFlags().StringVar(&c.file, "config", "", "configuration file (YAML)")
	root.PersistentFlags().StringArrayVar(&c.set, "set", nil, "set one key, e.g. "+setting+"; may be repeated")
	root.AddCommand(
		&cobra.Command{Use: "check", Short: "check the configuration and list every problem", Args: NoArgs,
			Example: fmt.Sprintf("  %s check --config %s", root.Name(), file),
			RunE: func(cmd *cobra.Command, _ []string) error {
				if _, err := c.LoadToRun(); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
				return nil
			}},
		&cobra.Command{Use: "config", Short: "print every key with its default, help and range", Args: NoArgs,
			Example: fmt.Sprintf("  %s config > /etc/quell/%s", root.Name(), file),
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprint(cmd.OutOrStdout(), reference())
				return err
			}})
	return c
}

// Load reads the configuration; all problems of all sources are one usage error. The
// settings in more override all others.
func (c *Config[C]) Load(more ...string) (*C, error) {
	v, err := c.load(c.file, os.Environ(), append(slices.Clip(c.set), more...))
	if err != nil {
		return nil, Usage(err)
	}
	return v, nil
}

// LoadToRun is Load, and checks the files that the configuration names.
func (c *Config[C]) LoadToRun() (*C, error) {
	v, err := c.Load()
	if err != nil {
		return nil, err
	}
	if f, ok := any(v).(interface{ CheckFiles() error }); ok {
		if err := f.CheckFiles(); err != nil {
			return nil, Usage(err)
		}
	}
	return v, nil
}

// Under returns a configuration with additional settings that c's own override.
func (c *Config[C]) Under(settings ...string) *Config[C] {
	return &Config[C]{c.load, c.file, slices.Concat(settings, c.set)}
}

// Args are the arguments that give another process the same configuration.
func (c *Config[C]) Args() (args []string) {
	if c.file != "" {
		args = append(args, "--config", c.file)
	}
	for _, s := range c.set {
		args = append(args, "--set", s)
	}
	return args
}

// Log writes to the standard error, what is not printable escaped; level and format are named as in configurations.
func Log(level, format string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo // Validate has excluded that
	}
	o, w := &slog.HandlerOptions{Level: l}, printable.NewWriter(os.Stderr)
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// UntilStopped ends its context on SIGTERM or SIGINT. SIGHUP, which reloads many other
// daemons, is ignored: files that have changed are read again without it.
func UntilStopped(ctx context.Context) (context.Context, context.CancelFunc) {
	signal.Ignore(syscall.SIGHUP)
	return signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
}
