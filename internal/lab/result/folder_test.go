package result

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

func folder(t *testing.T) *Folder {
	t.Helper()
	f, err := Create(filepath.Join(t.TempDir(), "r"), Lock{Study: "s", Hash: "h", File: "version: 1"})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func put(t *testing.T, f *Folder, r Run, samples ...Sample) {
	t.Helper()
	a, err := f.Begin(r.CellKey, r.N, r.Try)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range samples {
		if err := a.Sample(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Finish(&r); err != nil {
		t.Fatal(err)
	}
}

func TestRunsComeBackAsTheyWere(t *testing.T) {
	f := folder(t)
	cell := study.Cell{Kind: study.Main, Levels: []study.Level{{Factor: "ve", Value: "lxc"}}, For: time.Minute,
		Parts: []study.Part{{Role: "fg", Load: study.Load{Tolerance: 0.01}, Environment: study.Environment{Memory: 1 << 30}}}}
	one := Run{CellKey: cell.Key(), Cell: cell, N: 1, Order: 7, Verdict: Invalid, Start: time.Unix(1, 5).UTC(),
		Evidence: []Evidence{{Reason: CorunnerDied, Role: "bg", At: time.Second, Text: "exit status 1"}},
		Parts:    []Part{{Name: "fg", Iterations: []Iteration{{0, time.Second, 1}}, Events: map[string]float64{"cycles": 1e12}}}}
	two := Run{CellKey: "other", N: 0, Order: 2, Verdict: Valid, Start: time.Unix(9, 0).UTC()}
	samples := []Sample{{At: time.Second, Values: map[string]float64{"cpu.fg": 0.5}, Host: "h1"}, {At: 2 * time.Second, Values: map[string]float64{}}}
	put(t, f, one, samples...)
	put(t, f, two)
	got, err := f.Runs()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Run{two, one}, got); d != "" {
		t.Error(d)
	}
	if got[1].Cell.Key() != one.CellKey {
		t.Errorf("the cell's key is %s after reading, was %s", got[1].Cell.Key(), one.CellKey)
	}
	back, err := f.Samples(&got[1])
	if d := cmp.Diff(samples, back); d != "" || err != nil {
		t.Error(d, err)
	}
}

// A run without a record does not count, and its number is free.
func TestInterruptedRunIsNone(t *testing.T) {
	f := folder(t)
	a, err := f.Begin("k", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Sample(Sample{At: 1}), a.samples.Close()); err != nil { // as after kill -9
		t.Fatal(err)
	}
	if runs, err := f.Runs(); len(runs) > 0 || err != nil {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	put(t, f, Run{CellKey: "k"}, Sample{At: 2})
	runs, err := f.Runs()
	if len(runs) != 1 || err != nil {
		t.Fatalf("%d runs, %v", len(runs), err)
	}
	if s, err := f.Samples(&runs[0]); len(s) != 1 || s[0].At != 2 || err != nil {
		t.Errorf("samples %v, %v", s, err)
	}
	if _, err := f.Begin("k", 0, 0); err == nil {
		t.Error("a run with a record was begun again")
	}
	b, err := f.Begin("k", 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Abandon(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.Path("runs", "k", "0.1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("abandoned run: %v", err)
	}
}

func TestADamagedRecordCostsOnlyItself(t *testing.T) {
	f := folder(t)
	put(t, f, Run{CellKey: "a", Order: 1})
	put(t, f, Run{CellKey: "b", Order: 2})
	bad := f.Path("runs", "a", "0.0", recordFile)
	if err := os.WriteFile(bad, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	runs, err := f.Runs()
	if len(runs) != 1 || runs[0].CellKey != "b" || err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("%v, %v", runs, err)
	}
}

// The name of a folder is no pattern.
func TestFolderWithAPatternInItsName(t *testing.T) {
	f, err := Create(filepath.Join(t.TempDir(), "results [old]*"), Lock{Study: "s"})
	if err != nil {
		t.Fatal(err)
	}
	put(t, f, Run{CellKey: "k"})
	if runs, err := f.Runs(); len(runs) != 1 || err != nil {
		t.Errorf("%d runs, %v", len(runs), err)
	}
}

func TestStudiesAreNotMixed(t *testing.T) {
	const file = `version: 1
study: s
environments: {ve: {driver: cgroup}}
workloads: {work: {builtin: primes}}
roles: {fg: {workload: work, environment: ve, measure: true}}
run: {for: 1s}
report: {expect: table.yaml}
`
	dir := filepath.Join(t.TempDir(), "r")
	lock := Lock{Study: "s", Hash: "h", File: file}
	f, err := Create(dir, lock)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, lock); err != nil {
		t.Errorf("the same study: %v", err)
	}
	// A study that was refused, e.g. because a program is missing, has no run: its file is corrected. What the earlier
	// file expected goes with it; the cost of observation, which it did not ask for, is none of its files.
	for _, name := range []string{"expect.yaml", "cost.json"} {
		if err := os.WriteFile(f.Path(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(d.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	lock.Hash = "corrected"
	if _, err := Create(dir, lock); err == nil {
		t.Error("a folder was taken in which a study is run")
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	f, err = Create(dir, lock)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := f.Lock(); err != nil || l.Hash != "corrected" {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := os.Stat(f.Path("expect.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what the earlier file expected is left: %v", err)
	}
	if _, err := os.Stat(f.Path("cost.json")); err != nil {
		t.Errorf("a file that it did not make: %v", err)
	}
	put(t, f, Run{CellKey: "k"})
	if _, err := Create(dir, Lock{Study: "s", Hash: "other"}); err == nil {
		t.Error("another study's results were taken")
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrNoStudy) {
		t.Errorf("an empty folder: %v", err)
	}
}

// A study of guests and containers begins before the guests' image is built, when emulation stands
// for KVM: what the containers did then still counts.
func TestStampsOfGuests(t *testing.T) {
	before, now := []string{"accel=tcg"}, []string{"accel=kvm", "image=bench-1-2"}
	for _, c := range []struct {
		parts []study.Environment
		then  []string
		want  bool
	}{
		{[]study.Environment{{Driver: study.LXC}}, before, true},
		{[]study.Environment{{Driver: study.LXC}, {Driver: study.QEMU}}, before, false},
		{[]study.Environment{{Driver: study.QEMU}}, []string{"accel=kvm"}, true}, // it boots a kernel, not the image
		{[]study.Environment{{Driver: study.QEMU, Image: "bench"}}, []string{"accel=kvm", "image=bench-1-1"}, false},
		{[]study.Environment{{Driver: study.QEMU, Image: "/var/bench"}}, now, true},
		{[]study.Environment{{Driver: study.LXC}}, []string{"bare=in-a-scheduling-group"}, false},
	} {
		r := Run{Env: "m", Stamp: c.then}
		for _, e := range c.parts {
			r.Cell.Parts = append(r.Cell.Parts, study.Part{Environment: e})
		}
		if got := r.In("m", now); got != c.want {
			t.Errorf("%+v, %q: %v", c.parts, c.then, got)
		}
	}
}
