package lab

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
)

// gone is the error of a host that is lost.
type gone struct{}

func (gone) Error() string    { return "silent for 5 s" }
func (gone) LostHost() string { return "h1" }

const twoHosts = `
version: 1
study: t
hosts: {local: {}, h1: {address: "lab@10.0.0.1"}}
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
`

// watcher records the names that it is given and marks the parts it gets at Close.
type watcher struct {
	names []string
}

func (w *watcher) Second(time.Time) (result.Sample, []result.Evidence) { return result.Sample{}, nil }
func (w *watcher) Window(bool) error                                   { return nil }
func (w *watcher) Energy(result.Window) (float64, string)              { return 0, "" }
func (w *watcher) Close(parts []result.Part) ([]result.Evidence, error) {
	for i := range parts {
		parts[i].Events = map[string]float64{"seen": float64(len(parts))}
	}
	return nil, nil
}

// A part on another host is neither placed by this machine's topology nor observed. A
// run in which a host is lost is invalid and is repeated.
func TestPartsElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// This machine's topology could not place two parts.
		var once sync.Once
		th := &theatre{script: map[string]func(*fakeEnv){"bg": func(e *fakeEnv) {
			once.Do(func() { die(500*time.Millisecond, gone{})(e) })
		}}}
		o := options(t, twoHosts, th)
		var w *watcher
		o.Observe = func(of Observed) (Observer, error) {
			w = &watcher{names: of.Names}
			return w, nil
		}
		sum, err := Run(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if sum.Verdicts[result.Valid] != 1 || sum.Verdicts[result.Invalid] != 1 || sum.Reasons[result.HostLost] != 1 {
			t.Errorf("%+v", sum)
		}
		if strings.Join(w.names, " ") != "fg" {
			t.Errorf("watched %v", w.names)
		}
		runs, err := o.Folder.Runs()
		if err != nil || len(runs) != 2 {
			t.Fatalf("%d runs, %v", len(runs), err)
		}
		for _, r := range runs {
			if r.Verdict != result.Valid {
				continue
			}
			if len(r.Parts) != 2 || r.Parts[0].Events["seen"] != 1 || r.Parts[1].Events != nil || len(r.Parts[1].Iterations) == 0 {
				t.Errorf("parts %+v", r.Parts)
			}
		}
		for _, e := range th.envs {
			if e.name == "fg" && len(e.sets) != 1 || e.name == "bg" && e.sets != nil {
				t.Errorf("%s was placed on %v", e.name, e.sets)
			}
		}
	})
}
