package labcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/audit"
	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/helper"
	"github.com/quell-dev/quell/internal/lab/load"
	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/record"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/render"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) labRun() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use: "run STUDY.yaml", Short: "run a study", Args: cobra.ExactArgs(1),
		ValidArgsFunction: files("yaml", "yml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, text, err := readStudy(args[0])
			if err != nil {
				return err
			}
			if o.out == "" {
				o.out = filepath.Join("lab-results", s.Name)
			}
			f, err := result.Create(o.out, a.lockOf(s, text))
			if err != nil {
				return app.Usage(err, "name another folder with --out")
			}
			if s.Report.Expect != "" {
				if err := keepExpected(f, filepath.Join(filepath.Dir(args[0]), s.Report.Expect)); err != nil {
					return err
				}
			}
			return a.runStudy(cmd.Context(), f, s, o)
		},
	}
	cmd.Flags().StringVar(&o.out, "out", "", "folder for its results (default lab-results/NAME)")
	o.flags(cmd)
	return a.WithJSON(cmd)
}

func (a *commands) labResume() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use: "resume FOLDER", Short: "continue a study that was stopped", Args: cobra.ExactArgs(1),
		ValidArgsFunction: folders,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, s, err := openStudy(args[0], nil)
			if err != nil {
				return err
			}
			return a.runStudy(cmd.Context(), f, s, o)
		},
	}
	o.flags(cmd)
	return a.WithJSON(cmd)
}

// keepExpected copies a study's expected values, whose file is named relative to the
// study's, into the folder of its records.
func keepExpected(f *result.Folder, file string) error {
	text, err := os.ReadFile(file)
	if err == nil {
		_, err = render.ParseExpectations(file, text)
	}
	if err != nil {
		return remedied(fmt.Errorf("read expected values: %w", err), file, expectExample)
	}
	if err := atomicfile.Write(f.Path(expectFile), text, 0o644); err != nil {
		return fmt.Errorf("copy expected values: %w", err)
	}
	return nil
}

type runOptions struct {
	out     string
	budget  time.Duration
	journal string
	cell    string
	hosts   string
	lease   time.Duration
	helper  string
	to      string
}

// only is lab.Options.Only for cells selected by words of their names.
func (o *runOptions) only() func(c *study.Cell) bool {
	words := strings.Fields(o.cell)
	if len(words) == 0 {
		return nil
	}
	return func(c *study.Cell) bool {
		has := append(strings.Fields(c.String()), c.Key())
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(has, w) })
	}
}

// known is the error of a selection that no cell of a study matches.
func (o *runOptions) known(s *study.Study) error {
	only := o.only()
	if only == nil {
		return nil
	}
	var names []string
	for _, c := range s.Cells() {
		if only(&c) {
			return nil
		}
		names = append(names, c.String())
	}
	const most = 8
	list := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return app.Usage(fmt.Errorf("--cell %q: no cell of study %s has all of these words in its name", o.cell, s.Name), "want words of one of: "+list+"; `quell lab plan` lists them all")
}

func (o *runOptions) flags(cmd *cobra.Command) {
	app.DurationVar(cmd.Flags(), &o.budget, "budget", 0, "time budget of this call; 0: the study's")
	cmd.Flags().StringVar(&o.cell, "cell", "", "only cells with all of these words in their name, as printed by lab plan (e.g. 'solo ve=lxc')")
	cmd.Flags().StringVar(&o.hosts, "hosts", "", "inventory of the study's other hosts, with the study's names for them (quell lab hosts --help)")
	app.DurationVar(cmd.Flags(), &o.lease, "lease", 10*time.Second, "how long processes on other hosts may outlive this program")
	cmd.Flags().StringVar(&o.helper, "helper", "", "the quell program to copy to other hosts, for those of another architecture (default: this one)")
	cmd.Flags().StringVar(&o.to, "to", "", "also copy the records to a folder of S3-compatible storage at the end, s3://BUCKET/FOLDER (quell lab push --help)")
	journalFlag(cmd, &o.journal)
}

func journalFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "journal", labJournal, "directory of the journal of changes to the machine's knobs")
}

// lockFolder ensures that only one process runs a study in a folder; free releases it.
func lockFolder(f *result.Folder) (free func(), err error) {
	d, err := os.Open(f.Dir())
	if err != nil {
		return nil, fmt.Errorf("open results: %w", err)
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: another quell runs its study: %w", f.Dir(), err), d.Close())
	}
	return func() { d.Close() }, nil
}

func (a *commands) runStudy(ctx context.Context, f *result.Folder, s *study.Study, o runOptions) error {
	if err := o.known(s); err != nil {
		return err
	}
	if o.budget > 0 {
		s.Design.Budget = o.budget
	}
	var to *packs
	var err error
	if o.to != "" {
		if to, err = a.openPacks(o.to); err != nil {
			return err
		}
	}
	free, err := lockFolder(f)
	if err != nil {
		return app.Usage(err, "wait for it, or name another folder with --out")
	}
	defer free()
	far, err := hostsOf(s, o)
	if err != nil {
		return err
	}
	l, err := a.openLab(s)
	if err != nil {
		return err
	}
	t := &target{topology: l.topology, allowed: l.allowed, facts: l.maker.Here(), knob: observe.Knobs{Host: l.host}.Check, hosts: o.hosts}
	plan := s.Plan()
	lacks, without := t.lacks(s, plan)
	if without > 0 {
		t.verdict(a.Text(), "", len(plan), lacks, without)
		if err := refused(len(plan), lacks, without); err != nil {
			return errors.Join(err, l.close())
		}
	}
	only := o.only()
	var maker lab.Maker = l.maker
	if far != nil {
		far.here, maker = l.maker, far
		far.pool = remote.NewPool(far.inv, remote.Options{Helper: cmp.Or(o.helper, l.self), Words: []string{"lab-remote"}, Self: []string{l.self}, Lease: o.lease})
	}
	machine, err := l.ready(ctx, s, f, o.journal, a.Now)
	if err != nil {
		return errors.Join(err, l.close())
	}
	show := &labProgress{Progress: a.Progress(a.Out), w: a.Text(), now: a.Now}
	run := lab.Options{Study: s, Folder: f, Maker: maker, Command: l.command, Metric: metric, Hold: l.hold,
		Topology: l.topology, Allowed: l.allowed, Observe: l.observe, Env: machine, Stamp: l.maker.Stamp(ctx, s.Environments), Only: only, Progress: show}
	if l.turner != nil {
		run.SetKnobs, run.CPUs = l.turner.setForRun, l.cpus
	}
	if l.far = far; far != nil {
		run.Power, run.Host = far.power, far.watchable
		runs, _ := f.Runs() // the engine reports records that cannot be read
		far.were = result.Machines(runs, run.Env, run.Stamp)
		// Other hosts may be in the next inventory.
		run.Only = func(c *study.Cell) bool { return far.refuse(c) == nil && (only == nil || only(c)) }
	}
	if err := a.tellOthers(ctx, f, s, &series{run.Env, run.Stamp}); err != nil {
		return errors.Join(err, far.close(), l.close())
	}
	sum, err := l.run(ctx, run)
	show.Clear()
	err = errors.Join(err, far.close(), l.close())
	if a.JSON {
		if err := a.WriteJSON(sum); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.Out, "\n%d runs planned, %d already complete, %d left\n", sum.Planned, sum.Existing, sum.Left)
		printVerdicts(a.Out, sum.Verdicts, sum.Reasons)
		fmt.Fprintf(a.Out, "records: %s\n", f.Dir())
	}
	again := "quell lab resume " + f.Dir()
	if o.hosts != "" {
		again += " --hosts " + o.hosts
	}
	if o.cell != "" { // other cells may be for other hosts
		again += " --cell '" + o.cell + "'"
	}
	if err == nil || errors.Is(err, lab.ErrBudget) || errors.Is(err, lab.ErrStopped) {
		err = errors.Join(err, a.reportOf(f))
		if to != nil {
			p, pushErr := to.push(ctx, f, s.Name)
			if pushErr != nil {
				fmt.Fprintf(a.Err, "the records were not copied to %s; to retry: quell lab push %s %s\n", o.to, f.Dir(), o.to)
			} else if !a.JSON {
				fmt.Fprintln(a.Out, "pushed:", p.URL)
			}
			err = errors.Join(err, pushErr)
		}
	}
	switch {
	case errors.Is(err, context.Canceled):
		return app.Negative(errors.New("stopped; everything that was made is removed"), "to continue: "+again)
	case errors.Is(err, lab.ErrBudget):
		return app.Negative(err, again+" --budget TIME")
	case errors.Is(err, lab.ErrStopped):
		return app.Negative(err, "see the run's record; to continue: "+again)
	case errors.Is(err, unix.ENOSPC):
		return app.Negative(err, "free space on its disk, then: "+again)
	case err != nil:
		return app.Negative(err, again)
	}
	st, err := statusOf(f, s, &series{run.Env, run.Stamp}, o.only())
	if err == nil && st.Left > 0 {
		err = app.Negative(fmt.Errorf("%d of %d runs have no valid result", st.Left, st.Planned), "see the reasons above; to retry: "+again)
	}
	return err
}

// reportOf writes the report of the existing runs, also for an incomplete study: the
// report names what is missing.
func (a *commands) reportOf(f *result.Folder) error {
	r, err := a.openReport(f.Dir(), "")
	if err != nil {
		return err
	}
	if !a.JSON {
		fmt.Fprintln(a.Out, "report:")
	}
	return writeReport(a.Text(), r, f.Path(reportDir), nil)
}

// labMachine is a machine prepared for running studies.
type labMachine struct {
	self     string
	version  string // of quell
	agent    string // quell-agent, if the study samples its runs with it
	guard    *load.Guard
	maker    *env.Maker
	host     *host.Host
	topology host.Topology
	allowed  sample.Set
	turner   *knobSetter  // of the machine's knobs; nil if none are changed
	far      *remoteMaker // nil without other hosts
}

// openLab prepares what a study's runs need from the machine.
func (a *commands) openLab(s *study.Study) (l *labMachine, err error) {
	l = &labMachine{version: a.Version}
	if l.self, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	if s.Observe.Agent != nil {
		if l.agent, err = app.Program("quell-agent", ""); err != nil {
			return nil, err
		}
	}
	if l.host, err = host.Open("/"); err != nil {
		return nil, app.Usage(err, "mount /proc")
	}
	if _, _, err = l.cpus(); err != nil {
		return nil, app.Usage(err, "mount /sys")
	}
	o := env.Options{Hold: []string{l.self, "lab-hold"}, Agent: []string{l.self, "lab-agent"}}
	if real := driversHere(s); len(real) > 0 {
		if os.Geteuid() != 0 {
			return nil, app.Usage(fmt.Errorf("run study: not root: environments of driver %s are made with cgroups", real[0]), "run it as root (sudo)")
		}
		if l.guard, err = load.StartGuard(l.self, "lab-guard"); err != nil {
			return nil, err
		}
		o.Guard = l.guard
	}
	if l.maker, err = env.Open(o); err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

// cpus reads the machine's CPUs, which knobs may change, and those that roles may use.
func (l *labMachine) cpus() (_ host.Topology, _ sample.Set, err error) {
	if l.topology, err = l.host.Topology(); err == nil {
		l.allowed, err = host.Affinity(0)
	}
	return l.topology, l.allowed, err
}

// ready puts the machine into the state that the study requires, checks that state, and
// records the machine's description: its hash names the series of runs.
func (l *labMachine) ready(ctx context.Context, s *study.Study, f *result.Folder, journal string, now func() time.Time) (series string, err error) {
	if len(driversHere(s)) > 0 {
		if _, err := restoreKnobs(journal, l.host, now()); err != nil {
			return "", err
		}
	}
	if changesKnobs(s) {
		if l.turner, err = setKnobs(journal, l.host, s, now); err != nil {
			return "", err
		}
	}
	_, _, err = l.cpus()
	if err = errors.Join(err, l.require(ctx, s, f)); err != nil {
		return "", err
	}
	if series, err = l.describe(ctx, s, f); err != nil {
		return "", err
	}
	return series, l.cost(ctx, s, f)
}

func (l *labMachine) close() error {
	var errs []error
	if l.maker != nil {
		errs = append(errs, l.maker.Close())
	}
	if l.guard != nil {
		errs = append(errs, l.guard.Close())
	}
	if l.turner != nil {
		errs = append(errs, l.turner.close())
	}
	return errors.Join(errs...)
}

// driversHere are the drivers of the environments that a study makes on this machine, which needs root.
// On other hosts their helpers make them.
func driversHere(s *study.Study) (ds []study.Driver) {
	for _, c := range s.Cells() {
		for i := range c.Parts {
			p := &c.Parts[i]
			if d := p.Environment.Driver; d != study.Synthetic && s.Here(p) && !slices.Contains(ds, d) {
				ds = append(ds, d)
			}
		}
	}
	return ds
}

// isReal reports whether a study has an environment that is not simulated.
func isReal(s *study.Study) bool {
	return slices.ContainsFunc(sortedKeys(s.Environments), func(n string) bool { return s.Environments[n].Driver != study.Synthetic })
}

// observe watches a run's parts and audits their placement.
func (l *labMachine) observe(o lab.Observed) (lab.Observer, error) {
	seen, err := observe.Options{Host: l.host, Observe: o.Want, Run: o.Run}.Open(o)
	if err != nil {
		return nil, err
	}
	inner := seen
	if l.agent != "" {
		if inner, err = record.WithAgent(seen, o, record.Options{Program: l.agent, Recording: *o.Want.Agent}); err != nil {
			return nil, errors.Join(err, end(seen))
		}
	}
	if len(o.Want.Placement) > 0 && len(o.Names) > 0 {
		inner = audit.WithAudit(inner, l.topology, o, o.Want.Placement...)
	}
	return inner, nil
}

// watchHere observes a run for a lab on another machine.
func watchHere(o lab.Observed) (lab.Observer, error) {
	l := &labMachine{}
	var err error
	if l.host, err = host.Open("/"); err == nil {
		l.topology, err = l.host.Topology()
	}
	if err != nil {
		return nil, err
	}
	return l.observe(o)
}

// end closes an observer of a run that does not take place.
func end(o lab.Observer) error {
	_, err := o.Close(nil)
	return err
}

// command returns the job of a part: a kernel of this program, or the study's command.
func (l *labMachine) command(_ *study.Cell, p *study.Part) (lab.Job, error) {
	w := &p.Workload
	var words []string
	for _, word := range w.Command {
		words = append(words, strings.NewReplacer("{asks}", cmp.Or(p.Asks, "127.0.0.1"), "{index}", strconv.Itoa(p.Index)).Replace(word))
	}
	switch {
	case w.Builtin == "" && (w.Metric.Parse == workload.Lines || w.Serves > 0):
		return lab.Job{Argv: words, Dir: w.Dir, Env: w.Env}, nil
	case w.Builtin == "":
		argv := append([]string{l.self, "workload", "command"}, words...)
		return lab.Job{Argv: argv, Dir: w.Dir, Env: w.Env, WaitsForStart: true}, nil
	}
	argv := []string{l.self, "workload", "lab", w.Builtin}
	// The file's own options come last, so that they take precedence.
	argv = append(argv, fmt.Sprintf("-threads=%d", p.Threads()))
	return lab.Job{Argv: append(argv, strings.Fields(w.Options)...), Dir: w.Dir, Env: w.Env, WaitsForStart: true}, nil
}

func metric(w *study.Workload, output []byte, early int) (float64, map[string]float64, error) {
	// What runs after the iterations that the study wants is alone, or has no server.
	return workload.MeanMetric(w.Metric.Parse, output, early, w.Iterations)
}

// hold is lab.Options.Hold, implemented by package load.
func (l *labMachine) hold(ctx context.Context, e lab.Environment, cpus float64, p *study.Part, levels []load.Level, each func(load.Period)) error {
	var act load.Actuator
	_, far := e.(*helper.Environment)
	if err := env.RefuseSignals(p, !far); err != nil {
		return err
	}
	switch p.Load.Actuator {
	case "freezer":
		act = freezing{e}
	case "sigstop":
		act = load.NewSignalsOf(e.Threads, l.guard)
	default:
		return &lab.LackError{What: "unknown actuator " + p.Load.Actuator, Remedy: "use freezer or sigstop"}
	}
	used := func() (time.Duration, error) {
		u, err := e.Usage()
		return u.Total(), err
	}
	return load.Hold(ctx, act, used, levels, load.Options{CPUs: cpus, Period: p.Load.Period, Tolerance: float64(p.Load.Tolerance)}, each)
}

// freezing stops an environment with its freezer.
type freezing struct{ e lab.Environment }

func (f freezing) Stop() error     { return f.e.Freeze(true) }
func (f freezing) Continue() error { return f.e.Freeze(false) }

func (a *commands) labRestore() *cobra.Command {
	var journal string
	cmd := &cobra.Command{
		Use: "restore", Short: "remove and undo what a killed lab has left behind", Args: app.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program: %w", err)
			}
			m, err := env.Open(env.Options{Hold: []string{self, "lab-hold"}, Agent: []string{self, "lab-agent"}})
			if err != nil {
				return app.Usage(err, "mount /proc and /sys")
			}
			err = m.Sweep()
			for _, prefix := range []string{packDir, record.ScratchPrefix} {
				_, bad := workload.Sweep(prefix)
				err = errors.Join(err, bad)
			}
			if err != nil {
				return app.Negative(err, "run it as root (sudo)")
			}
			h, err := host.Open("/")
			if err != nil {
				return app.Usage(err, "mount /proc")
			}
			outcomes, err := restoreKnobs(journal, h, a.Now())
			for _, o := range outcomes {
				fmt.Fprintf(a.Out, "%s: %s %s\n", o.Change.Task, o.Result, printable.Text(o.Note))
			}
			if err != nil {
				return app.Negative(err, "run it as root (sudo)")
			}
			fmt.Fprintln(a.Out, "nothing of a killed lab is left")
			return nil
		},
	}
	journalFlag(cmd, &journal)
	return cmd
}
