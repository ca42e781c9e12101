package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/people/report"
)

// listCanned is the value of --canned without a name.
const listCanned = "list"

// formats are the values of --format.
var formats = []string{"csv", "json", "parquet", "arrow"}

func (a *commands) query() *cobra.Command {
	f := &cluster.Client{}
	var in cluster.Query
	var e engineFlags
	var asCSV bool
	var format string
	var job, incident string
	cmd := &cobra.Command{
		Use: `query ["SQL"]`, Short: "run SQL on quell-server", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && in.Canned == listCanned:
				in.Canned = args[0] // pflag passes no separate argument to a flag with an optional value
			case len(args) == 1:
				in.SQL = args[0]
			}
			switch {
			case (in.SQL == "") == (in.Canned == ""):
				return errors.New("want SQL, or --canned")
			case a.JSON && asCSV || format != "" && (a.JSON || asCSV):
				return app.Usage(errors.New("more than one of --format, --json and --csv"), "choose one")
			case format != "" && !slices.Contains(formats, format):
				return app.Usage(fmt.Errorf("--format %q", format), "give one of "+strings.Join(formats, ", "))
			case (format == "parquet" || format == "arrow") && a.Progress(a.Out).Live():
				return app.Usage(fmt.Errorf("--format %s writes binary data to the terminal", format), "add > FILE")
			case in.Canned == listCanned:
				return a.listCanned(cmd.Context(), f)
			}
			for name, value := range map[string]string{"job": job, "incident": incident} {
				if value != "" {
					if in.Params == nil {
						in.Params = map[string]string{}
					}
					in.Params[name] = value
				}
			}
			ask := f.Query
			if e.engine != "" {
				ask = func(ctx context.Context, in cluster.Query) (cluster.Answer, error) { return e.query(ctx, a, &in) }
			}
			answer, err := ask(cmd.Context(), in)
			if err != nil {
				return err
			}
			switch format {
			case "parquet", "arrow":
				a.tellTruncated(&answer)
				if format == "arrow" {
					return writeArrow(printable.Raw(a.Out), &answer)
				}
				return writeParquet(printable.Raw(a.Out), &answer)
			case "json":
				a.JSON = true
			}
			return a.writeAnswer(&answer, asCSV || format == "csv")
		},
	}
	a.addServer(cmd, f)
	e.add(cmd)
	cmd.Flags().StringVar(&in.Canned, "canned", "", "a canned query; without a name: list them")
	cmd.Flags().Lookup("canned").NoOptDefVal = listCanned
	cmd.Flags().StringVar(&job, "job", "", "parameter of canned queries")
	cmd.Flags().StringVar(&incident, "incident", "", "parameter of canned queries: an incident's ID")
	cmd.Flags().StringVar(&in.Since, "since", "", "samples since a time, a day, or a duration ago (24h)")
	cmd.Flags().StringVar(&in.Until, "until", "", "samples until then")
	cmd.Flags().BoolVar(&asCSV, "csv", false, "write CSV")
	cmd.Flags().StringVar(&format, "format", "", "write csv, json, parquet (a file) or arrow (an IPC stream) to the standard output")
	// The flag exists, so there is no error.
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	return a.WithJSON(cmd)
}

func (a *commands) listCanned(ctx context.Context, f *cluster.Client) error {
	all, err := f.Queries(ctx)
	if err != nil {
		return err
	}
	return app.Table(a.App, all, []string{"name", "needs", "description"}, func(c cluster.Canned) []string {
		return []string{c.Name, strings.Join(c.Params, " "), c.Help}
	})
}

// writeAnswer writes rows as text, as CSV, or as JSON: a list of objects.
func (a *commands) writeAnswer(answer *cluster.Answer, asCSV bool) error {
	if a.JSON || asCSV { // a table says it itself
		a.tellTruncated(answer)
	}
	if a.JSON {
		return a.writeObjects(answer)
	}
	var columns []report.Column
	head := make([]string, len(answer.Columns))
	for i, c := range answer.Columns {
		columns = append(columns, report.Column{Name: c.Name, Number: isNumber(c.Type)})
		head[i] = c.Name
	}
	none := "-"
	if asCSV {
		none = ""
	}
	rows := make([][]string, len(answer.Rows))
	for i, r := range answer.Rows {
		rows[i] = make([]string, len(columns))
		for j := range min(len(r), len(columns)) {
			rows[i][j] = plainText(r[j], none)
		}
	}
	if !asCSV {
		return report.Table(a.Out, columns, rows, answer.Truncated, a.Style())
	}
	for i := range head {
		head[i] = printable.Cell(head[i])
	}
	for _, r := range rows {
		for i := range r {
			r[i] = printable.Cell(r[i])
		}
	}
	w := csv.NewWriter(a.Out)
	err := w.Write(head)
	if err == nil {
		err = w.WriteAll(rows)
	}
	if err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return nil
}

func (a *commands) tellTruncated(answer *cluster.Answer) {
	if answer.Truncated {
		fmt.Fprintf(a.Err, "quell: the server truncated the result after %d rows\n", len(answer.Rows))
	}
}

// writeObjects keeps the order of the columns, which a map would not.
func (a *commands) writeObjects(answer *cluster.Answer) error {
	objects := make([]json.RawMessage, len(answer.Rows))
	for i, r := range answer.Rows {
		fields := make([]string, min(len(r), len(answer.Columns)))
		for j := range fields {
			name, err := json.Marshal(answer.Columns[j].Name)
			if err != nil {
				return fmt.Errorf("write JSON: %w", err)
			}
			fields[j] = string(name) + ":" + string(r[j])
		}
		objects[i] = json.RawMessage("{" + strings.Join(fields, ",") + "}")
	}
	return a.WriteJSON(objects)
}

// isNumber interprets DuckDB's type names.
func isNumber(kind string) bool {
	kind, _, _ = strings.Cut(kind, "(")
	switch strings.TrimPrefix(kind, "U") {
	case "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL":
		return true
	}
	return false
}

// plainText formats a JSON value as text: strings without quotes.
func plainText(v json.RawMessage, none string) string {
	var text string
	switch {
	case len(v) == 0 || string(v) == "null":
		return none
	case json.Unmarshal(v, &text) == nil:
		return text
	}
	return string(v)
}
