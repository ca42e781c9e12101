// Package cli is the commands of quell, the command-line tool for users.
package cli

import (
	"cmp"
	"context"
	"embed"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/cli/labcmd"
	"github.com/quell-dev/quell/internal/people/cli/replaycmd"
)

// commands is the App with the flags that only these commands have.
type commands struct {
	*app.App
	socket string
}

// Main executes the command line of a version of quell, and returns the exit code.
func Main(version string, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), endings()...)
	defer stop()
	a := &app.App{Out: os.Stdout, Err: printable.NewWriter(os.Stderr), Getenv: os.Getenv, Now: time.Now, Zone: time.Local, Version: version,
		Terminal: func() (width, height int, ok bool) {
			width, height, err := term.GetSize(int(os.Stdout.Fd()))
			return width, height, err == nil
		}}
	if _, _, terminal := a.Terminal(); terminal { // a file or another program gets the bytes as they are
		a.Out = printable.NewWriter(os.Stdout)
	}
	if term.IsTerminal(int(os.Stdin.Fd())) {
		a.Keyboard = os.Stdin
	}
	return a.Run(ctx, newRoot(a), args)
}

// endings are the signals on which a command ends in order. One of them is that of a terminal that is
// gone, e.g. with its SSH, unless the command was started to outlive it (nohup).
func endings() []os.Signal {
	all := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		all = append(all, syscall.SIGHUP)
	}
	return all
}

func newRoot(shared *app.App) *cobra.Command {
	a := &commands{App: shared}
	root := &cobra.Command{
		Use:   "quell",
		Short: "find the noisy neighbour, prove it, quiet it",
		Args:  app.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = a.Version
	root.SetVersionTemplate("quell {{.Version}}\n")
	flags := root.PersistentFlags()
	flags.StringVar(&a.socket, "socket", cmp.Or(a.Getenv("QUELL_SOCKET"), "/run/quell/agent.sock"), "the agent's socket ($QUELL_SOCKET)")
	flags.BoolVar(&a.NoColor, "no-color", false, "no colours ($NO_COLOR)")
	flags.BoolVar(&a.ASCII, "ascii", false, "plain ASCII; the default where the locale is not UTF-8")
	root.AddCommand(
		a.init(), a.demo(), a.incidents(), a.top(), a.status(), a.ui(), a.doctor(),
		a.cap(), a.uncap(), a.protect(), a.enforcement(), a.decisions(), a.offenders(), a.pardon(),
		a.query(), a.machines(), a.specs(), a.advise(), a.version(), a.workload(), labcmd.Command(shared), replaycmd.Replay(shared), replaycmd.Sim(shared), a.evaluate(), a.trial(),
	)
	root.AddCommand(labcmd.Helpers()...)
	addHelp(root)
	return root
}

//go:embed help/*.txt
var help embed.FS

// addHelp reads the long help and the examples of a command and its subcommands from files
// named after the command's path. A command without a file has them in its definition.
func addHelp(cmd *cobra.Command) {
	if text, err := help.ReadFile("help/" + strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".txt"); err == nil {
		cmd.Long, cmd.Example, _ = strings.Cut(strings.TrimSuffix(string(text), "\n"), "\n\nExamples:\n")
	}
	for _, sub := range cmd.Commands() {
		addHelp(sub)
	}
}

func (a *commands) client() *api.Client { return api.NewClient(a.socket) }

func (a *commands) version() *cobra.Command {
	return a.WithJSON(&cobra.Command{
		Use: "version", Short: "print the version", Args: app.NoArgs,
		Example: "  quell version\n  quell version --json",
		RunE: func(*cobra.Command, []string) error {
			if a.JSON {
				return a.WriteJSON(map[string]string{"version": a.Version})
			}
			_, err := fmt.Fprintln(a.Out, "quell", a.Version)
			return err
		},
	})
}
