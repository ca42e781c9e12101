package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var update = flag.Bool("update", false, "write the golden files")

// TestMain makes the test binary the program that workload trees start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "workload" {
		s, err := workload.Parse(os.Args[2:])
		if err == nil {
			err = workload.Run(context.Background(), s)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	quelltest.Main(m)
}

// fake is an agent that answers from files and records requests.
type fake struct {
	socket string

	mu    sync.Mutex
	asked []string // method, path and body of each request
}

func (f *fake) requests() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// newFake answers until the test ends. Tasks called "nobody" are refused, and one called "/busy" once.
func newFake(t *testing.T) *fake {
	t.Helper()
	return newFakeOf(t, "")
}

// newFakeOf is newFake with more lines in the log of incidents.
func newFakeOf(t *testing.T, more string) *fake {
	t.Helper()
	f := &fake{socket: filepath.Join(t.TempDir(), "agent.sock")}
	l, err := net.Listen("unix", f.socket)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{api.PathStatus: "status.json", api.PathTasks: "tasks.json", api.PathOffenders: "offenders.json", api.PathDecisions: "decisions.json"}
	book, err := logbook.Read(incidentLog(t, more))
	if err != nil {
		t.Fatal(err)
	}
	incidents := api.IncidentsHandler(book)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		f.mu.Lock()
		first := !strings.Contains(strings.Join(f.asked, "\n"), `{"task":"/busy"`)
		f.asked = append(f.asked, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+body.String()))
		f.mu.Unlock()
		file, get := files[r.URL.Path]
		switch {
		case r.URL.Path == api.PathIncidents && r.Method == http.MethodGet:
			incidents(w, r)
		case get && r.Method == http.MethodGet:
			http.ServeFile(w, r, "testdata/"+file)
		case r.Method != http.MethodPost:
			w.WriteHeader(http.StatusTeapot)
		case strings.Contains(body.String(), "nobody"), first && strings.Contains(body.String(), `{"task":"/busy"`):
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"error":"unknown task \"nobody\"","remedy":"see quell top --once"}`)
		default:
			fmt.Fprint(w, `{"message":"it is done","id":"cap-1"}`)
		}
	})}
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Close(); wg.Wait() })
	return f
}

func quell(t *testing.T, env map[string]string, args ...string) clitest.Answer {
	t.Helper()
	return clitest.Run(t, newRoot, env, args...)
}

func TestWhatCommandsPrint(t *testing.T) {
	for _, c := range []struct{ golden, args string }{
		{"incidents", "incidents"},
		{"incidents_open", "incidents --open"},
		{"incidents_since", "incidents --since 45m"},
		{"incidents_victim", "incidents --victim *web"},
		{"incident_last", "incidents last"},
		{"incident_part", "incidents 120905"},
		{"incident_ascii", "incidents 120905 --ascii"},
		{"top_once", "top --once"},
		{"status", "status"},
		{"enforcement", "enforcement"},
		{"decisions", "decisions"},
		{"cap", "cap encode --rate 0.1 --for 5m --reason why"},
		{"version", "version"},
		{"version", "--version"},
		{"incidents_since", "incidents --since 0.03125d"},
		{"cap", "cap encode --rate 10% --for 5m --reason why"},
		{"cap", "cap encode --rate 100m --for 5m --reason why"},
	} {
		t.Run(c.golden, func(t *testing.T) {
			f := newFake(t)
			r := quell(t, clitest.Env(f.socket), strings.Fields(c.args)...)
			if r.Code != app.ExitOK || r.Err != "" {
				t.Errorf("exit code %d, stderr %q", r.Code, r.Err)
			}
			clitest.Golden(t, *update, c.golden, r.Out)
		})
	}
}

func TestJSONIsWhatTheAgentSaid(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		args string
		into any
		file string // with the same content, "" for none
	}{
		{"incidents", new([]incident.Record), "incidents.json"},
		{"incidents last", new(incident.Record), ""},
		{"top --once", new([]api.TaskView), ""},
		{"status", new(api.Status), "status.json"},
		{"enforcement", new(struct {
			Mode     plan.Mode
			ModeFrom api.Origin `json:"mode_from"`
		}), ""},
		{"enforcement on --reason why", new(api.Done), ""},
		{"cap encode --rate 0.1 --for 5m --reason why", new(api.Done), ""},
		{"uncap encode --reason why", new(api.Done), ""},
		{"protect encode --reason why", new(api.Done), ""},
		{"version", new(struct{ Version string }), ""},
	} {
		r := quell(t, clitest.Env(f.socket), append(strings.Fields(c.args), "--json")...)
		if r.Code != app.ExitOK {
			t.Fatalf("%s: exit code %d, %s", c.args, r.Code, r.Err)
		}
		d := json.NewDecoder(strings.NewReader(r.Out))
		d.DisallowUnknownFields()
		if err := d.Decode(c.into); err != nil || d.More() {
			t.Errorf("%s --json: %v, more %t:\n%s", c.args, err, d.More(), r.Out)
		}
		if c.file == "" {
			continue
		}
		text, err := os.ReadFile("testdata/" + c.file)
		if err != nil {
			t.Fatal(err)
		}
		if c.args == "incidents" {
			text = withoutPictures(t, text)
		}
		if got, want := compact(t, r.Out), compact(t, string(text)); got != want {
			t.Errorf("%s --json is\n%s\nthe agent said\n%s", c.args, got, want)
		}
	}
	if r := quell(t, clitest.Env(f.socket), "incidents", "--victim", "/none", "--json"); r.Out != "[]\n" || r.Code != app.ExitOK {
		t.Errorf("no incidents: %q, exit code %d", r.Out, r.Code)
	}
	if r := quell(t, clitest.Env(f.socket), "incidents", "--limit", "1", "--json"); r.Code != app.ExitOK || r.Err != "quell: 2 older incidents are left out: --limit 0 lists all\n" {
		t.Errorf("a part of the incidents: %q, exit code %d", r.Err, r.Code)
	}
}

// withoutPictures returns a list of incidents as the agent sends it.
func withoutPictures(t *testing.T, text []byte) []byte {
	t.Helper()
	var all []map[string]any
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	for _, inc := range all {
		inc["times"], inc["victim_cost"], inc["suspect_usage"] = nil, nil, nil
	}
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// compact normalises JSON for comparison: objects' keys in order.
func compact(t *testing.T, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestWhatTheAgentIsTold(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"cap", "encode", "--rate", "0.1", "--for", "5m", "--reason", "ticket 4711"},
			`POST /v1/commands {"why":"ticket 4711","cap":{"task":"encode","rate":0.1,"for":"5m"}}`},
		{[]string{"uncap", "/a/b", "--reason", "moved"}, `POST /v1/commands {"why":"moved","uncap":{"task":"/a/b"}}`},
		{[]string{"protect", "index", "--reason", "nightly"}, `POST /v1/commands {"why":"nightly","protect":{"task":"index"}}`},
		{[]string{"protect", "index", "--off", "--reason", "done"}, `POST /v1/commands {"why":"done","unprotect":{"task":"index"}}`},
		{[]string{"enforcement", "on", "--reason", "trusted"}, `POST /v1/commands {"why":"trusted","enforcement":{"mode":"on"}}`},
		{[]string{"incidents", "--open"}, `GET /v1/incidents?limit=100&open=true`},
		{[]string{"incidents", "--limit", "0", "--since", "30m", "--victim", "*/web"}, `GET /v1/incidents?since=1763726400000&victim=%2A%2Fweb`},
		{[]string{"incidents", "last"}, `GET /v1/incidents?id=last`},
	} {
		f := newFake(t)
		r := quell(t, clitest.Env(f.socket), c.args...)
		if got := f.requests(); r.Code != app.ExitOK || len(got) != 1 || got[0] != c.want {
			t.Errorf("%q: exit code %d, asked %q, want %q", c.args, r.Code, got, c.want)
		}
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	f := newFake(t)
	missing := filepath.Join(t.TempDir(), "no.sock")
	deaf := filepath.Join(t.TempDir(), "deaf.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: deaf, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	reason := []string{"--reason", "why"}
	for _, c := range []struct {
		name string
		args []string
		code int
		err  string // with its remedy
	}{
		{"no agent", []string{"status", "--socket", missing}, app.ExitUsage,
			"quell: reach the agent at " + missing + ": connect: no such file or directory\nwhat to do: start quell-agent, or name its socket with --socket\n"},
		{"dead agent", []string{"top", "--once", "--socket", deaf}, app.ExitUsage,
			"quell: reach the agent at " + deaf + ": connect: connection refused\nwhat to do: start quell-agent, or name its socket with --socket\n"},
		{"no agent for incidents", []string{"incidents", "--socket", missing}, app.ExitUsage,
			"quell: reach the agent at " + missing + ": connect: no such file or directory\nwhat to do: start quell-agent, or name its socket with --socket; or read its log with --state-dir /var/lib/quell\n"},
		{"live view without agent", []string{"top", "--socket", missing}, app.ExitUsage,
			"quell: reach the agent at " + missing + ": connect: no such file or directory\nwhat to do: start quell-agent, or name its socket with --socket\n"},
		{"refused", append([]string{"uncap", "nobody"}, reason...), app.ExitNegative, "quell: unknown task \"nobody\"\nwhat to do: see quell top --once\n"},
		{"no such incident", []string{"incidents", "xyz"}, app.ExitNegative, "quell: find incident \"xyz\": not found among 3 incidents\nwhat to do: see `quell incidents`\n"},
		{"many such incidents", []string{"incidents", "20251121"}, app.ExitNegative,
			"quell: find incident \"20251121\": it matches inc-20251121T120905.250-7, inc-20251121T122815.000-9\nwhat to do: give more of its ID\n"},
		{"no reason", []string{"uncap", "x"}, app.ExitUsage, "quell: why is empty: want a reason, for the audit log\nwhat to do: add --reason \"why\"\n"},
		{"blank reason", []string{"enforcement", "on", "--reason", " "}, app.ExitUsage, "quell: why is empty: want a reason, for the audit log\nwhat to do: add --reason \"why\"\n"},
		{"no rate", append([]string{"cap", "x", "--for", "5m"}, reason...), app.ExitUsage, "quell: rate 0: want 0.001 to 1024 CPU-s/s\nwhat to do: see `quell cap --help`\n"},
		{"odd rate", append([]string{"cap", "x", "--for", "5m", "--rate", "inf"}, reason...), app.ExitUsage, "quell: rate +Inf: want 0.001 to 1024 CPU-s/s\nwhat to do: see `quell cap --help`\n"},
		{"no duration", append([]string{"cap", "x", "--rate", "1"}, reason...), app.ExitUsage, "quell: for 0s: want a duration from 1s to 24h\nwhat to do: see `quell cap --help`\n"},
		{"no task", append([]string{"protect"}, reason...), app.ExitUsage, "quell: protect: want one of task, job, class, all; got none\nwhat to do: see `quell protect --help`\n"},
		{"odd mode", append([]string{"enforcement", "maybe"}, reason...), app.ExitUsage, "quell: mode \"maybe\": want off, advise or on\nwhat to do: see `quell enforcement --help`\n"},
		{"odd since", []string{"incidents", "--since", "-1h"}, app.ExitUsage, "quell: --since -1h0m0s: want a duration above 0\nwhat to do: see `quell incidents --help`\n"},
		{"a list's flag with an ID", []string{"incidents", "last", "--victim", "web"}, app.ExitUsage,
			"quell: --victim is for lists of incidents, and \"last\" shows one\nwhat to do: leave one of them out\n"},
		{"no state directory", []string{"incidents", "--state-dir", missing}, app.ExitUsage,
			"quell: open incident log: open " + missing + ": no such file or directory\nwhat to do: name the directory that is state_dir in the agent's configuration, and run as root\n"},
		{"odd flag", []string{"status", "--nope"}, app.ExitUsage, "quell: unknown flag: --nope\nwhat to do: see `quell status --help`\n"},
		{"odd command", []string{"frobnicate"}, app.ExitUsage, "quell: unknown command \"frobnicate\" for \"quell\"\nwhat to do: see `quell --help`\n"},
		{"nearest command", []string{"tpo"}, app.ExitUsage, "quell: unknown command \"tpo\" for \"quell\"\nwhat to do: try `quell top`; `quell --help` lists the commands\n"},
		{"nearest command of the lab", []string{"lab", "rnu"}, app.ExitUsage, "quell: unknown command \"rnu\" for \"quell lab\"\nwhat to do: try `quell lab run`; `quell lab --help` lists the commands\n"},
		{"argument", []string{"status", "web"}, app.ExitUsage, "quell: quell status takes no argument, not \"web\"\nwhat to do: see `quell status --help`\n"},
		{"odd unit", []string{"incidents", "--since", "1x"}, app.ExitUsage, "quell: invalid argument \"1x\" for \"--since\" flag: \"1x\" is no duration: want a number with a unit, such as 30s, 10m, 2h or 1d\nwhat to do: see `quell incidents --help`\n"},
		{"no unit", []string{"cap", "encode", "--rate", "0.1", "--for", "10"}, app.ExitUsage, "quell: invalid argument \"10\" for \"--for\" flag: for \"10\": want a duration from 1s to 24h\nwhat to do: see `quell cap --help`\n"},
		{"odd rate", []string{"cap", "encode", "--rate", "ten"}, app.ExitUsage, "quell: invalid argument \"ten\" for \"--rate\" flag: \"ten\" is no rate: want CPUs such as 0.1, a share of one such as 10%, or thousandths such as 100m\nwhat to do: see `quell cap --help`\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := quell(t, clitest.Env(f.socket), c.args...)
			if r.Code != c.code || r.Err != c.err || r.Out != "" {
				t.Errorf("exit code %d, want %d; stdout %q; stderr\n%swant\n%s", r.Code, c.code, r.Out, r.Err, c.err)
			}
		})
	}
}

// incidentLog makes a state directory from testdata/incidents.json, with more appended to
// the log.
func incidentLog(t *testing.T, more string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/incidents.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	for _, inc := range all {
		if err := json.Compact(&log, inc); err != nil {
			t.Fatal(err)
		}
		log.WriteByte('\n')
	}
	log.WriteString(more)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, logbook.Name), log.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestIncidentsWithoutAnAgent(t *testing.T) {
	dir := incidentLog(t, `{"id":"inc-torn`)
	r := quell(t, clitest.Env("/nowhere"), "incidents", "--state-dir", dir)
	if want := "quell: skipped 1 damaged line(s) of the log in " + dir + "\n"; r.Code != app.ExitOK || r.Err != want {
		t.Errorf("exit code %d, stderr %q, want %q", r.Code, r.Err, want)
	}
	clitest.Golden(t, *update, "incidents", r.Out)
	if r := quell(t, clitest.Env("/nowhere"), "incidents", "--state-dir", dir, "--open"); r.Code != app.ExitOK {
		t.Errorf("exit code %d: %s", r.Code, r.Err)
	} else {
		clitest.Golden(t, *update, "incidents_open", r.Out)
	}
}

func TestLocaleChoosesTheCharacters(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct {
		env   map[string]string
		ascii bool
	}{
		{map[string]string{"LANG": "en_US.UTF-8"}, false},
		{map[string]string{"LANG": "de_AT.utf8"}, false},
		{map[string]string{"LANG": "C"}, true},
		{map[string]string{}, true},
		{map[string]string{"LANG": "en_US.UTF-8", "LC_ALL": "C"}, true},
		{map[string]string{"LANG": "C", "LC_CTYPE": "C.UTF-8"}, false},
	} {
		c.env["QUELL_SOCKET"] = f.socket
		r := quell(t, c.env, "incidents", "last")
		if got := !strings.ContainsFunc(r.Out, func(r rune) bool { return r > 127 }); got != c.ascii {
			t.Errorf("%v: ASCII %t, want %t", c.env, got, c.ascii)
		}
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	var walk func(cmd *cobra.Command)
	seen := 0
	files, err := filepath.Glob("help/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	walk = func(cmd *cobra.Command) {
		files = slices.DeleteFunc(files, func(name string) bool {
			return name == "help/"+strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".txt"
		})
		if cmd.Hidden {
			return
		}
		seen++
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("%s: example %q, short help %q", cmd.CommandPath(), cmd.Example, cmd.Short)
		}
		if strings.Contains(cmd.Example, "ssh -L") {
			t.Errorf("%s: without a terminal (ssh -t) the command stays when ssh ends", cmd.CommandPath())
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(newRoot(&app.App{Getenv: func(string) string { return "" }}))
	if seen < 10 || len(files) > 0 {
		t.Errorf("saw %d commands, and none for %q", seen, files)
	}
}

func TestCompletion(t *testing.T) {
	f := newFake(t)
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := quell(t, clitest.Env(f.socket), "completion", shell); r.Code != app.ExitOK || !strings.Contains(r.Out, "quell") {
			t.Errorf("%s: exit code %d, %d bytes", shell, r.Code, len(r.Out))
		}
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"cap", ""}, "/kubepods/besteffort/pod4712/encode\tencode, best-effort"},
		{[]string{"incidents", ""}, "inc-20251121T122815.000-9\t/kubepods/burstable/pod4711/redis"},
		{[]string{"enforcement", "a"}, "advise"},
	} {
		r := quell(t, clitest.Env(f.socket), append([]string{"__complete"}, c.args...)...)
		if !strings.Contains(r.Out, c.want+"\n") {
			t.Errorf("%q completes to %q, want %q", c.args, r.Out, c.want)
		}
	}
	if r := quell(t, clitest.Env("/nowhere"), "__complete", "cap", ""); r.Code != app.ExitOK || r.Out != ":4\n" {
		t.Errorf("without an agent: %q, exit code %d", r.Out, r.Code)
	}
}

// A name that a shell would run is not put into the command line.
func TestCompletionOffersNothingThatAShellRuns(t *testing.T) {
	for name, want := range map[string]bool{"/a b": true, `/system-getty\x2d1.slice`: true, "/b\tjob $(x), batch": true,
		"/$(reboot)1": false, "/`reboot`": false, "/a;reboot": false, "/a>b": false} {
		if got, _ := completions([]string{name}, nil, func(s string) string { return s }); slices.Equal(got, []string{name}) != want {
			t.Errorf("%q completes to %q", name, got)
		}
	}
}

// A terminal that is gone ends a command in order, unless nohup has started it.
func TestHangUp(t *testing.T) {
	ends := func() bool { return slices.Contains(endings(), os.Signal(syscall.SIGHUP)) }
	if ends() == signal.Ignored(syscall.SIGHUP) { // the tests may run under nohup themselves
		t.Errorf("%v", endings())
	}
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if ends() {
		t.Error("it ends although its signal is ignored")
	}
}
