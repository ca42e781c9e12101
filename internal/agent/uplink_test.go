package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// way is an Uplink that records what was sent. Only the loop uses it.
type way struct {
	windows  []int // samples in each
	samples  []sample.Sample
	records  []string // kind, id and operator or victim
	followed []string
	specs    []spec.Spec
	err, due error

	decisions []*wire.Command
	state     *wire.State // as reported last
}

func (w *way) Decisions() []*wire.Command { return w.decisions }
func (w *way) Report(s *wire.State)       { w.state = s }

func (w *way) Samples(_ sample.Millis, s []sample.Sample) {
	w.windows, w.samples = append(w.windows, len(s)), append(w.samples, s...)
}

func (w *way) Record(_ sample.Millis, kind wire.Record_Kind, id string, document []byte) {
	var in struct {
		Who    string      `json:"who"`
		Victim sample.Task `json:"victim"`
	}
	if err := json.Unmarshal(document, &in); err != nil {
		panic(err)
	}
	w.records = append(w.records, strings.TrimSpace(fmt.Sprint(kind, " ", id != "", " ", in.Who, in.Victim.Name)))
}

func (w *way) WatchSpecs(p sample.Platform, jobs []sample.JobName) {
	w.followed = append(w.followed, fmt.Sprint(p, jobs))
}

func (w *way) Specs() []spec.Spec {
	s := w.specs
	w.specs = nil
	return s
}

func (w *way) Backlog() (waiting, lost uint64) { return 7, 3 }
func (w *way) Err() error                      { return w.err }

func (w *way) Expires(time.Time) (time.Time, error) { return time.Unix(1_800_000_000, 0), w.due }

// Every sample, incident and audit entry goes to the server, and the jobs whose specs
// are wanted are sent once.
func TestServerIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on"), &way{}
		r.uplink = w
		antagonist := r.add("/batch/noisy-1", 0.05)
		r.suffering(antagonist)
		r.start()
		r.learn()
		antagonist.set(1)
		r.pass(8 * time.Minute)
		if len(r.incidents()) == 0 {
			t.Fatal("no incident")
		}
		r.stop()
		if len(w.samples) != len(r.samples) || len(w.windows) < 20 || w.windows[0] != 2 {
			t.Errorf("%d samples in windows of %d; %d were recorded", len(w.samples), w.windows, len(r.samples))
		}
		for i := range w.samples {
			x, y := w.samples[i], r.samples[i]
			if x.Task != y.Task || x.TS != y.TS || x.CPU != y.CPU || x.Job != y.Job || x.Machine != "m1" {
				t.Fatalf("sample %d is %+v, recorded %+v", i, x, y)
			}
		}
		for _, want := range []string{"KIND_INCIDENT true /web/1", "KIND_AUDIT true quell"} {
			if !slices.Contains(w.records, want) {
				t.Errorf("no record %q in %q", want, w.records)
			}
		}
		if n := len(r.audit()); n != countOf(w.records, "KIND_AUDIT") {
			t.Errorf("%d audit entries, sent %q", n, w.records)
		}
		if want := []string{"p[noisy web]"}; !slices.Equal(w.followed, want) {
			t.Errorf("follows %q, want %q", w.followed, want)
		}
	})
}

// TestEndsAreSentAgain: an agent that was killed after it had logged the end of an incident, and before that
// was on the disk of what the server gets, sends it when it is started again. What ended long before was sent.
func TestEndsAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, now := t.TempDir(), sample.At(time.Now())
		var lines string
		for name, ago := range map[string]time.Duration{"long-ago": time.Hour, "just-before": 0} {
			at := now.Add(-ago - time.Hour)
			lines += fmt.Sprintf(`{"id":"%[1]s","victim":{"task":"/%[1]s"},"opened":%[2]d,"updated":%[2]d,"closed":%[2]d,"rounds":[]}`+"\n", name, at)
		}
		put(t, dir, "incidents.jsonl", lines)
		r, w := newRig(t, newMachine(t), dir), &way{}
		r.uplink = w
		r.start()
		r.stop()
		if want := []string{"KIND_INCIDENT true /just-before"}; !slices.Equal(w.records, want) {
			t.Errorf("sent %q, want %q", w.records, want)
		}
	})
}

func countOf(all []string, prefix string) (n int) {
	for _, s := range all {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

// The server's spec is used while it is ready and not too old; otherwise the agent's
// own is, as without a server.
func TestServersSpecIsPreferred(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := newRig(t, newMachine(t), t.TempDir()), &way{}
		r.uplink = w
		v := r.add("/web/1", 0.5)
		v.cost = func() float64 { return 1 }
		r.start()
		r.learn()
		give := func(state spec.State, updated time.Time) spec.Spec {
			t.Helper()
			s := spec.Spec{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "by-heart"}, State: state,
				Samples: 1000, Tasks: 50, Mean: 7, StdDev: 1, Updated: sample.At(updated)}
			if err := r.agent.ask(t.Context(), func() { w.specs = []spec.Spec{s} }); err != nil {
				t.Fatal(err)
			}
			r.pass(2 * time.Minute)
			return r.task("/web/1").Costs[0].Spec
		}
		if got := give(spec.Insufficient, time.Now()); !got.Own || got.Mean == 7 {
			t.Errorf("by an insufficient one: %+v", got)
		}
		if got := give(spec.Ready, time.Now()); got.Own || got.Mean != 7 || got.Tasks != 50 {
			t.Errorf("not by a ready one: %+v", got)
		}
		if got := give(spec.Ready, time.Now().Add(-r.config.Spec.StaleAfter)); !got.Own {
			t.Errorf("by an old one: %+v", got)
		}
		r.stop()
	})
}

// TestWhereTheServerHasNoSpec: whether a task is judged by its own history is a named choice. By
// default the paper's rule does not, since a server that has no spec says that the job has too
// few tasks; without a server there is nothing else to judge by.
func TestWhereTheServerHasNoSpec(t *testing.T) {
	for _, c := range []struct {
		rule, own string
		server    bool
		judged    bool
	}{
		{"evidence", "rule", true, true},
		{"quell", "rule", true, true},
		{"cpi2", "rule", true, false},
		{"cpi2", "rule", false, true},
		{"cpi2", "always", true, true},
		{"evidence", "without_server", true, false},
		{"evidence", "without_server", false, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, w := newRig(t, newMachine(t), t.TempDir(), "detect.rule="+c.rule, "spec.own_history="+c.own), &way{}
			r.uplink = w
			if c.server {
				r.config.Server.URL = "nats://127.0.0.1:4222"
			}
			r.add("/web/1", 0.5).cost = func() float64 { return 1 }
			r.start()
			defer r.stop()
			r.learn()
			view := r.task("/web/1").Costs[0]
			if judged := view.Spec.State == spec.Ready; judged != c.judged || view.Spec.Own != c.judged || !c.judged && view.Spec.State != spec.Insufficient {
				t.Errorf("%+v: judged by %+v", c, view.Spec)
			}
			for state, want := range map[spec.State]bool{spec.Ready: true, spec.Stale: c.judged} {
				s := spec.Spec{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "by-heart"}, State: state, Mean: 7, StdDev: 1, Updated: sample.At(time.Now())}
				if err := r.agent.ask(t.Context(), func() { w.specs = []spec.Spec{s} }); err != nil {
					t.Fatal(err)
				}
				r.pass(2 * time.Minute)
				view := r.task("/web/1").Costs[0]
				if judged := view.Spec.State == spec.Ready; judged != want || view.Spec.Own != (want && state != spec.Ready) {
					t.Errorf("%+v: with a %v spec from the server it is judged by %+v", c, state, view.Spec)
				}
			}
		})
	}
}

// An unreachable server is a named degradation, and a metric.
func TestServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := newRig(t, newMachine(t), t.TempDir()), &way{err: errors.New("no answer"), due: errors.New("m.creds expires soon")}
		r.uplink = w
		r.start()
		r.pass(time.Minute)
		if d := r.status().Degraded; !slices.Contains(d, "server: no answer") || !slices.Contains(d, "credentials: m.creds expires soon") {
			t.Errorf("degraded: %q", d)
		}
		_, series := r.scrape()
		if series["quell_uplink_connected"] != "0" || series["quell_uplink_waiting"] != "7" || series["quell_uplink_lost_total"] != "3" ||
			series["quell_credentials_expire_timestamp_seconds"] != "1.8e+09" {
			t.Errorf("metrics: %v", series)
		}
		if err := r.agent.ask(t.Context(), func() { w.err, w.due = nil, nil }); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		if d := r.status().Degraded; len(d) != 0 {
			t.Errorf("degraded: %q", d)
		}
		if _, series = r.scrape(); series["quell_uplink_connected"] != "1" {
			t.Errorf("metrics: %v", series)
		}
		r.stop()
	})
}
