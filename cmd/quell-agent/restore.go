package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/machine/egress"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
)

const (
	// defaultGrace is how long a lease may be overdue before the agent that holds the
	// journal counts as hung: many ticks, and less than people wait.
	defaultGrace = 10 * time.Second
	// hungRecheck is how long an apparently hung agent is observed further: one that has
	// just started, or woken up, undoes overdue caps within it.
	hungRecheck = 2 * time.Second
)

type restoring struct {
	overdue, json bool
	grace         time.Duration
}

func restoreCommand(f *daemon.Config[config.Agent]) *cobra.Command {
	var r restoring
	cmd := &cobra.Command{Use: "restore", Short: "undo what a dead or hung agent left behind", Args: daemon.NoArgs,
		Long: `restore reads the journal in the state directory and puts back every limit that still
holds quell's value. It does not touch a limit that another process has changed, or a
cgroup that was removed, even if a new one exists at the same path.
It refuses while an agent is running: that agent undoes its caps itself.

With --overdue it undoes only caps whose lease has expired, even if an agent runs but
hangs: it is stopped or stuck, and its caps are overdue by more than --grace and still
overdue 2 s later. If nothing is overdue, it only reads one file. quell-restore.timer
runs this command.

Exit code: 0 nothing is left to undo; 1 a cap could not be undone and is still in force;
2 the configuration, the environment or the command line is invalid, or an agent runs;
3 overdue caps were undone for an agent that hangs: check the agent.`,
		Example: `  quell-agent restore                      # after a crash: undo everything
  quell-agent restore --overdue            # only expired caps; also while an agent hangs
  quell-agent restore --overdue --json     # what was done, for programs
  quell-agent restore --set state_dir=/var/lib/quell`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := f.Load()
			if err != nil {
				return err
			}
			if r.grace < 0 {
				return daemon.Usage(fmt.Errorf("--grace %s: want 0s or more", r.grace))
			}
			return r.run(cmd.Context(), cmd.OutOrStdout(), c)
		},
	}
	cmd.Flags().BoolVar(&r.overdue, "overdue", false, "only caps whose lease has expired; also while the agent hangs")
	cmd.Flags().DurationVar(&r.grace, "grace", defaultGrace, "with --overdue: how long a cap may be overdue before the agent counts as hung")
	cmd.Flags().BoolVar(&r.json, "json", false, "print what was done as JSON")
	return cmd
}

// States of the agent as restore finds it.
const (
	agentNone    = "none"    // no process holds the journal
	agentRunning = "running" // a process holds it, and nothing is overdue
	agentHung    = "hung"
)

// restored is the result of a restore, for programs.
type restored struct {
	Journal string `json:"journal"`
	// Agent is empty if it was not checked: nothing was open or overdue.
	Agent   string     `json:"agent,omitempty"`
	Undone  []ended    `json:"undone"`
	Failed  []string   `json:"failed"`   // not undone or not written down, with the reason
	InForce []standing `json:"in_force"` // caps that are left
	Damage  string     `json:"damage,omitempty"`
}

type ended struct {
	standing
	Result string       `json:"result"`
	Note   string       `json:"note,omitempty"`
	Writes []host.Write `json:"writes"`
}

type standing struct {
	ID    string          `json:"id"`
	Task  sample.TaskName `json:"task"`
	Until sample.Millis   `json:"until"`
}

// hungError is the error of a restore that had to act for an agent.
type hungError struct{ holder error }

func (e hungError) Error() string {
	return "overdue caps were undone for an agent that hangs: " + e.holder.Error()
}

func (e hungError) Unwrap() error { return e.holder }

// Code implements daemon.ExitCoder.
func (hungError) Code() int { return exitHung }

func (hungError) Remedy() string {
	return "find out what the agent waits for (kill -ABRT makes it print its goroutines and exit), then restart it"
}

// run is the command; it writes the result to w also on failure.
func (r *restoring) run(ctx context.Context, w io.Writer, c *config.Agent) error {
	h, err := host.Open("/")
	if err != nil {
		return daemon.Usage(err)
	}
	did := restored{Journal: filepath.Join(c.StateDir, journalDir), Undone: []ended{}, Failed: []string{}, InForce: []standing{}}
	v, err := enforce.ReadJournal(did.Journal)
	switch {
	case errors.Is(err, fs.ErrNotExist): // no journal: nothing to undo, and none is created
		err = nil
	case err != nil:
		return daemon.Usage(err)
	case len(v.Open) == 0 && v.Damage == "": // also if the disk is full
	case r.overdue:
		err = r.lift(ctx, &did, h, v)
	default:
		err = did.all(h)
	}
	if left, bad := enforce.ReadJournal(did.Journal); bad == nil {
		for _, c := range left.Open {
			did.InForce = append(did.InForce, standing{c.ID, c.Task, c.Until})
		}
	}
	var usage daemon.UsageError
	if errors.As(err, &usage) {
		return err
	}
	return errors.Join(err, did.print(w, r))
}

// all undoes every change of a journal that no process holds.
func (d *restored) all(h *host.Host) error {
	e, err := enforce.Open(d.Journal, egress.NewFiles(h))
	if err != nil {
		return locked(err)
	}
	d.Agent, d.Damage = agentNone, e.Damage()
	outcomes, err := e.RestoreAll(sample.At(time.Now()), "quell-agent restore")
	return d.ended(outcomes, errors.Join(err, e.Close()))
}

// lift undoes the overdue changes in v, as the journal's holder or while a hung agent
// holds it.
func (r *restoring) lift(ctx context.Context, did *restored, h *host.Host, v enforce.JournalView) error {
	over := func(by time.Duration) func(enforce.Change) bool {
		return func(c enforce.Change) bool { return sample.At(time.Now()) >= c.Until.Add(by) }
	}
	// A lease that begins in the future means that the clock was set back. A running
	// agent has its own clock, which never goes back, so it alone judges its leases.
	due := func(c enforce.Change) bool { return over(0)(c) || sample.At(time.Now()) < c.From }
	if !slices.ContainsFunc(v.Open, due) {
		return nil
	}
	e, holder := enforce.Open(did.Journal, egress.NewFiles(h))
	if holder == nil {
		did.Agent, did.Damage = agentNone, e.Damage()
		var outcomes []enforce.Outcome
		var errs []error
		for _, c := range slices.Backward(e.Active()) {
			if due(c) {
				o, err := e.Undo(sample.At(time.Now()), c.ID, "quell-agent restore --overdue")
				if err == nil || errors.Is(err, enforce.ErrJournal) {
					outcomes = append(outcomes, o)
				}
				errs = append(errs, err)
			}
		}
		return did.ended(outcomes, errors.Join(append(errs, e.Close())...))
	}
	if !errors.Is(holder, enforce.ErrLocked) {
		return daemon.Usage(holder)
	}
	did.Agent = agentRunning
	first := map[string]bool{}
	for _, c := range v.Open {
		if over(r.grace)(c) {
			first[c.ID] = true
		}
	}
	if len(first) == 0 {
		return nil
	}
	select {
	case <-time.After(hungRecheck):
	case <-ctx.Done():
		return ctx.Err()
	}
	outcomes, err := enforce.RestoreOverdue(did.Journal, egress.NewFiles(h), sample.At(time.Now()), func(c enforce.Change) bool {
		return first[c.ID] && over(r.grace)(c)
	})
	if len(outcomes) == 0 && err == nil {
		return nil // it has caught up
	}
	did.Agent = agentHung
	err = did.ended(outcomes, err)
	if len(outcomes) > 0 {
		err = errors.Join(err, hungError{holder})
	}
	return err
}

// ended records how changes ended.
func (d *restored) ended(outcomes []enforce.Outcome, err error) error {
	for _, o := range outcomes {
		d.Undone = append(d.Undone, ended{standing{o.Change.ID, o.Change.Task, o.Change.Until}, o.Result.String(), o.Note, o.Change.Writes})
	}
	if err != nil {
		d.Failed = append(d.Failed, err.Error())
	}
	return err
}

func (d *restored) print(w io.Writer, r *restoring) error {
	if r.json {
		e := json.NewEncoder(printable.NewWriter(w))
		e.SetIndent("", "  ")
		return e.Encode(d)
	}
	if d.Damage != "" {
		fmt.Fprintf(w, "the journal was damaged: %s\n", printable.Text(d.Damage))
	}
	for _, o := range d.Undone {
		fmt.Fprintf(w, "%s: %s", o.Task, o.Result)
		if o.Note != "" {
			fmt.Fprintf(w, " (%s)", printable.Text(o.Note))
		}
		fmt.Fprintln(w)
	}
	if len(d.Undone)+len(d.Failed) == 0 {
		fmt.Fprintln(w, map[bool]string{false: "nothing to undo", true: "nothing overdue"}[r.overdue])
	}
	for _, c := range d.InForce {
		fmt.Fprintf(w, "%s: in force until %s\n", c.Task, c.Until.Time().Format(time.RFC3339))
	}
	return nil
}

// openEnforcer opens the journal for the daemon. It waits for a concurrent restore,
// which holds the journal for milliseconds.
func openEnforcer(dir string, h *host.Host) (*enforce.Enforcer, error) {
	for end := time.Now().Add(2 * time.Second); ; {
		e, err := enforce.Open(dir, egress.NewFiles(h))
		if !errors.Is(err, enforce.ErrLocked) || time.Now().After(end) {
			return e, err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
