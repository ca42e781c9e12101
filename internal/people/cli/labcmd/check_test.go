package labcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
)

// Every shipped study is right on a machine, or there is one line why it is not and what to
// do: for this machine, and for the described ones, whose answers are golden.
func TestStudiesOnMachines(t *testing.T) {
	studies, err := filepath.Glob("../../../../studies/*.yaml")
	if err != nil || len(studies) < 20 {
		t.Fatal(studies, err)
	}
	machines, err := filepath.Glob("testdata/machines/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^\S+: study \S+ is valid: .*; (right (here|on .*)|not (here|on .*) \(\d+ of \d+ runs\): .+)$`)
	verdicts := func(name, text string) string {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(text), "\n")
		if len(lines) != len(studies) {
			t.Fatalf("%s: %d lines for %d studies", name, len(lines), len(studies))
		}
		for _, l := range lines {
			if !line.MatchString(l) {
				t.Errorf("%s: %s", name, l)
			}
		}
		return regexp.MustCompile(`(?m)^\S+/(\S+): .*?; (right|not)`).ReplaceAllString(text, "$1: $2")
	}
	check := func(args ...string) string {
		t.Helper()
		return verdicts(fmt.Sprint(args), quell(t, clitest.Env("/nowhere"), append(append([]string{"lab", "check"}, args...), studies...)...).Out)
	}
	check()
	// The command reads and plans every study again; that is done once for all other machines.
	type planned struct {
		*study.Study
		plan []study.Planned
	}
	var read []planned
	for _, file := range studies {
		s, _, err := readStudy(file)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, planned{s, s.Plan()})
	}
	var all strings.Builder
	for _, m := range machines {
		name := filepath.Base(m)
		on, err := (&targetFlags{machine: m}).open()
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for i, s := range read {
			on.judge(&text, studies[i], s.Study, s.plan)
		}
		fmt.Fprintf(&all, "== %s\n%s\n", name, verdicts(name, text.String()))
	}
	fmt.Fprintf(&all, "== m5.2xlarge.yaml, with its hosts\n%s", check("--machine", "testdata/machines/m5.2xlarge.yaml", "--hosts", "../../../lab/remote/testdata/terraform-output.json"))
	clitest.Golden(t, *update, "lab-check-machines", all.String())
}

// A study that cannot have one run is refused before the first: by check, plan and run alike,
// for the same reason, with something to do.
func TestRefusedBeforeTheFirstRun(t *testing.T) {
	file := studyFile(t, `version: 1
study: image
environments: {vm: {driver: qemu, cpus: 1, image: disk.qcow2}}
workloads: {spec: {command: [/bench/run, mcf], iterations: 1, metric: {parse: time}}}
roles: {vm: {workload: spec, environment: vm, measure: true}}
`)
	for _, args := range [][]string{{"check", file}, {"plan", file}} {
		r := quell(t, clitest.Env("/nowhere"), append([]string{"lab"}, args...)...)
		if r.Code != app.ExitNegative || !strings.Contains(r.Err, "no run of the study can be done: file disk.qcow2 of image \"disk.qcow2\" is missing") || !strings.Contains(r.Err, "quell lab image build NAME") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	r := quell(t, clitest.Env("/nowhere"), "lab", "check", "--json", file)
	var got check
	if err := json.Unmarshal([]byte(r.Out), &got); err != nil || !got.OK || got.Without == 0 || len(got.Lacks) != 1 || got.Lacks[0].Runs != got.Without {
		t.Errorf("%+v, %v", r, err)
	}
	bad := filepath.Join(t.TempDir(), "m.yaml")
	for text, want := range map[string]string{"version: 1\ncores: 0\n": "cores", "version: 1\nhas: [wings]\n": "has", "[": "docs/lab.md"} {
		if err := os.WriteFile(bad, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if r := quell(t, clitest.Env("/nowhere"), "lab", "check", "--machine", bad, file); r.Code == app.ExitOK || !strings.Contains(r.Err, want) {
			t.Errorf("%q: %+v", text, r)
		}
	}
}

// A web server that cannot run where its part is is refused by check, for the reason with which
// its command would be.
func TestWebServersThatCannotRun(t *testing.T) {
	on := &target{}
	on.described(&machineFile{Packages: 1, Cores: 4, Threads: 1, Has: []string{"xen", "kernel"}, Programs: []string{"nginx"}})
	for _, c := range []struct{ driver, options, host, want string }{
		{"cgroup", "-server=nginx", "local", ""},
		{"xen", "-server=nginx", "local", "no web server nginx in a guest of Xen"},
		{"xen", "-server=go", "local", ""},
		{"cgroup", "-server=go", "h1", "on the lab's machine only, not on host h1"},
	} {
		s, err := study.Parse("web.yaml", []byte(`version: 1
study: web
hosts: {local: {}, h1: {address: inventory}}
environments: {ve: {driver: `+c.driver+`}}
workloads:
  web: {builtin: http-server, options: `+c.options+`}
  get: {builtin: http-client, time: 1s}
roles:
  web: {workload: web, environment: ve, host: `+c.host+`}
  load: {workload: get, environment: ve, host: local, asks: web, measure: true}
controls: {solo: false}
`), known())
		if err != nil {
			t.Fatal(err)
		}
		cell := s.Cells()[0]
		l := on.lackOf(s, &cell)
		if c.want == "" {
			if l != nil {
				t.Errorf("%+v: %+v", c, l)
			}
			continue
		}
		_, err = (&labMachine{self: "quell"}).webCommand(lab.Options{Study: s})(&cell, &cell.Parts[0])
		var refused *lab.LackError
		if l == nil || !strings.Contains(l.Why, c.want) || l.Remedy == "" || !errors.As(err, &refused) || refused.What != l.Why {
			t.Errorf("%+v: check says %+v, the command %v", c, l, err)
		}
	}
}

// A rate that is a share of a base case's needs one: without it every run would be skipped, after
// its guests have booted.
func TestRatesNeedABaseCase(t *testing.T) {
	on := &target{}
	on.described(&machineFile{Packages: 1, Cores: 4, Threads: 1})
	for rates, want := range map[string]int{"[max, 50%]": 0, "[50%, 100%]": 2} {
		s, err := study.Parse("web.yaml", []byte(`version: 1
study: web
environments: {ve: {driver: cgroup}}
workloads:
  web: {builtin: http-server, options: -server=go}
  get: {builtin: http-client, time: 1s}
roles:
  load: {workload: get, environment: ve, asks: web, measure: true, load: {control: requests, target: $rate}}
  web: {workload: web, environment: ve}
factors: {rate: `+rates+`}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1}
`), known())
		if err != nil {
			t.Fatal(err)
		}
		all, runs := on.lacks(s, s.Plan())
		if runs != want || want > 0 && (len(all) != 1 || !strings.Contains(all[0].Why, "no base case of get") || all[0].Remedy == "") {
			t.Errorf("%s: %d runs, %+v", rates, runs, all)
		}
	}
}

// The reports in examples/ are what the records give: those of smoke are there too. Each
// example is small, and its Markdown has all its plots.
func TestExamples(t *testing.T) {
	const dir = "../../../../examples"
	out := t.TempDir()
	formats := "csv,md"
	if *update {
		out = filepath.Join(dir, "smoke")
	}
	if r := quell(t, clitest.Env("/nowhere"), "lab", "report", "--format", formats, "--out", out, filepath.Join(dir, "smoke", "smoke.tar.gz")); r.Code != app.ExitOK {
		t.Fatalf("%+v", r)
	}
	for _, name := range []string{"smoke.csv", "smoke.md"} {
		got, err := os.ReadFile(filepath.Join(out, name))
		want, err2 := os.ReadFile(filepath.Join(dir, "smoke", name))
		if err != nil || err2 != nil || string(got) != string(want) {
			t.Errorf("%s is not what its records give now (-update): %v, %v", name, err, err2)
		}
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*", "*.md"))
	if err != nil || len(pages) < 2 {
		t.Fatal(pages, err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^!\[.*\]\((.+)\)$`).FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		size := int64(0)
		err = filepath.WalkDir(filepath.Dir(page), func(_ string, e os.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			i, err := e.Info()
			if err == nil {
				size += i.Size()
			}
			return err
		})
		if err != nil || size > 1<<20 {
			t.Errorf("%s: %d bytes, %v", filepath.Dir(page), size, err)
		}
	}
}

// Which figure is better follows from its parser: a runtime that has doubled is no improvement. Of what a path or a
// pattern reads, the file must say it, except for a server, of which nothing is read.
func TestWhichFigureIsBetter(t *testing.T) {
	read := func(metric string) (study.Metric, error) {
		s, err := study.Parse("t.yaml", []byte(`version: 1
study: t
environments: {ve: {driver: cgroup}}
workloads: {work: {command: ["true"], iterations: 1, metric: {parse: `+metric+`}}, sink: {command: ["true"], serves: 1, metric: {parse: "json:a"}}}
roles: {fg: {workload: work, environment: ve, measure: true}}
controls: {solo: false}
`), known())
		if err != nil {
			return study.Metric{}, err
		}
		if m := s.Workloads["sink"].Metric; m.Better != "higher" || m.Unit != "iterations/s" {
			t.Errorf("the server's figure is %+v", m) // in keys of stored records
		}
		return s.Workloads["work"].Metric, nil
	}
	for _, parser := range workload.ParserNames() {
		m, err := read(parser)
		want := map[string]string{"time": "lower", "sockperf": "lower"}[parser]
		if want == "" {
			want = "higher"
		}
		if err != nil || m.Better != want || m.Unit == "" {
			t.Errorf("%s: %+v, %v", parser, m, err)
		}
	}
	for _, parser := range []string{`"json:a.b"`, `"/a (b)/"`} {
		if _, err := read(parser); err == nil || !strings.Contains(err.Error(), "workloads.work.metric.better") {
			t.Errorf("%s without it: %v", parser, err)
		}
		if m, err := read(parser + ", better: lower"); err != nil || m.Better != "lower" {
			t.Errorf("%s: %+v, %v", parser, m, err)
		}
	}
}

// The study that docs/lab.md shows is valid, has the runs that the page says, and the defaults that it lists.
func TestStudyOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/lab.md")
	if err != nil {
		t.Fatal(err)
	}
	block := func(begins string) string {
		for _, b := range regexp.MustCompile(`(?m)(?:^    .*\n)+`).FindAllString(string(page), -1) {
			if b = strings.ReplaceAll("\n"+b, "\n    ", "\n")[1:]; strings.HasPrefix(b, begins) {
				return b
			}
		}
		t.Fatalf("no block begins with %q", begins)
		return ""
	}
	read := func(text string) *study.Study {
		s, err := study.Parse("mine.yaml", []byte(text), known())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	text := block("version: 1\nstudy: ")
	short := read(text)
	if plan := short.Plan(); len(plan) != 14 || total(plan) != 392*time.Second {
		t.Errorf("%d runs, %s", len(plan), total(plan))
	}
	whole := read(strings.Replace(text, "run: {for: 20s}\n", "", 1) + strings.Replace(block("controls: "), "run: {", "run: {for: 20s, ", 1))
	if a, b := fmt.Sprintf("%+v", *short), fmt.Sprintf("%+v", *whole); a != b {
		t.Errorf("the defaults are\n%s\nthe page's\n%s", a, b)
	}
}
