package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/api"
	"github.com/quell-dev/quell/internal/report"
)

// serverFlags say where quell-server is and who asks it.
type serverFlags struct {
	url, tokenFile string
}

func (a *app) addServer(cmd *cobra.Command, f *serverFlags) {
	cmd.Flags().StringVar(&f.url, "server", cmp.Or(a.getenv("QUELL_SERVER"), "http://127.0.0.1:9781"), "quell-server's address ($QUELL_SERVER)")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "file that holds the token; else $QUELL_TOKEN is it")
}

// queryTime is more than any query may take by default.
const queryTime = 2 * time.Minute

// ask sends a request to the server and reads its answer's JSON.
func (a *app) ask(ctx context.Context, f *serverFlags, method, path string, in, out any) error {
	token := a.getenv("QUELL_TOKEN")
	if f.tokenFile != "" {
		text, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return &usageError{fmt.Errorf("read token: %w", err), "name a file that you may read with --token-file"}
		}
		token = strings.TrimSpace(string(text))
	}
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	ctx, cancel := context.WithTimeout(ctx, queryTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(f.url, "/")+path, body)
	if err != nil {
		return &usageError{fmt.Errorf("ask %s: %w", f.url, err), "name the server as http://HOST:PORT or https://HOST:PORT"}
	}
	if token != "" {
		// Whoever can listen in would have it.
		if ip := net.ParseIP(req.URL.Hostname()); req.URL.Scheme != "https" && req.URL.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return &usageError{fmt.Errorf("ask %s: a token is not sent without TLS", f.url), "use https://"}
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return &usageError{fmt.Errorf("reach quell-server: %w", err), "start quell-server, or name it with --server or $QUELL_SERVER"}
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		r := &api.RefusedError{Status: resp.StatusCode}
		if err := json.NewDecoder(resp.Body).Decode(&r.Failure); err != nil || r.Failure.Error == "" {
			r.Failure.Error = resp.Status
		}
		return r
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	return nil
}

// queryRequest and queryAnswer are the server's (docs/server.md).
type queryRequest struct {
	SQL    string            `json:"sql,omitempty"`
	Canned string            `json:"canned,omitempty"`
	Params map[string]string `json:"params,omitempty"`
	Since  string            `json:"since,omitempty"`
	Until  string            `json:"until,omitempty"`
}

type queryAnswer struct {
	Columns []struct {
		Name string `json:"name"`
		Type string `json:"type"`
	} `json:"columns"`
	Rows      [][]json.RawMessage `json:"rows"`
	Truncated bool                `json:"truncated,omitempty"`
}

type cannedQuery struct {
	Name   string   `json:"name"`
	Help   string   `json:"help"`
	Params []string `json:"params,omitempty"`
	SQL    string   `json:"sql"`
}

// listCanned is what --canned without a name asks for.
const listCanned = "list"

func (a *app) query() *cobra.Command {
	var f serverFlags
	var in queryRequest
	var asCSV bool
	var job, incident string
	cmd := &cobra.Command{
		Use: `query ["SQL"]`, Short: "ask quell-server by SQL", Args: cobra.MaximumNArgs(1),
		Long: `query asks quell-server one SELECT over samples, incidents, actions, specs and machines of
the whole cluster (docs/sql.md), or one of its canned queries. --since and --until say of
which time samples are read; without them it is all that is kept.`,
		Example: `  quell query "SELECT job, avg(cost) FROM samples GROUP BY job" --since 24h
  quell query "FROM incidents WHERE closed IS NULL" --json
  quell query --canned                                # which there are
  quell query --canned worst-antagonists --job web
  quell query "FROM specs" --csv > specs.csv`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && in.Canned == listCanned:
				in.Canned = args[0] // pflag gives no value to a flag that may be without
			case len(args) == 1:
				in.SQL = args[0]
			}
			switch {
			case (in.SQL == "") == (in.Canned == ""):
				return &usageError{errors.New("want SQL, or --canned"), "see `quell query --help`"}
			case a.json && asCSV:
				return &usageError{errors.New("--json and --csv"), "choose one"}
			case in.Canned == listCanned:
				return a.listCanned(cmd.Context(), &f)
			}
			for name, value := range map[string]string{"job": job, "incident": incident} {
				if value != "" {
					if in.Params == nil {
						in.Params = map[string]string{}
					}
					in.Params[name] = value
				}
			}
			var answer queryAnswer
			if err := a.ask(cmd.Context(), &f, http.MethodPost, "/v1/query", &in, &answer); err != nil {
				return err
			}
			return a.writeAnswer(&answer, asCSV)
		},
	}
	a.addServer(cmd, &f)
	cmd.Flags().StringVar(&in.Canned, "canned", "", "a canned query; without a name: list them")
	cmd.Flags().Lookup("canned").NoOptDefVal = listCanned
	cmd.Flags().StringVar(&job, "job", "", "parameter of canned queries")
	cmd.Flags().StringVar(&incident, "incident", "", "parameter of canned queries: an incident's ID")
	cmd.Flags().StringVar(&in.Since, "since", "", "samples since a time, a day, or so long ago (24h)")
	cmd.Flags().StringVar(&in.Until, "until", "", "samples until then")
	cmd.Flags().BoolVar(&asCSV, "csv", false, "write CSV")
	return a.withJSON(cmd)
}

func (a *app) listCanned(ctx context.Context, f *serverFlags) error {
	var all []cannedQuery
	if err := a.ask(ctx, f, http.MethodGet, "/v1/queries", nil, &all); err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(list(all))
	}
	var rows [][]string
	for _, c := range all {
		rows = append(rows, []string{c.Name, strings.Join(c.Params, " "), c.Help})
	}
	return report.Answer(a.out, []report.AnswerColumn{{Name: "name"}, {Name: "needs"}, {Name: "what it tells"}}, rows, false, a.style())
}

// writeAnswer writes rows for people, as CSV, or as JSON: a list of objects.
func (a *app) writeAnswer(answer *queryAnswer, asCSV bool) error {
	if a.json {
		return a.writeObjects(answer)
	}
	var columns []report.AnswerColumn
	head := make([]string, len(answer.Columns))
	for i, c := range answer.Columns {
		columns = append(columns, report.AnswerColumn{Name: c.Name, Number: isNumber(c.Type)})
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
		return report.Answer(a.out, columns, rows, answer.Truncated, a.style())
	}
	w := csv.NewWriter(a.out)
	err := w.Write(head)
	if err == nil {
		err = w.WriteAll(rows)
	}
	if err != nil {
		return fmt.Errorf("write CSV: %w", err)
	}
	return a.cutOff(answer)
}

// cutOff says on the standard error that an answer for programs is not all.
func (a *app) cutOff(answer *queryAnswer) error {
	if answer.Truncated {
		fmt.Fprintf(a.err, "quell: the server cut the answer off after %d rows\n", len(answer.Rows))
	}
	return nil
}

// writeObjects keeps the columns' order, which a map would not.
func (a *app) writeObjects(answer *queryAnswer) error {
	objects := make([]json.RawMessage, len(answer.Rows))
	for i, r := range answer.Rows {
		var b bytes.Buffer
		b.WriteByte('{')
		for j := range min(len(r), len(answer.Columns)) {
			if j > 0 {
				b.WriteByte(',')
			}
			name, err := json.Marshal(answer.Columns[j].Name)
			if err != nil {
				return fmt.Errorf("write JSON: %w", err)
			}
			b.Write(name)
			b.WriteByte(':')
			b.Write(r[j])
		}
		b.WriteByte('}')
		objects[i] = b.Bytes()
	}
	if err := a.writeJSON(objects); err != nil {
		return err
	}
	return a.cutOff(answer)
}

// isNumber goes by DuckDB's names of types.
func isNumber(kind string) bool {
	kind, _, _ = strings.Cut(kind, "(")
	switch strings.TrimPrefix(kind, "U") {
	case "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "FLOAT", "DOUBLE", "DECIMAL":
		return true
	}
	return false
}

// plainText is a value of JSON for people: texts without quotes.
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
