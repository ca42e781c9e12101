package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/parquet-go/parquet-go"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// fakeServer is a quell-server that answers queries from a file and records requests.
func fakeServer(t *testing.T) (url string, asked *[]string) {
	t.Helper()
	asked = &[]string{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		*asked = append(*asked, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization")+" "+string(body)))
		switch {
		case strings.Contains(string(body), "DROP"):
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"error":"only SELECT is allowed","remedy":"send one SELECT"}`)
		case r.URL.Path == "/v1/queries":
			io.WriteString(w, `[{"name":"worst-antagonists","help":"worst antagonists of a job","params":["job"],"sql":"SELECT 1"},{"name":"cap-outcomes","help":"outcomes of caps","sql":"SELECT 2"}]`)
		default:
			http.ServeFile(w, r, "testdata/answer.json")
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, asked
}

func TestQueryPrints(t *testing.T) {
	url, asked := fakeServer(t)
	env := map[string]string{"LANG": "C.UTF-8", "QUELL_SERVER": url, "QUELL_TOKEN": "secret"}
	for _, c := range []struct {
		golden string
		args   []string
	}{
		{"query", []string{"query", "SELECT *"}},
		{"query_csv", []string{"query", "SELECT *", "--csv"}},
		{"query_json", []string{"query", "SELECT *", "--json"}},
		{"query_canned", []string{"query", "--canned"}},
	} {
		got := quell(t, env, c.args...)
		if got.Code != app.ExitOK {
			t.Fatalf("%v: %d %s", c.args, got.Code, got.Err)
		}
		clitest.Golden(t, *update, c.golden, got.Out)
		if c.golden == "query_csv" && !strings.Contains(got.Err, "truncated the result after 2 rows") {
			t.Errorf("that rows are missing is not told: %q", got.Err)
		}
	}
	var rows []map[string]any
	if err := json.Unmarshal([]byte(quell(t, env, "query", "SELECT *", "--json").Out), &rows); err != nil || len(rows) != 2 {
		t.Errorf("%v rows, %v", rows, err)
	}
	if want := `POST /v1/query Bearer secret {"sql":"SELECT *"}`; (*asked)[0] != want {
		t.Errorf("asked %s, want %s", (*asked)[0], want)
	}
	for _, canned := range [][]string{{"--canned=worst-antagonists"}, {"--canned", "worst-antagonists"}} {
		quell(t, env, append(append([]string{"query"}, canned...), "--job", "web", "--since", "24h", "--until", "1h")...)
		if want := `{"canned":"worst-antagonists","params":{"job":"web"},"since":"24h","until":"1h"}`; !strings.HasSuffix((*asked)[len(*asked)-1], want) {
			t.Errorf("asked %s, want %s", (*asked)[len(*asked)-1], want)
		}
	}
}

// A binary format has the columns in order with their types, and values that are missing; a
// hostile server cannot make a value that its type does not hold.
func TestQueryWritesParquetAndArrow(t *testing.T) {
	answer := cluster.Answer{Columns: []cluster.Column{{Name: "z", Type: "VARCHAR"}, {Name: "n", Type: "BIGINT"}, {Name: "max(a, b)", Type: "DOUBLE"}, {Name: "at", Type: "TIMESTAMP"},
		{Name: "ok", Type: "BOOLEAN"}, {Name: "list", Type: "INTEGER[]"}, {Name: "wrong", Type: "INTEGER"}}}
	for _, row := range []string{`["web",9007199254740993,0.5,"2026-11-21T13:00:00.25Z",true,[1,2],1]`, `[null,null,null,null,null,null,null]`, `["ü",-1,1e300,"2026-11-21T13:00:01Z",false,[],"x"]`} {
		var r []json.RawMessage
		if err := json.Unmarshal([]byte(row), &r); err != nil {
			t.Fatal(err)
		}
		answer.Rows = append(answer.Rows, r)
	}
	want := "z n max(a, b) at ok list wrong\n" +
		"web 9007199254740993 0.5 1795266000250000 true [1,2] 1\n" + "- - - - - - -\n" + "ü -1 1e+300 1795266001000000 false [] x\n"
	var file bytes.Buffer
	if err := writeParquet(&file, &answer); err != nil {
		t.Fatal(err)
	}
	f, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range f.Schema().Fields() {
		names = append(names, c.Name())
	}
	got := strings.Join(names, " ") + "\n"
	rows := parquet.NewReader(f)
	buffer := make([]parquet.Row, 4)
	n, err := rows.ReadRows(buffer)
	if n != 3 || err != nil && err != io.EOF {
		t.Fatalf("%d rows, %v", n, err)
	}
	for _, r := range buffer[:n] {
		var cells []string
		for _, v := range r {
			if v.IsNull() {
				cells = append(cells, "-")
			} else {
				cells = append(cells, v.String())
			}
		}
		got += strings.Join(cells, " ") + "\n"
	}
	if got != want {
		t.Errorf("Parquet has\n%swant\n%s", got, want)
	}
	var stream bytes.Buffer
	if err := writeArrow(&stream, &answer); err != nil {
		t.Fatal(err)
	}
	in, err := ipc.NewReader(&stream)
	if err != nil {
		t.Fatal(err)
	}
	if !in.Next() || in.RecordBatch().NumRows() != 3 {
		t.Fatalf("Arrow: %v", in.Err())
	}
	batch := in.RecordBatch()
	for i, kind := range []arrow.Type{arrow.STRING, arrow.INT64, arrow.FLOAT64, arrow.TIMESTAMP, arrow.BOOL, arrow.STRING, arrow.STRING} {
		c := batch.Column(i)
		if batch.Schema().Field(i).Name != answer.Columns[i].Name || c.DataType().ID() != kind || !c.IsNull(1) || c.NullN() != 1 {
			t.Errorf("Arrow: column %v is %v", batch.Schema().Field(i), c)
		}
	}
	if v := batch.Column(1).ValueStr(0); v != "9007199254740993" {
		t.Errorf("Arrow: %s", v)
	}
	twice := cluster.Answer{Columns: []cluster.Column{{Name: "a"}, {Name: "a"}}}
	if err := writeParquet(io.Discard, &twice); err == nil || !strings.Contains(err.Error(), "AS") {
		t.Errorf("two columns of one name: %v", err)
	}
	if err := writeArrow(io.Discard, &cluster.Answer{Columns: []cluster.Column{{Name: "a", Type: "BIGINT"}}}); err != nil {
		t.Errorf("without rows: %v", err)
	}
	url, _ := fakeServer(t)
	r := quell(t, map[string]string{"QUELL_SERVER": url}, "query", "SELECT *", "--format", "parquet")
	if r.Code != app.ExitOK || !strings.HasPrefix(r.Out, "PAR1") || !strings.HasSuffix(r.Out, "PAR1") {
		t.Errorf("%d %s: %.20q", r.Code, r.Err, r.Out)
	}
	for _, args := range [][]string{{"--format", "xml"}, {"--format", "csv", "--json"}} {
		if r := quell(t, map[string]string{"QUELL_SERVER": url}, append([]string{"query", "SELECT *"}, args...)...); r.Code != app.ExitUsage {
			t.Errorf("%v: %d %s", args, r.Code, r.Err)
		}
	}
}

// TestCSVIsInert: cells that a spreadsheet would execute, and escape codes, come from names of
// tasks. Numbers stay numbers.
func TestCSVIsInert(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"columns":[{"name":"=job","type":"VARCHAR"},{"name":"mean","type":"DOUBLE"}],
"rows":[["=cmd|' /C calc'!A0",-1.5],["+1+1",2],["-x",3],["@SUM(A1)",4],["\u001b[2J",-5e-7],["-12",null],["web",6]]}`)
	}))
	t.Cleanup(s.Close)
	got := quell(t, map[string]string{"QUELL_SERVER": s.URL}, "query", "SELECT 1", "--csv")
	want := "'=job,mean\n'=cmd|' /C calc'!A0,-1.5\n'+1+1,2\n'-x,3\n'@SUM(A1),4\n\\x1b[2J,-5e-7\n-12,\nweb,6\n"
	if got.Code != app.ExitOK || got.Out != want {
		t.Errorf("%d %q\nwant %q\n%s", got.Code, got.Out, want, got.Err)
	}
}

func TestQueryFails(t *testing.T) {
	url, _ := fakeServer(t)
	env := map[string]string{"QUELL_SERVER": url}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"query", "DROP TABLE x"}, app.ExitNegative, "what to do: send one SELECT"},
		{[]string{"query"}, app.ExitUsage, "want SQL, or --canned"},
		{[]string{"query", "SELECT 1", "--canned=x"}, app.ExitUsage, "want SQL, or --canned"},
		{[]string{"query", "SELECT 1", "--json", "--csv"}, app.ExitUsage, "choose one"},
		{[]string{"query", "SELECT 1", "--server", "http://127.0.0.1:1"}, app.ExitUsage, "start quell-server, or name it"},
		{[]string{"query", "SELECT 1", "--server", "http://quell.example", "--token-file", token}, app.ExitUsage, "a token is not sent without TLS"},
		{[]string{"query", "SELECT 1", "--token-file", token + ".none"}, app.ExitUsage, "read token"},
	} {
		got := quell(t, env, c.args...)
		if got.Code != c.code || !strings.Contains(got.Err, c.want) {
			t.Errorf("%v: %d %q; want %d %q", c.args, got.Code, got.Err, c.code, c.want)
		}
	}
}
