package labcmd

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/format/atomicfile"
	"github.com/quell-dev/quell/internal/lab/record"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/people/cli/app"
)

func (a *commands) labTraces() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use: "traces FOLDER", Short: "make labelled traces of a study whose runs an agent has sampled", Args: cobra.ExactArgs(1),
		ValidArgsFunction: folders,
		RunE: func(_ *cobra.Command, args []string) error {
			f, s, done, err := openResults(args[0], a.Err)
			if err != nil {
				return err
			}
			defer done()
			runs, err := f.Runs()
			if err != nil {
				return err
			}
			traces, err := record.Traces(f, s, a.newest(runs))
			if err != nil {
				return err
			}
			if len(traces) == 0 {
				return app.Negative(fmt.Errorf("make traces of %s: no valid run has samples of an agent", args[0]), "set observe.agent in the study, and run it")
			}
			if out == "" {
				out, err = result.Inside(args[0], "traces")
			} else {
				err = os.MkdirAll(out, 0o755)
			}
			if err != nil {
				return fmt.Errorf("make traces: %w", err)
			}
			for i := range traces {
				if len(traces[i].Samples) == 0 {
					continue // all of its runs are excluded
				}
				if err := writeTrace(filepath.Join(out, traces[i].Name+".csv.gz"), &traces[i]); err != nil {
					return err
				}
			}
			if a.JSON {
				return a.WriteJSON(tracesJSON(traces))
			}
			return printTraces(a.Out, out, traces)
		},
	}
	cmd.Flags().StringVar(&out, "out", "", "folder to write to (default FOLDER/traces)")
	return a.WithJSON(cmd)
}

func writeTrace(name string, t *record.Trace) error {
	return atomicfile.Replace(name, func(w io.Writer) error {
		z := gzip.NewWriter(w)
		return errors.Join(t.Write(z), z.Close())
	})
}

// traceJSON is a trace without its samples.
type traceJSON struct {
	Trace   string       `json:"trace"`
	Samples int          `json:"samples"`
	Labels  int          `json:"labels"`
	Runs    []record.Run `json:"runs"`
}

func tracesJSON(traces []record.Trace) []traceJSON {
	var all []traceJSON
	for _, t := range traces {
		all = append(all, traceJSON{t.Name, len(t.Samples), len(t.Labels), t.Runs})
	}
	return all
}

func printTraces(w io.Writer, dir string, traces []record.Trace) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "trace\trun\tsamples\tantagonist\tslowdown\tlabel\tcause\tremark")
	for _, one := range traces {
		for _, r := range one.Runs {
			if len(r.Stretches) == 0 {
				fmt.Fprintf(t, "%s\t%s\t%d\t\t\t\t\t%s\n", one.Name, r.Cell, r.Samples, remark(&r, ""))
			}
			for _, s := range r.Stretches {
				fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%.2f\t%s\t%s\t%s\n", one.Name, r.Cell, r.Samples, s.Antagonist, s.Slowdown, s.Truth, s.Cause, remark(&r, s.Why))
			}
		}
	}
	for _, one := range traces {
		if len(one.Samples) > 0 {
			fmt.Fprintf(t, "%s\n", filepath.Join(dir, one.Name+".csv.gz"))
		}
	}
	return t.Flush()
}

// remark returns a note on a run in a trace.
func remark(r *record.Run, why string) string {
	switch {
	case why != "":
		return "left out: " + why
	case r.LeftOut != "":
		return "left out: " + r.LeftOut
	case r.Caches != "":
		return "cache flip: " + r.Caches
	}
	return ""
}
