package lab

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/study"
)

// gone is the error of a host that is lost.
type gone struct{}

func (gone) Error() string    { return "silent for 5 s" }
func (gone) LostHost() string { return "h1" }

const twoHosts = `
version: 1
study: t
hosts: {local: {}, h1: {address: "lab@10.0.0.1"}, h2: {address: "lab@10.0.0.2"}}
environments: {ve: {driver: cgroup, cpus: 1}}
workloads:
  work: {builtin: burn, iterations: 20}
  noise: {builtin: burn}
roles:
  fg: {workload: work, environment: ve, host: local, measure: true}
  bg: {workload: noise, environment: ve, host: h1}
factors:
  placement:
    - {name: one, relation: per-thread}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1, order: sequential}
run: {retries: 1}
observe: {hosts: [h2], inside: true}
`

// looker records the names that it is given and marks the parts it gets at Close. As the host of
// that name it is a Watchable.
type looker struct {
	host    string
	names   []string
	seconds []result.Sample
}

func (w *looker) Second(time.Time) (s result.Sample, _ []result.Evidence) {
	if w.host == "" {
		return result.Sample{Values: map[string]float64{"x": 0}}, nil
	}
	if len(w.seconds) > 0 {
		s, w.seconds = w.seconds[0], w.seconds[1:]
	}
	return s, nil
}
func (w *looker) Window(bool) error                      { return nil }
func (w *looker) Energy(result.Window) (float64, string) { return 0, "" }
func (w *looker) Close(parts []result.Part) ([]result.Evidence, error) {
	for i := range parts {
		parts[i].Events = map[string]float64{"seen at " + w.host: float64(len(parts))}
	}
	return nil, nil
}
func (w *looker) Clock() (offset, within, drift time.Duration) { return time.Hour, time.Second, 1 }
func (w *looker) Platform() string                             { return "type of " + w.host }
func (w *looker) Machine() string                              { return "machine of " + w.host }
func (w *looker) Observe(_ context.Context, o Observed) (Observer, error) {
	w.names = o.Names
	return w, nil
}

// A part on another host is not placed by this machine's topology, and is observed there, as are
// a host that the study names and the inside of a guest. Samples of other machines are written when they come. A run in
// which a host is lost is invalid and is repeated.
func TestPartsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// This machine's topology could not place two parts.
		var once sync.Once
		th := &theatre{script: map[string]func(*fakeEnv){"bg": func(e *fakeEnv) {
			once.Do(func() { die(500*time.Millisecond, gone{})(e) })
		}}}
		guest := &looker{host: "fg"}
		th.inside = map[string]Watchable{"fg": guest}
		o := options(t, twoHosts, th)
		var w *looker
		o.Observe = func(of Observed) (Observer, error) {
			w = &looker{names: of.Names}
			return w, nil
		}
		others := map[string]*looker{}
		o.Host = func(_ context.Context, name string) (Watchable, error) {
			one := map[string]float64{"cpu.steal": 0.5}
			th.mu.Lock()
			defer th.mu.Unlock()
			others[name] = &looker{host: name, seconds: []result.Sample{{At: 1, Values: one}, {At: 2, Values: one}, {At: 3, Values: one}}}
			return others[name], nil
		}
		sum, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if sum.Verdicts[result.Valid] != 1 || sum.Verdicts[result.Invalid] != 1 || sum.Reasons[result.HostLost] != 1 {
			t.Errorf("%+v", sum)
		}
		if len(others) != 2 || strings.Join(w.names, " ") != "fg" || strings.Join(others["h1"].names, " ") != "bg" || len(others["h2"].names) != 0 {
			t.Errorf("watched %v, %+v", w.names, others)
		}
		runs, err := o.Folder.Runs()
		if err != nil || len(runs) != 2 {
			t.Fatalf("%d runs, %v", len(runs), err)
		}
		for _, r := range runs {
			if r.Verdict != result.Valid {
				continue
			}
			if len(r.Parts) != 2 || r.Parts[0].Events["seen at "] != 1 || r.Parts[1].Events["seen at h1"] != 1 || len(r.Parts[1].Iterations) == 0 {
				t.Errorf("parts %+v", r.Parts)
			}
			if len(r.Hosts) != 3 || r.Hosts[0].Name != "fg" || r.Hosts[1].Name != "h1" || r.Hosts[2].Name != "h2" || r.Hosts[2].Offset != time.Hour || r.Hosts[2].Drift != 1 || r.Hosts[2].Platform != "type of h2" || r.Hosts[2].Machine != "machine of h2" || guest.names != nil {
				t.Errorf("hosts %+v", r.Hosts)
			}
			samples, err := o.Folder.Samples(&r)
			if err != nil {
				t.Fatal(err)
			}
			of := map[string]int{}
			for _, s := range samples {
				of[s.Host]++
			}
			if of[""] < 2 || of["h1"] != 3 || of["h2"] != 3 {
				t.Errorf("samples by host %v", of)
			}
		}
		for _, e := range th.envs {
			if e.name == "fg" && len(e.sets) != 1 || e.name == "bg" && e.sets != nil {
				t.Errorf("%s was placed on %v", e.name, e.sets)
			}
		}
	})
}

// late is a host whose last second comes after the engine's last look.
type late struct {
	*looker
	over, said bool
}

func (w *late) Close([]result.Part) ([]result.Evidence, error) { w.over = true; return nil, nil }
func (w *late) Second(time.Time) (s result.Sample, _ []result.Evidence) {
	if !w.over || w.said {
		return s, nil
	}
	w.said = true
	return result.Sample{Values: map[string]float64{"cpu.steal": 0.5}}, []result.Evidence{{Reason: result.Steal, Text: "stolen"}}
}

// What speaks against a run in the last second of another host speaks against it too.
func TestLastSecondOfAnotherHost(t *testing.T) {
	f, err := result.Create(filepath.Join(t.TempDir(), "r"), result.Lock{Study: "t"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := f.Begin("cell", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &execution{run: &result.Run{}, attempt: a, watchers: []watcher{{Observer: &late{looker: &looker{host: "h1"}}, host: "h1"}}}
	if err := s.closeWatchers(nil); err != nil || len(s.run.Evidence) != 1 || s.run.Evidence[0].Text != "host h1: stolen" {
		t.Errorf("%+v, %v", s.run.Evidence, err)
	}
	if err := a.Abandon(); err != nil {
		t.Error(err)
	}
}

// A part on another host without a list of CPUs has a load that is a share of those it may use
// there: of none, it would be no number.
func TestLoadIsOfTheCPUsThatItMayUse(t *testing.T) {
	s := &execution{run: &result.Run{}}
	a := &partRun{part: &study.Part{Role: "bg"}, env: &fakeEnv{name: "bg", t: &theatre{}, sets: []sample.Set{sample.SetOf(2, 3), sample.SetOf(3, 4)}}, remote: true}
	if err := s.pin(a); err != nil || a.cpus() != 3 {
		t.Errorf("a share of %v CPUs, %v", a.cpus(), err)
	}
}
