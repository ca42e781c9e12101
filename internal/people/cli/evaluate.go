package cli

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/eval/evaluation"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

// evaluating holds the flags of quell evaluate.
type evaluating struct {
	out, csv, stateDir string
	days               float64

	cluster      bool
	since, until string
	server       cluster.Client
}

func (a *commands) evaluate() *cobra.Command {
	var f evaluating
	cmd := &cobra.Command{
		Use: "evaluate [FILE...]", Short: "measure how well detection and caps work, as CPI²'s section 7 does",
		RunE: func(cmd *cobra.Command, files []string) error { return a.runEvaluate(cmd, &f, files) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.out, "out", "", "also write a report with plots to this file (HTML)")
	flags.Float64Var(&f.days, "machine-days", 0, "monitored machine-days, for rates; 0: from the files")
	flags.StringVar(&f.stateDir, "state-dir", "", "read the log in the agent's state directory instead of asking the agent")
	flags.StringVar(&f.csv, "csv", "", "also write the data of each figure to CSV files in this folder")
	flags.BoolVar(&f.cluster, "cluster", false, "evaluate the whole cluster, from quell-server's tables")
	flags.StringVar(&f.since, "since", "720h", "with --cluster: since a time, a day, or a duration ago")
	flags.StringVar(&f.until, "until", "0s", "with --cluster: until then")
	a.addServer(cmd, &f.server)
	return a.WithJSON(cmd)
}

func (a *commands) runEvaluate(cmd *cobra.Command, f *evaluating, files []string) error {
	for _, flag := range []string{"since", "until", "server", "token-file"} {
		if !f.cluster && cmd.Flags().Changed(flag) {
			return app.Usage(fmt.Errorf("--%s without --cluster", flag), "add --cluster, or `quell incidents --since 1w --limit 0 --json | quell evaluate -` for a part of this machine's log")
		}
	}
	if f.days < 0 {
		return fmt.Errorf("--machine-days %v: want a number above 0", f.days)
	}
	if f.cluster {
		return a.evaluateCluster(cmd.Context(), f, files)
	}
	var e evaluation.Evaluation
	if len(files) == 0 {
		all, err := a.findIncidents(cmd.Context(), incidentFlags{stateDir: f.stateDir})
		if err != nil {
			return err
		}
		for i := range all.Incidents {
			e.Add(&all.Incidents[i])
		}
	}
	for _, name := range files {
		if err := readIncidents(name, &e); err != nil {
			return fmt.Errorf("read incidents of %s: %w", name, err)
		}
	}
	e.Settle() // a log and its rotated files have states of one incident
	if f.days > 0 {
		e.Days = f.days
	}
	return a.showEvaluation(&e, f.out, f.csv)
}

// evaluateCluster evaluates the tables of quell-server.
func (a *commands) evaluateCluster(ctx context.Context, f *evaluating, files []string) error {
	if len(files) > 0 || f.stateDir != "" {
		return app.Usage(errors.New("--cluster with files or --state-dir"), "choose one")
	}
	now := sample.At(a.Now())
	from, ok := sample.ParseTime(f.since, now)
	to, good := sample.ParseTime(f.until, now)
	if !ok || !good || from >= to {
		return app.Usage(fmt.Errorf("--since %q --until %q", f.since, f.until), "give times such as 2026-11-21T13:00:00Z, days, or how long ago, such as 720h")
	}
	ask := func(ctx context.Context, sql string, from, to sample.Millis) ([][]json.RawMessage, error) {
		answer, err := f.server.Query(ctx, cluster.Query{SQL: sql, Since: from.Time().UTC().Format(time.RFC3339Nano), Until: to.Time().UTC().Format(time.RFC3339Nano)})
		if refused, ok := errors.AsType[*api.RefusedError](err); ok && refused.Status == http.StatusUnprocessableEntity || answer.Truncated {
			return nil, evaluation.ErrLimit
		}
		return answer.Rows, err
	}
	progress := a.Progress(a.Err)
	e, err := evaluation.OfCluster(ctx, ask, from, to, func(part string) { progress.Draw("reading %s", part) })
	progress.Clear()
	if err != nil {
		return err
	}
	if f.days > 0 {
		e.Days = f.days
	}
	return a.showEvaluation(e, f.out, f.csv)
}

func (a *commands) showEvaluation(e *evaluation.Evaluation, out, folder string) error {
	r := e.Report()
	if folder != "" {
		if err := writeSheets(folder, r.Sheets()); err != nil {
			return fmt.Errorf("write CSV: %w", err)
		}
	}
	if out != "" {
		if err := app.WriteFile(out, func(w io.Writer) error { return report.EvaluationHTML(w, &r, a.Style()) }); err != nil {
			return fmt.Errorf("write report: %w", err)
		}
	}
	return app.Show(a.App, &r, report.EvaluationText)
}

// writeSheets writes each sheet as a CSV file in a folder.
func writeSheets(folder string, all []evaluation.Sheet) error {
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	for _, s := range all {
		err := app.WriteFile(filepath.Join(folder, s.Name+".csv"), func(out io.Writer) error {
			w := csv.NewWriter(out)
			if err := w.Write(s.Head); err != nil {
				return err
			}
			for _, row := range s.Rows {
				for i := range row {
					row[i] = printable.Cell(row[i])
				}
				if err := w.Write(row); err != nil {
					return err
				}
			}
			w.Flush()
			return w.Error()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readIncidents reads a file of JSON values: incidents, lists of them, and summaries of
// replays and simulations.
func readIncidents(name string, e *evaluation.Evaluation) error {
	in := os.Stdin
	if name != "-" {
		var err error
		if in, err = os.Open(name); err != nil {
			return err
		}
		defer in.Close()
	}
	for d := json.NewDecoder(in); ; {
		var v json.RawMessage
		if err := d.Decode(&v); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := addIncidents(v, e); err != nil {
			return err
		}
	}
}

func addIncidents(v json.RawMessage, e *evaluation.Evaluation) error {
	if v[0] == '[' {
		var list []json.RawMessage
		if err := json.Unmarshal(v, &list); err != nil {
			return err
		}
		for _, one := range list {
			if err := addIncidents(one, e); err != nil {
				return err
			}
		}
		return nil
	}
	var what struct {
		Victim   json.RawMessage `json:"victim"`
		Rule     string          `json:"rule"`
		Days     float64         `json:"machine_days"` // of a replay
		Machines int             `json:"machines"`     // of one by an earlier quell
		From     sample.Millis   `json:"from"`
		To       sample.Millis   `json:"to"`
		Minutes  int             `json:"minutes"` // of a simulation
		// Precision is a share with k and n, or a number next to right.
		Precision   json.RawMessage `json:"precision"`
		Accusations int             `json:"accusations"`
		Right       int             `json:"right"`
	}
	if err := json.Unmarshal(v, &what); err != nil {
		return err
	}
	switch {
	case what.Victim != nil:
		var inc incident.Record
		if err := json.Unmarshal(v, &inc); err != nil {
			return err
		}
		e.AddState(&inc)
		return nil
	case what.Rule == "":
		return errors.New("neither an incident nor the summary of a replay or a simulation")
	}
	e.Settle()
	switch {
	case what.Minutes > 0:
		e.Days += float64(what.Minutes) / (24 * 60)
		e.Right, e.Accusations = e.Right+what.Right, e.Accusations+what.Accusations
	default:
		e.Days += cmp.Or(what.Days, what.To.Sub(what.From).Hours()/24*float64(max(what.Machines, 1)))
		var share struct{ K, N int }
		if what.Precision != nil && json.Unmarshal(what.Precision, &share) == nil {
			e.Right, e.Accusations = e.Right+share.K, e.Accusations+share.N
		}
	}
	return nil
}

// fresh returns a context for cleanup after the caller's context has ended.
func fresh(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
}
