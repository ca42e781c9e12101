// Package cli is the commands of quell, the command-line tool for users.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/people/report"
)

// Exit codes, the same for every command.
const (
	exitOK       = iota
	exitNegative // the answer is negative
	exitUsage
)

// negativeResult is a negative answer that is not an error of quell: the object does not exist,
// the request was refused, or the result was bad.
type negativeResult struct {
	error
	remedy string
}

func (e *negativeResult) Unwrap() error  { return e.error }
func (e *negativeResult) Remedy() string { return e.remedy }

// usageError is an error with a remedy.
type usageError struct {
	error
	remedy string
}

func (e *usageError) Unwrap() error  { return e.error }
func (e *usageError) Remedy() string { return e.remedy }

// app is what all commands share: input, output, and the global flags.
type app struct {
	out, err io.Writer
	getenv   func(string) string
	// terminal returns the size of the terminal if out is one.
	terminal func() (width, height int, ok bool)
	now      func() time.Time
	zone     *time.Location
	program  string // quell's version

	socket               string
	json, noColor, ascii bool
}

// Main executes the command line of a version of quell, and returns the exit code.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	a := &app{out: os.Stdout, err: os.Stderr, getenv: os.Getenv, now: time.Now, zone: time.Local, program: version,
		terminal: func() (width, height int, ok bool) {
			width, height, err := term.GetSize(int(os.Stdout.Fd()))
			return width, height, err == nil
		}}
	defer stop()
	return a.run(ctx, args)
}

// run executes a command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.command()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	fmt.Fprintln(a.err, "quell:", err)
	var refused *api.RefusedError
	var remedied interface{ Remedy() string }
	remedy := ""
	switch {
	case errors.As(err, &refused):
		remedy = refused.Failure.Remedy
	case errors.As(err, &remedied):
		remedy = remedied.Remedy()
	default:
		remedy = "see `" + cmd.CommandPath() + " --help`"
	}
	if remedy != "" {
		fmt.Fprintln(a.err, "what to do:", remedy)
	}
	var no *negativeResult
	if errors.As(err, &no) || refused != nil {
		return exitNegative
	}
	return exitUsage
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "quell",
		Short: "find the noisy neighbour, prove it, quiet it",
		Long: `quell queries this machine's quell-agent: which tasks suffer from their neighbours, and
which neighbour is the cause. It also sends commands to the agent.

A task is named by its cgroup path, or by an ending of it that no other task has.

Exit codes: 0 success; 1 negative result (nothing found, refused, a required
capability is missing); 2 the command line or the environment is invalid.`,
		Example: `  quell doctor                # what can be counted and capped on this machine
  quell top                   # which tasks suffer now
  quell incidents             # what was found and done
  quell incidents last        # the newest in full, with charts
  quell cap encode --rate 0.1 --for 10m --reason "redis suffers, ticket 4711"`,
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetOut(a.out)
	root.SetErr(a.err)
	flags := root.PersistentFlags()
	socket := a.getenv("QUELL_SOCKET")
	if socket == "" {
		socket = "/run/quell/agent.sock"
	}
	flags.StringVar(&a.socket, "socket", socket, "the agent's socket ($QUELL_SOCKET)")
	flags.BoolVar(&a.noColor, "no-color", false, "no colours ($NO_COLOR)")
	flags.BoolVar(&a.ascii, "ascii", false, "plain ASCII; the default where the locale is not UTF-8")
	root.AddCommand(
		a.demo(), a.incidents(), a.top(), a.status(), a.doctor(),
		a.cap(), a.uncap(), a.protect(), a.enforcement(), a.offenders(), a.pardon(),
		a.query(), a.machines(), a.specs(), a.advise(), a.version(), a.workload(), a.lab(), a.replay(), a.sim(), a.evaluate(), a.trial(),
	)
	root.AddCommand(append(a.labHelpers(), a.webHelpers()...)...)
	return root
}

// withJSON adds --json to a command with structured output.
func (a *app) withJSON(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().BoolVar(&a.json, "json", false, "write JSON instead of text")
	return cmd
}

func (a *app) client() *api.Client { return api.NewClient(a.socket) }

// style is computed each time: a terminal may have been resized.
func (a *app) style() report.Style {
	s := report.Style{ASCII: a.ascii || !a.utf8(), Zone: a.zone, Now: sample.At(a.now())}
	if width, _, ok := a.terminal(); ok {
		s.Width = width
		s.Color = !a.noColor && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
	}
	return s
}

// utf8 checks the locale (POSIX, 8.2): the first variable that is set counts.
func (a *app) utf8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(a.getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

func (a *app) version() *cobra.Command {
	return a.withJSON(&cobra.Command{
		Use: "version", Short: "print the version", Args: cobra.NoArgs,
		Example: "  quell version\n  quell version --json",
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.writeJSON(map[string]string{"version": a.program})
			}
			_, err := fmt.Fprintln(a.out, "quell", a.program)
			return err
		},
	})
}
