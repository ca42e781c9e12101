package cli

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/placement"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

const (
	lossCSV = "victim,neighbour,degradation_percent\nweb,encode,40\nencode,web,10\nweb,db,5\ndb,web,5\ndb,encode,8\nencode,db,2\nweb,web,1\n"
	taskCSV = "task,misses,load\nweb,2e6,0.3\nencode,9e6,1\ndb,,0.8\n"
)

func TestPlace(t *testing.T) {
	dir := t.TempDir()
	loss, tasks := filepath.Join(dir, "loss.csv"), filepath.Join(dir, "tasks.csv")
	for file, text := range map[string]string{loss: lossCSV, tasks: taskCSV} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env, asked := fakeCluster(t)
	for _, c := range []struct {
		golden string
		args   []string
	}{
		{"place_measured", []string{"web=2", "db", "encode", "--degradation", loss, "--tasks", tasks}},
		{"place_incidents", []string{"web=2", "reports", "encode", "db"}},
	} {
		got := quell(t, env, append([]string{"advise-scheduler", "place"}, c.args...)...)
		if got.Code != app.ExitOK {
			t.Fatalf("%v: %d %s", c.args, got.Code, got.Err)
		}
		clitest.Golden(t, *update, c.golden, got.Out)
	}
	if got := asked(); got != "GET /v1/pairs" {
		t.Errorf("the server was asked %q", got)
	}
	var a placement.Advice
	got := quell(t, env, "advise-scheduler", "place", "web=2", "db", "encode", "--degradation", loss, "--json")
	if err := json.Unmarshal([]byte(got.Out), &a); err != nil || len(a.Pairs) != 2 || !a.Exact {
		t.Errorf("%v: %s", err, got.Out)
	}
	for args, want := range map[string]string{
		"":                               "requires at least 1 arg",
		"web=0":                          "want JOB or JOB=N",
		"web=x":                          "want JOB or JOB=N",
		"=3":                             "want a job's name",
		"web=1000 db":                    "pair 1001 tasks",
		"web --degradation no-such":      "no such file",
		"web --degradation " + tasks:     "want victim, neighbour and degradation_percent",
		"web --tasks " + loss:            "want task, and misses or load",
		"web --degradation " + dir + "/": "is a directory",
	} {
		got := quell(t, env, append([]string{"advise-scheduler", "place"}, strings.Fields(args)...)...)
		if got.Code != app.ExitUsage || !strings.Contains(got.Err, want) {
			t.Errorf("%s: %d %q, want %q", args, got.Code, got.Err, want)
		}
	}
}

// What the lab measured holds for pairs that no incident names. Slowdowns of 1.2 and 1.4 in
// two cells are a loss of 0.3; rows of other analyses, without a value and with several
// neighbours do not count.
func TestLabReportIsAPrior(t *testing.T) {
	const report = `# accel=tcg
analysis,quantity,cell,part,at,unit,value,low,high,level,method,n
degradation,percent,placement=near,fg,db next to web,%,20,,,0.95,none,1
degradation,slowdown,placement=near,fg,db next to web,,1.2,,,0.95,none,1
degradation,slowdown,placement=far,fg,db next to web,,1.4,,,0.95,none,1
degradation,slowdown,placement=far,fg,web next to encode,,9,,,0.95,none,1
degradation,slowdown,placement=far,fg,"db next to web, encode",,7,,,0.95,none,1
degradation,slowdown,placement=far,fg,db next to encode,,,,,0.95,none,1
throughput,work,placement=far,,1,,8,,,0.95,none,1
`
	prior, err := degradations(strings.NewReader(report))
	if err != nil || len(prior) != 2 || prior[0].Victim != "db" || prior[0].Neighbour != "web" || math.Abs(prior[0].Ratio-0.3) > 1e-9 || prior[1].Ratio != 8 {
		t.Fatalf("%+v, %v", prior, err)
	}
	tasks := []placement.Task{{Name: "db"}, {Name: "web"}, {Name: "encode"}}
	lost := map[[2]string]float64{}
	for _, d := range degradationsFromPairs(tasks, []cluster.Pair{{Victim: "web", Antagonist: "encode", Strength: 1.5}}, prior) {
		lost[[2]string{d.Victim, d.Neighbour}] = d.Ratio
	}
	if len(lost) != 9 || lost[[2]string{"web", "encode"}] != 0.5 || math.Abs(lost[[2]string{"db", "web"}]-0.3) > 1e-9 || lost[[2]string{"db", "encode"}] != 0 {
		t.Errorf("%v", lost)
	}
}

func TestPlacementFilesThatMakeNoSense(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "header"},
		{"victim,neighbour,degradation_percent\na,b,x\n", `line 2: degradation "x"`},
		{"victim,neighbour,degradation_percent\na,b\n", "wrong number of fields"},
	} {
		if _, err := degradations(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"task,load\na,1.5\n", "line 2: load of a"},
		{"task,misses\na,-1\n", "line 2: misses of a"},
		{"task,misses\na,nan\n", "misses of a"},
	} {
		if _, err := taskRows(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.text, err, c.want)
		}
	}
}

// FuzzPlacementFiles: no file causes a panic, and what is read is either advised on or
// refused.
func FuzzPlacementFiles(f *testing.F) {
	f.Add(lossCSV, taskCSV)
	f.Add("foreground,background,interference_metric\na,a,1e308\n", "job,load\na,0x1p-3\n")
	f.Add("analysis,quantity,at,value\ndegradation,slowdown,a next to b,1.5\n", "task,load\na,1\n")
	f.Add("victim,neighbour,degradation_percent\na,b,Inf\n", "task,misses\n\"a\n")
	f.Fuzz(func(t *testing.T, loss, tasks string) {
		measured, err := degradations(strings.NewReader(loss))
		if err != nil {
			return
		}
		all, err := taskRows(strings.NewReader(tasks))
		if err != nil || len(all) > 20 {
			return
		}
		if a, err := placement.Advise(all, measured); err == nil && len(a.Pairs) != (len(all)+1)/2 {
			t.Errorf("%d tasks, %+v", len(all), a)
		}
	})
}
