package labcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/format/keyed"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/helper"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

// labHosts checks the hosts of an inventory and runs commands on them.
func (a *commands) labHosts() *cobra.Command {
	cmd := &cobra.Command{
		Use: "hosts", Short: "use other hosts over SSH", Args: app.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.labHostsCheck(), a.labHostsRun())
	return cmd
}

// hostSelection is the selected hosts of an inventory.
type hostSelection struct {
	inv    *remote.Inventory
	names  []string
	lease  time.Duration
	helper string
	logins chan struct{} // those that have begun
}

// mostLogins is how many hosts are logged in to at the same time. sshd drops connections at random when
// ten have not logged in yet (MaxStartups in sshd_config(5)), and all hosts may be reached through one.
const mostLogins = 8

func (f *hostSelection) flags(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.names, "host", nil, "only these hosts (default: all)")
	app.DurationVar(cmd.Flags(), &f.lease, "lease", 10*time.Second, "how long processes there may outlive this program")
	cmd.Flags().StringVar(&f.helper, "helper", "", "the quell program to copy, for hosts of another architecture (default: this one)")
}

func (f *hostSelection) read(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return app.Usage(fmt.Errorf("read inventory: %w", err), "name an inventory's file; quell lab hosts --help has an example")
	}
	f.inv, err = remote.ReadInventory(file, text)
	if _, invalid := errors.AsType[*keyed.InvalidError](err); invalid {
		return app.Negative(err, "correct "+file)
	}
	if err != nil {
		return app.Usage(err, "quell lab hosts --help has an example")
	}
	f.logins = make(chan struct{}, mostLogins)
	if len(f.names) == 0 {
		for _, s := range f.inv.Hosts {
			f.names = append(f.names, s.Name)
		}
	}
	for _, n := range f.names {
		if f.inv.Lookup(n) == nil {
			return app.Usage(fmt.Errorf("--host %s: not in %s", n, file), "name one of its hosts")
		}
	}
	if f.helper == "" {
		if f.helper, err = os.Executable(); err != nil {
			return err
		}
	}
	return nil
}

// parallel calls do for all hosts at the same time; errors are in the order of names.
func (f *hostSelection) parallel(do func(i int) error) []error {
	errs := make([]error, len(f.names))
	var wg sync.WaitGroup
	for i := range f.names {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errs
}

func (f *hostSelection) dial(ctx context.Context, i int) (*remote.Host, error) {
	f.logins <- struct{}{}
	defer func() { <-f.logins }()
	return remote.Dial(ctx, f.inv, f.names[i], remote.Options{Helper: f.helper, Words: []string{"lab-remote"}, Lease: f.lease})
}

// Verdicts on a host.
const (
	hostOK      = "ok"
	hostFailed  = "failed"      // the command, or an operation on the host
	hostLost    = "lost"        // it does not answer
	hostUnknown = "unknown key" // its key is not the known one
	hostNone    = "not reached" // or login refused
)

// hostView is the JSON form of the result for a host.
type hostView struct {
	Host    string        `json:"host"`
	Verdict string        `json:"verdict"`
	Why     string        `json:"why,omitempty"`
	Facts   *remote.Facts `json:"facts,omitempty"`
	// OffsetNS is how far its clock is behind, WithinNS the possible error.
	OffsetNS int64 `json:"clock_offset_ns"`
	WithinNS int64 `json:"clock_within_ns"`
	// BeganNS is the start of the command there relative to the first host's start.
	BeganNS int64 `json:"began_ns,omitempty"`
}

func (v *hostView) judge(err error) {
	if err == nil {
		v.Verdict = hostOK
		return
	}
	v.Verdict, v.Why = hostFailed, err.Error()
	if v.Facts == nil {
		v.Verdict = hostNone
	}
	if key, ok := errors.AsType[*remote.KeyError](err); ok {
		v.Verdict = hostUnknown
		v.Why += "; what to do: " + key.Remedy()
	}
	if _, ok := errors.AsType[*remote.LostError](err); ok {
		v.Verdict = hostLost
	}
}

func (a *commands) labHostsCheck() *cobra.Command {
	var f hostSelection
	cmd := &cobra.Command{
		Use: "check INVENTORY", Short: "check the connection, system and clock of every host", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.read(args[0]); err != nil {
				return err
			}
			views := make([]hostView, len(f.names))
			errs := f.parallel(func(i int) error {
				h, err := f.dial(cmd.Context(), i)
				if err != nil {
					return err
				}
				offset, within := h.Clock()
				views[i] = hostView{Facts: &h.Facts, OffsetNS: int64(offset), WithinNS: int64(within)}
				return h.Close()
			})
			for i := range views {
				views[i].Host = f.names[i]
				views[i].judge(errs[i])
			}
			return a.printHosts(views, 0)
		},
	}
	f.flags(cmd)
	return a.WithJSON(cmd)
}

func (a *commands) labHostsRun() *cobra.Command {
	var f hostSelection
	cmd := &cobra.Command{
		Use: "run INVENTORY -- PROGRAM [WORD...]", Short: "run a command on every host, started at the same time", Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.read(args[0]); err != nil {
				return err
			}
			views, skew := a.runOnHosts(cmd.Context(), &f, args[1:])
			return a.printHosts(views, skew)
		},
	}
	f.flags(cmd)
	return a.WithJSON(cmd)
}

// runOnHosts runs a command; skew is the time between the first and last start.
func (a *commands) runOnHosts(ctx context.Context, f *hostSelection, argv []string) (views []hostView, skew time.Duration) {
	views = make([]hostView, len(f.names))
	hosts, procs := make([]*remote.Host, len(f.names)), make([]*helper.Process, len(f.names))
	var out sync.Mutex
	errs := f.parallel(func(i int) error {
		h, err := f.dial(ctx, i)
		if err != nil {
			return err
		}
		hosts[i], views[i].Facts = h, &h.Facts
		p, err := hostProcess(ctx, h, argv, &prefixed{a.Text(), &out, h.Name + "  "})
		if err == nil {
			procs[i] = p
		}
		return err
	})
	ready := slices.DeleteFunc(slices.Clone(procs), func(p *helper.Process) bool { return p == nil })
	began, _ := helper.Begin(ctx, ready) // each host's error is handled below
	var first time.Time
	for _, b := range began {
		if !b.At.IsZero() && (first.IsZero() || b.At.Before(first)) {
			first = b.At
		}
	}
	ended := f.parallel(func(i int) error {
		h, p := hosts[i], procs[i]
		if h == nil {
			return nil
		}
		if p == nil {
			return h.Close()
		}
		offset, within := h.Clock()
		views[i].OffsetNS, views[i].WithinNS = int64(offset), int64(within)
		b := began[slices.Index(ready, p)]
		if !b.At.IsZero() {
			views[i].BeganNS = int64(b.At.Sub(first))
		}
		if b.Err == nil {
			select {
			case <-p.Done():
				b.Err = p.Err()
			case <-ctx.Done():
				b.Err = ctx.Err()
			}
		}
		return errors.Join(b.Err, h.Close())
	})
	for i := range views {
		views[i].Host = f.names[i]
		views[i].judge(errors.Join(errs[i], ended[i]))
	}
	return views, helper.Skew(began)
}

func hostProcess(ctx context.Context, h *remote.Host, argv []string, out io.Writer) (*helper.Process, error) {
	e, err := h.Make(ctx, &study.Part{Role: "run", Environment: study.Environment{Name: "hosts", Driver: study.Cgroup}})
	if err != nil {
		return nil, err
	}
	return e.Run(ctx, lab.Job{Name: argv[0], Argv: argv, Stdout: out, Stderr: out})
}

// prefixed writes output with a host's name before each line.
type prefixed struct {
	to     io.Writer
	mu     *sync.Mutex
	prefix string
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := io.WriteString(p.to, p.prefix+string(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// printHosts prints the results of hosts; its error says that some failed.
func (a *commands) printHosts(views []hostView, skew time.Duration) error {
	if a.JSON {
		if err := a.WriteJSON(struct {
			Hosts  []hostView `json:"hosts"`
			SkewNS int64      `json:"skew_ns"`
		}{views, int64(skew)}); err != nil {
			return err
		}
	} else {
		w := tabwriter.NewWriter(a.Out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "HOST\tVERDICT\tSYSTEM\tCLOCK BEHIND\tWHY")
		for _, v := range views {
			system, clock := "-", "-"
			if v.Facts != nil {
				system = v.Facts.Release + " " + v.Facts.Machine
				clock = fmt.Sprintf("%s ± %s", time.Duration(v.OffsetNS).Round(time.Microsecond), time.Duration(v.WithinNS).Round(time.Microsecond))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", v.Host, v.Verdict, system, clock, v.Why)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if skew > 0 {
			fmt.Fprintf(a.Out, "The commands started within %s of each other.\n", skew.Round(time.Microsecond))
		}
	}
	var bad []string
	for _, v := range views {
		if v.Verdict != hostOK {
			bad = append(bad, v.Host+" ("+v.Verdict+")")
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return app.Negative(fmt.Errorf("%d of %d hosts are not ok: %s", len(bad), len(views), strings.Join(bad, ", ")), "see WHY; the other hosts are finished and cleaned up")
}

// labRemote is the helper that is copied to hosts: see package remote.
func labRemote() *cobra.Command {
	return &cobra.Command{Use: "lab-remote LEASE", Hidden: true, Args: cobra.ExactArgs(1), Short: "serve a lab on another host",
		RunE: func(cmd *cobra.Command, args []string) error {
			lease, err := time.ParseDuration(args[0])
			if err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return err
			}
			m, err := env.Open(env.Options{Hold: []string{exe, "lab-hold"}, Agent: []string{exe, "lab-agent"}})
			if err != nil {
				return err
			}
			return helper.Serve(cmd.Context(), os.Stdin, os.Stdout, m, watchHere, exe, lease)
		}}
}
