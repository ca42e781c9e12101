// quell-agent is the per-machine daemon: it finds tasks that suffer from their
// neighbours, says which neighbour, and caps it if it may.
package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/config"
	"github.com/quell-dev/quell/internal/enforce"
)

// version is stamped by the linker.
var version = "devel"

// Exit codes: 1 something failed while running, 2 the configuration, the
// environment or the command line is not right and nothing was touched, 3
// restore had to act for an agent that hangs.
const (
	exitFailed = 1
	exitUsage  = 2
	exitHung   = 3
)

// usageError marks what exits with exitUsage.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

type flags struct {
	file string
	set  []string
}

func (f *flags) load() (*config.Agent, error) {
	c, err := config.Load(f.file, os.Environ(), f.set)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}

func main() {
	err := command().Execute()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "quell-agent:", err)
	var remedied interface{ Remedy() string }
	if errors.As(err, &remedied) {
		fmt.Fprintln(os.Stderr, "what to do:", remedied.Remedy())
	}
	var usage usageError
	if errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	var hung hungError
	if errors.As(err, &hung) {
		os.Exit(exitHung)
	}
	os.Exit(exitFailed)
}

func command() *cobra.Command {
	var f flags
	root := &cobra.Command{
		Use:   "quell-agent",
		Short: "find the noisy neighbour on this machine, and quiet it",
		Long: `quell-agent samples every task of the machine, learns what its job normally costs,
finds tasks that suffer, says which neighbour is to blame, and (with enforce.mode=on)
caps that neighbour for a while. Every change is journalled before it is made and
undone when its time is over, when the agent stops, and when it starts again.

Keys of the configuration can be set in the file, in the environment
(sampling.period as QUELL_SAMPLING_PERIOD) and with --set; the later counts.`,
		Example: `  quell-agent --config /etc/quell/agent.yaml
  quell-agent --set enforce.mode=on --set sampling.period=30s
  quell-agent check --config agent.yaml   # names every problem, changes nothing
  quell-agent config > agent.yaml         # every key with its default and range
  quell-agent restore                     # undo what a dead agent left behind`,
		Args: noArgs, SilenceUsage: true, SilenceErrors: true, Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.load()
			if err != nil {
				return err
			}
			return run(cmd.Context(), c)
		},
	}
	root.PersistentFlags().StringVar(&f.file, "config", "", "configuration file (YAML)")
	root.PersistentFlags().StringArrayVar(&f.set, "set", nil, "set one key, e.g. sampling.period=30s; may be repeated")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		&cobra.Command{Use: "check", Short: "check the configuration and name every problem", Args: noArgs,
			Example: "  quell-agent check --config agent.yaml",
			RunE: func(cmd *cobra.Command, _ []string) error {
				if _, err := f.load(); err != nil {
					return err
				}
				fmt.Fprintln(cmd.OutOrStdout(), "the configuration is right")
				return nil
			}},
		&cobra.Command{Use: "config", Short: "print every key with its default, help and range", Args: noArgs,
			Example: "  quell-agent config > /etc/quell/agent.yaml",
			RunE: func(cmd *cobra.Command, _ []string) error {
				_, err := fmt.Fprint(cmd.OutOrStdout(), config.Reference())
				return err
			}},
		restoreCommand(&f),
	)
	return root
}

// lockedError tells people what to do about a running agent. Two cannot share
// a journal, and restore cannot know which of its changes are still wanted.
type lockedError struct{ error }

func (e lockedError) Unwrap() error { return e.error }

func (lockedError) Remedy() string {
	return "stop the agent that uses this state_dir, it undoes its caps then; `quell uncap` and `quell enforcement off` lift them now; " +
		"if it hangs, `quell-agent restore --overdue` lifts what is past its time"
}

func locked(err error) error {
	if errors.Is(err, enforce.ErrLocked) {
		return usageError{lockedError{err}}
	}
	return err
}
