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
	// giveTime lets an agent that is apparently hung catch up.
	giveTime func(context.Context) error
}

// waitForRecheck is restoring.giveTime: hungRecheck.
func waitForRecheck(ctx context.Context) error {
	select {
	case <-time.After(hungRecheck):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func restoreCommand(f *daemon.Config[config.Agent]) *cobra.Command {
	r := restoring{giveTime: waitForRecheck}
	cmd := &cobra.Command{Use: "restore", Short: "undo what a dead or hung agent left behind", Args: daemon.NoArgs,
		Long: `restore reads the journal in the state directory and puts back every limit that still
holds quell's value. It does not touch a limit that another process has changed, or a
cgroup that was removed, even if a new one exists at the same path.
It refuses while an agent is running: that agent undoes its caps itself.

It does the same for the journals of other agents of this machine that are noted in the
directory "journals": agents with another state directory. If one of them runs, its caps are
its own, and restore only names it. A journal that was noted and cannot be opened from here,
because it is in a container, is named too.

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
	r.grace = defaultGrace
	cmd.Flags().Var((*sample.Duration)(&r.grace), "grace", "with --overdue: how long a cap may be overdue before the agent counts as hung")
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
	// Others are the other agents' journals with anything to tell; Unreachable are those
	// that cannot be opened.
	Others      []*restored `json:"others,omitempty"`
	Unreachable []string    `json:"unreachable,omitempty"`

	forget func() error // removes the note of the journal; nil: there is none to remove
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
	did := newRestored(filepath.Join(c.StateDir, journalDir))
	err = r.restore(ctx, did, h)
	var usage daemon.UsageError
	if errors.As(err, &usage) {
		return err
	}
	err = errors.Join(err, r.others(ctx, did, h, enforce.Registry{Dir: c.Journals}))
	return errors.Join(err, did.print(w, r))
}

func newRestored(journal string) *restored {
	return &restored{Journal: journal, Undone: []ended{}, Failed: []string{}, InForce: []standing{}}
}

// restore undoes what one journal says.
func (r *restoring) restore(ctx context.Context, did *restored, h *host.Host) error {
	v, err := enforce.ReadJournal(did.Journal)
	switch {
	case errors.Is(err, fs.ErrNotExist): // no journal: nothing to undo, and none is created
		err = nil
	case err != nil:
		return daemon.Usage(err)
	case len(v.Open) == 0 && v.Damage == "": // also if the disk is full
	case r.overdue:
		err = r.lift(ctx, did, h, v)
	default:
		err = did.all(h)
	}
	if left, bad := enforce.ReadJournal(did.Journal); bad == nil {
		for _, c := range left.Open {
			did.InForce = append(did.InForce, standing{c.ID, c.Task, c.Until})
		}
	}
	return err
}

// others does the same for the journals of the machine's other agents.
func (r *restoring) others(ctx context.Context, did *restored, h *host.Host, all enforce.Registry) error {
	if all.Dir == "" {
		return nil
	}
	journals, unreachable, err := all.Others(did.Journal, h)
	if err != nil {
		did.Failed = append(did.Failed, err.Error())
		return err
	}
	did.Unreachable = unreachable
	var errs []error
	for _, journal := range journals {
		one := newRestored(journal)
		one.forget = func() error { return all.Forget(journal) }
		err := r.restore(ctx, one, h)
		var usage daemon.UsageError // what is wrong with its directory does not concern this one's
		switch {
		case one.Agent == "" && errors.Is(err, enforce.ErrLocked):
			one.Agent, err = agentRunning, nil
		case errors.As(err, &usage):
			err = fmt.Errorf("journal %s: %w", journal, usage.Err)
		}
		if err != nil && len(one.Failed) == 0 {
			one.Failed = append(one.Failed, err.Error())
		}
		errs = append(errs, err)
		if len(one.Undone)+len(one.Failed)+len(one.InForce) > 0 || one.Damage != "" {
			did.Others = append(did.Others, one)
		}
	}
	return errors.Join(errs...)
}

// all undoes every change of a journal that no process holds.
func (d *restored) all(h *host.Host) error {
	e, err := enforce.Open(d.Journal, egress.NewFiles(h))
	if err != nil {
		return locked(err)
	}
	d.Agent, d.Damage = agentNone, e.Damage()
	outcomes, err := e.RestoreAll(sample.At(time.Now()), "quell-agent restore")
	return d.ended(outcomes, errors.Join(err, d.close(e)))
}

// close releases the journal. If nothing is left in it, its note is removed before that: afterwards it
// may be the note of an agent that has just started with this journal.
func (d *restored) close(e *enforce.Enforcer) error {
	var err error
	if d.forget != nil && e.Err() == nil && len(e.Active()) == 0 {
		err = d.forget()
	}
	return errors.Join(err, e.Close())
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
		return did.ended(outcomes, errors.Join(append(errs, did.close(e))...))
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
	if err := r.giveTime(ctx); err != nil {
		return err
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
	undone := len(d.Undone) + len(d.Failed)
	for _, o := range d.Others {
		undone += len(o.Undone) + len(o.Failed)
	}
	d.lines(w, "")
	if undone == 0 {
		fmt.Fprintln(w, map[bool]string{false: "nothing to undo", true: "nothing overdue"}[r.overdue])
	}
	d.left(w, "")
	for _, o := range d.Others {
		from := "journal " + o.Journal + ": "
		o.lines(w, from)
		o.left(w, from)
	}
	for _, journal := range d.Unreachable {
		fmt.Fprintf(w, "journal %s: cannot be opened from here; if its agent is not running, run restore where it ran\n", journal)
	}
	return nil
}

// lines writes what was done, each line after a prefix.
func (d *restored) lines(w io.Writer, prefix string) {
	if d.Damage != "" {
		fmt.Fprintf(w, "%sthe journal was damaged: %s\n", prefix, printable.Text(d.Damage))
	}
	for _, o := range d.Undone {
		fmt.Fprintf(w, "%s%s: %s", prefix, o.Task, o.Result)
		if o.Note != "" {
			fmt.Fprintf(w, " (%s)", printable.Text(o.Note))
		}
		fmt.Fprintln(w)
	}
}

// left writes what is in force.
func (d *restored) left(w io.Writer, prefix string) {
	for _, c := range d.InForce {
		fmt.Fprintf(w, "%s%s: in force until %s\n", prefix, c.Task, c.Until.Time().Format(time.RFC3339))
	}
}

// openEnforcer opens the journal for the daemon. A concurrent restore holds it for
// milliseconds.
func openEnforcer(dir string, h *host.Host) (e *enforce.Enforcer, err error) {
	err = untilFree(enforce.ErrLocked, func() error {
		e, err = enforce.Open(dir, egress.NewFiles(h))
		return err
	})
	return e, err
}

// untilFree repeats do for two seconds, as long as its error is busy.
func untilFree(busy error, do func() error) error {
	for end := time.Now().Add(2 * time.Second); ; {
		err := do()
		if !errors.Is(err, busy) || time.Now().After(end) {
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}
