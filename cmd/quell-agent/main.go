// quell-agent is the per-machine daemon: it finds tasks that suffer from their
// neighbours, names the neighbour, and caps it if that is permitted.
package main

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/machine/enforce"
)

// version is set by the linker.
var version = "devel"

// exitHung is the exit code of a restore that had to act for a hung agent; the other
// codes are in package daemon.
const exitHung = 3

func main() { os.Exit(daemon.Main(context.Background(), rootCommand(), os.Stderr)) }

func rootCommand() *cobra.Command {
	var f *daemon.Config[config.Agent]
	root := &cobra.Command{
		Use:   "quell-agent",
		Short: "find the noisy neighbour on this machine, and quiet it",
		Long: `quell-agent samples every task of the machine, learns what its job normally costs,
finds tasks that suffer, names the neighbour that is the cause, and (with enforce.mode=on)
caps that neighbour for a limited time. Every change is journalled before it is made. It is
undone when its lease expires, when the agent stops, and when the agent starts again.

Keys of the configuration can be set in the file, in the environment
(sampling.period as QUELL_SAMPLING_PERIOD) and with --set; later sources win.`,
		Example: `  quell-agent --config /etc/quell/agent.yaml
  quell-agent --set enforce.mode=on --set sampling.period=30s
  quell-agent check --config agent.yaml   # lists every problem, changes nothing
  quell-agent config > agent.yaml         # every key with its default and range
  quell-agent restore                     # undo what a dead agent left behind`,
		Args: daemon.NoArgs, Version: version,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.LoadToRun()
			if err != nil {
				return err
			}
			return run(cmd.Context(), c)
		},
	}
	f = daemon.AddConfig(root, config.Load, config.Reference, "agent.yaml", "sampling.period=30s")
	root.AddCommand(restoreCommand(f))
	return root
}

// lockedError tells the user how to deal with a running agent. Two agents cannot share
// a journal, and restore cannot know which of its changes are still wanted.
type lockedError struct{ error }

func (e lockedError) Unwrap() error { return e.error }

func (lockedError) Remedy() string {
	return "stop the agent that uses this state_dir: it undoes its caps when it stops; `quell uncap` and `quell enforcement off` undo them now; " +
		"if it hangs, `quell-agent restore --overdue` undoes the expired caps"
}

func locked(err error) error {
	if errors.Is(err, enforce.ErrLocked) {
		return daemon.Usage(lockedError{err})
	}
	return err
}

// deniedError tells a user who is not root what the agent needs.
type deniedError struct{ error }

func (e deniedError) Unwrap() error { return e.error }

func (deniedError) Remedy() string {
	return "run it as root (sudo), or set state_dir, journals and socket to places of this user: docs/privileges.md says what works without root"
}

// denied adds the remedy to an error of a user who may not use a file or directory.
func denied(err error, uid int) error {
	if uid != 0 && errors.Is(err, fs.ErrPermission) {
		return daemon.Usage(deniedError{err})
	}
	return err
}

// onlyOneError tells the user why a second agent is refused, whatever its state directory is:
// each of two would restore the other's limits as if they were the original ones.
type onlyOneError struct{ error }

func (e onlyOneError) Unwrap() error { return e.error }

func (onlyOneError) Remedy() string {
	return "stop the other quell-agent: only one may limit tasks on a machine, whatever its container or state_dir; " +
		"if both are to run and never limit the same cgroup, set exclusive: false for both"
}

func onlyOne(err error) error {
	if errors.Is(err, enforce.ErrMachine) {
		return daemon.Usage(onlyOneError{err})
	}
	return err
}
