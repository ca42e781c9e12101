package labcmd

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) labPlan() *cobra.Command {
	all := false
	var f targetFlags
	cmd := &cobra.Command{
		Use: "plan STUDY.yaml", Short: "show a study's cells, their order and how long it takes", Args: cobra.ExactArgs(1),
		Example:           "  quell lab plan studies/vm-mapping-small.yaml\n  quell lab plan --runs studies/smoke.yaml\n  quell lab plan --json studies/smoke.yaml | jq '.takes_s'",
		ValidArgsFunction: files("yaml", "yml"),
		RunE: func(_ *cobra.Command, args []string) error {
			s, _, err := readStudy(args[0])
			if err != nil {
				return err
			}
			t, err := f.open()
			if err != nil {
				return err
			}
			plan := s.Plan()
			p := plannedOf(s, plan)
			p.Lacks, p.Without = t.lacks(s, plan)
			err = refused(len(p.Runs), p.Lacks, p.Without)
			if a.JSON {
				return errors.Join(err, a.WriteJSON(p))
			}
			return errors.Join(printPlan(a.Out, s, p, all, a.Now().In(a.Zone), t), err)
		},
	}
	f.flags(cmd)
	cmd.Flags().BoolVar(&all, "runs", false, "list every run in its order")
	return a.WithJSON(cmd)
}

type planned struct {
	Study  string        `json:"study"`
	Cells  []plannedCell `json:"cells"`
	Runs   []plannedRun  `json:"runs"`
	Takes  float64       `json:"takes_s"`
	Budget float64       `json:"budget_s,omitempty"`
	// Lacks are what the machine lacks, Without the number of runs that cannot be done.
	Lacks   []lack `json:"lacks,omitempty"`
	Without int    `json:"runs_without,omitempty"`
}

type plannedCell struct {
	Key  string `json:"key"`
	Name string `json:"name"`
	// Takes is the duration of one run, seconds; Runs is their number.
	Takes float64 `json:"takes_s"`
	Runs  int     `json:"runs"`
}

type plannedRun struct {
	name  string         // of the cell
	Key   string         `json:"cell"`
	Kind  study.CellKind `json:"kind"`
	N     int            `json:"n"`
	Takes float64        `json:"takes_s"`
}

func plannedOf(s *study.Study, plan []study.Planned) planned {
	p := planned{Study: s.Name, Budget: s.Design.Budget.Seconds()}
	at := map[string]int{}
	for _, r := range plan {
		key := r.Key
		i, ok := at[key]
		if !ok {
			i = len(p.Cells)
			at[key] = i
			p.Cells = append(p.Cells, plannedCell{Key: key, Name: r.Cell.String(), Takes: r.Takes.Seconds()})
		}
		p.Cells[i].Runs++
		p.Runs = append(p.Runs, plannedRun{p.Cells[i].Name, key, r.Cell.Kind, r.N, r.Takes.Seconds()})
		p.Takes += r.Takes.Seconds()
	}
	return p
}

func printPlan(w io.Writer, s *study.Study, p planned, all bool, now time.Time, t *target) error {
	takes := time.Duration(p.Takes * float64(time.Second))
	fmt.Fprintf(w, "study %s: %d cells, %d runs, %s, order %s with seed %d\n", s.Name, len(p.Cells), len(p.Runs), formatDuration(takes), s.Design.Order, s.Design.Seed)
	if s.Question != "" {
		fmt.Fprintln(w, "question:", strings.TrimSpace(s.Question))
	}
	switch b := s.Design.Budget; {
	case b > 0 && takes > b:
		fmt.Fprintf(w, "budget: %s is not enough: the runs that do not fit are left for lab resume with a larger budget\n", formatDuration(b))
	case b > 0:
		fmt.Fprintf(w, "budget: %s\n", formatDuration(b))
	}
	if takes > 0 {
		fmt.Fprintf(w, "if started now it ends at %s, without retries\n", now.Add(takes).Format("15:04 on 2 January"))
	}
	t.verdict(w, "", len(p.Runs), p.Lacks, p.Without)
	fmt.Fprintln(w)
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "cell\truns\teach takes\tname")
	for _, c := range p.Cells {
		fmt.Fprintf(tab, "%s\t%d\t%s\t%s\n", c.Key, c.Runs, formatDuration(time.Duration(c.Takes*float64(time.Second))), c.Name)
	}
	if err := tab.Flush(); err != nil || !all {
		return err
	}
	fmt.Fprintln(w)
	for i, r := range p.Runs {
		fmt.Fprintf(w, "%4d  %s  repetition %d  %s\n", i+1, r.Key, r.N, r.name)
	}
	return nil
}

func (a *commands) labStatus() *cobra.Command {
	return a.WithJSON(&cobra.Command{
		Use: "status FOLDER", Short: "show the progress of a study", Args: cobra.ExactArgs(1),
		ValidArgsFunction: folders,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, s, err := openStudy(args[0], a.Err)
			if err != nil {
				return err
			}
			st, err := statusOf(f, s, nil, nil)
			if err != nil {
				return err
			}
			if len(s.Preconditions.Set) == 0 { // else the knobs are not those of the study now
				if st.Changed, err = a.changed(cmd.Context(), f, s, st.Series, false); err != nil {
					return err
				}
			}
			if a.JSON {
				if err := a.WriteJSON(st); err != nil {
					return err
				}
			} else {
				printStatus(a.Out, st)
			}
			if st.Left > 0 && !st.Running {
				return app.Negative(fmt.Errorf("%d of %d runs are left", st.Left, st.Planned), "quell lab resume "+args[0])
			}
			return nil
		},
	})
}

type status struct {
	Study    string                 `json:"study"`
	Running  bool                   `json:"running"`
	Planned  int                    `json:"planned"`
	Left     int                    `json:"left"`
	Takes    float64                `json:"takes_s"` // of the remaining runs, without retries
	Verdicts map[result.Verdict]int `json:"verdicts"`
	Reasons  map[result.Reason]int  `json:"reasons,omitempty"`
	// Broken describes records that cannot be read.
	Broken string `json:"broken,omitempty"`
	// Series is the hash of the machine whose records count; Others counts those of other
	// machines, of this one before a change, or with other stamps, which do not.
	Series string `json:"series,omitempty"`
	Others int    `json:"others,omitempty"`
	// Changed lists differences of the machine from the series: lab resume would start another series.
	Changed []string `json:"changed,omitempty"`
}

// series is the machine and the conditions of records that belong together.
type series struct {
	env   string // hash of the machine's description
	stamp []string
}

func (s *series) has(r *result.Run) bool { return r.In(s.env, s.stamp) }

// seriesOf returns the series of the newest record.
func seriesOf(runs []result.Run) (s series) {
	newest := -1
	for i := range runs {
		if r := &runs[i]; !r.Simulated && r.Order > newest {
			s, newest = series{r.Env, r.Stamp}, r.Order
		}
	}
	return s
}

// statusOf counts the records of a series; nil selects that of the newest. With only, the runs of
// other cells are not counted as planned.
func statusOf(f *result.Folder, s *study.Study, of *series, only func(*study.Cell) bool) (status, error) {
	st := status{Study: s.Name, Verdicts: map[result.Verdict]int{}, Reasons: map[result.Reason]int{}}
	free, err := lockFolder(f)
	if err != nil {
		st.Running = true
	} else {
		free()
	}
	runs, err := f.Runs()
	if err != nil {
		st.Broken = err.Error()
	}
	if of == nil {
		newest := seriesOf(runs)
		of = &newest
	}
	st.Series = of.env
	for i := range runs {
		r := &runs[i]
		if !of.has(r) {
			st.Others++
			continue
		}
		st.Verdicts[r.Verdict]++
		for _, e := range r.Evidence {
			st.Reasons[e.Reason]++
		}
	}
	done := result.Done(runs, of.env, of.stamp, result.Valid, result.Skipped)
	for _, p := range s.Plan() {
		if only != nil && !only(&p.Cell) {
			continue
		}
		st.Planned++
		if !done[result.Slot{Cell: p.Key, N: p.N}] {
			st.Left++
			st.Takes += p.Takes.Seconds()
		}
	}
	return st, nil
}

func printStatus(w io.Writer, st status) {
	state := "not running"
	if st.Running {
		state = "running"
	}
	fmt.Fprintf(w, "study %s, %s: %d of %d runs are complete", st.Study, state, st.Planned-st.Left, st.Planned)
	if st.Left > 0 {
		fmt.Fprintf(w, ", the rest takes %s", formatDuration(time.Duration(st.Takes*float64(time.Second))))
	}
	fmt.Fprintln(w)
	printVerdicts(w, st.Verdicts, st.Reasons)
	if st.Others > 0 {
		fmt.Fprintf(w, "not counted: %d records of another machine, of this one before it changed, or with other stamps\n", st.Others)
	}
	if len(st.Changed) > 0 {
		fmt.Fprintln(w, "the machine has changed since; lab resume would do all runs again:")
		for _, line := range st.Changed {
			fmt.Fprintln(w, "  "+line)
		}
	}
	if st.Broken != "" {
		fmt.Fprintln(w, "unreadable records:", st.Broken)
	}
}

func printVerdicts(w io.Writer, verdicts map[result.Verdict]int, reasons map[result.Reason]int) {
	for _, v := range []result.Verdict{result.Valid, result.Invalid, result.Failed, result.Skipped} {
		if verdicts[v] > 0 {
			fmt.Fprintf(w, "  %-8s %d\n", v, verdicts[v])
		}
	}
	for _, r := range sortedKeys(reasons) {
		fmt.Fprintf(w, "  because  %s (%d)\n", r, reasons[r])
	}
}
