package labcmd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/observe"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// While a study does not run, its knobs are not set: that is no change of the machine, and lab
// resume sets them again.
func TestStatusWithoutTheKnobs(t *testing.T) {
	quelltest.Need(t, quelltest.Root) // others cannot tell
	const text = `version: 1
study: knobs
environments: {ve: {driver: cgroup, cpus: 1}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, measure: true}}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1}
run: {for: 1s}
`
	for set, want := range map[string]bool{"": true, "preconditions: {set: {swappiness: \"7\"}}\n": false} {
		s, err := study.Parse("knobs.yaml", []byte(text+set), known())
		if err != nil {
			t.Fatal(err)
		}
		out, cell := filepath.Join(t.TempDir(), "out"), s.Cells()[0]
		f, err := result.Create(out, result.Lock{Study: s.Name, File: text + set})
		if err != nil {
			t.Fatal(err)
		}
		a, err := f.Begin(cell.Key(), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		was := observe.Description{Items: []observe.Item{{Name: "memory.swappiness", Value: "7"}}}
		err = errors.Join(a.Finish(&result.Run{CellKey: cell.Key(), Cell: cell, Verdict: result.Valid, Env: "then"}),
			os.Mkdir(f.Path("env"), 0o755), writeJSONFile(f.Path("env", "then.json"), was))
		if err != nil {
			t.Fatal(err)
		}
		if r := quell(t, clitest.Env("/nowhere"), "lab", "status", out); strings.Contains(r.Out, "the machine has changed") != want {
			t.Errorf("with %q: %+v", set, r)
		}
	}
}

// The versions of well-known tools are in the machine's description, also where the tool
// prints its version and fails; a study's own program is not started for that.
func TestVersionsOfTools(t *testing.T) {
	dir := t.TempDir()
	script := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	s := &study.Study{Workloads: map[string]study.Workload{
		"a":    {Command: []string{script("fio", `[ "$1" = --version ] && echo fio-3.33`), "job"}},
		"b":    {Command: []string{script("wrk", "echo 'wrk 4.1.0 [epoll]'; echo Usage; exit 1")}},
		"c":    {Command: []string{script("run", "touch "+dir+"/started"), "mcf"}},
		"gone": {Command: []string{dir + "/sysbench"}},
	}}
	want := map[string]string{"quell.version": "v1", "tool.fio": "fio-3.33", "tool.wrk": "wrk 4.1.0 [epoll]"}
	if d := cmp.Diff(want, programs(t.Context(), s, "v1", true)); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if _, err := os.Stat(dir + "/started"); err == nil {
		t.Error("a study's own program was started for its version")
	}
}

// TestAttackAStudysPrograms: to look at a folder of a stranger's starts no program that its study names, whatever that
// is called. What cannot be known is no difference of the machine.
func TestAttackAStudysPrograms(t *testing.T) {
	quelltest.Need(t, quelltest.Root)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "fio"), []byte("#!/bin/sh\ntouch "+dir+"/started\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := &study.Study{Environments: map[string]study.Environment{"here": {Driver: study.LXC}},
		Workloads: map[string]study.Workload{"a": {Command: []string{filepath.Join(dir, "fio")}}}}
	f, err := result.Create(filepath.Join(dir, "r"), result.Lock{Study: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.Path("env"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := writeJSONFile(f.Path("env", "e.json"), observe.Description{Items: []observe.Item{{Name: "tool.fio", Value: "fio-3.33"}, {Name: "was", Value: "there"}}}); err != nil {
		t.Fatal(err)
	}
	lines, err := (&commands{&app.App{}}).changed(t.Context(), f, s, "e", false)
	if err != nil || !slices.Contains(lines, "was: there → (not described)") || strings.Contains(strings.Join(lines, "\n"), "fio") {
		t.Errorf("%q, %v", lines, err)
	}
	if _, err := os.Stat(dir + "/started"); err == nil {
		t.Error("the stranger's program was started")
	}
}
