//go:build browser

package dashboard

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/cluster/server"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// asQuery is the argument that makes the test binary the child process of a query.
const asQuery = "query-child"

func TestMain(m *testing.M) {
	quelltest.Command(asQuery, func(dir string) error { return duck.Child(dir, os.Stdin, os.Stdout) })
	quelltest.Main(m)
}

// noon is when the invented cluster's clock starts.
var noon = time.Date(2026, 11, 25, 14, 30, 0, 0, time.UTC)

const at = sample.Millis(1795617000000) // noon

// world is an invented cluster behind a real server, with a real store and real queries.
type world struct {
	*server.Server
	url      string
	operator string // tokens
	viewer   string
	down     atomic.Bool // it answers nothing
	plain    bool        // without hostile names

	mu       sync.Mutex
	standing map[string][]command.Decision
	decided  []command.Decision
	revision uint64            // of the decisions
	say      func(*wire.State) // what a machine says of them
	n        uint64            // batches
}

type job struct {
	name  string
	class sample.Class
	cpu   float64
	runq  float64
	cpi   float64
}

var jobs = []job{
	{"web", sample.LatencySensitive, 0.8, 0.06, 1.1}, {"checkout", sample.LatencySensitive, 0.5, 0.05, 0.9}, {"search", sample.LatencySensitive, 1.6, 0.08, 1.4},
	{"redis", sample.LatencySensitive, 0.3, 0.04, 1.2}, {"postgres", sample.LatencySensitive, 1.1, 0.07, 1.7}, {"ads-ranker", sample.LatencySensitive, 2.2, 0.09, 1.5},
	{"kafka", sample.Batch, 0.9, 0.12, 1.3}, {"log-indexer", sample.Batch, 0.7, 0.2, 1.6}, {"encode", sample.BestEffort, 2.8, 0.4, 0.8},
	{"ml-train", sample.BestEffort, 3.5, 0.3, 2.2}, {"backup", sample.BestEffort, 0.4, 0.5, 1.9}, {"thumbnailer", sample.Batch, 0.6, 0.25, 1.1},
}

const platform = "GenuineIntel-6-85-7"

// hostile are names that an attacker gives to a job and its task.
const (
	hostileJob  = `<img src=x onerror="document.title='owned'">`
	hostileTask = "/pod/\"><script>document.title='owned'</script>\u202egnp.exe/${alert(1)}'; rm -rf \x1b[31m"
)

func task(j string, machine, n int) sample.Task {
	for _, known := range jobs {
		if known.name == j {
			return sample.Task{Name: sample.TaskName(fmt.Sprintf("/kubepods.slice/pod%02x%02x/%s-%d", machine, n, j, n)), Job: sample.JobName(j), Class: known.class}
		}
	}
	return sample.Task{Name: hostileTask, Job: hostileJob, Class: sample.LatencySensitive}
}

func machineName(i int) string { return fmt.Sprintf("node-%02d", i+1) }

func (w *world) Learn(context.Context, *store.Snapshot, sample.Millis, []store.Window, spec.Params, sample.Millis) (all []spec.Computed, err error) {
	for _, j := range jobs {
		for _, s := range []struct {
			name     sample.SignalName
			variant  string
			mean, sd float64
		}{{sample.RunQ, "bpf", j.runq, j.runq * 0.2}, {sample.CPI, "ref-cycles", j.cpi, j.cpi * 0.06}} {
			all = append(all, spec.Computed{Spec: spec.Spec{Key: spec.Key{Job: sample.JobName(j.name), Platform: platform, Signal: s.name, Variant: s.variant}, State: spec.Ready,
				Samples: 48_000, Tasks: 84, CPUMean: j.cpu, Mean: s.mean, StdDev: s.sd, Updated: at.Add(-20 * time.Minute)}, Last: at, Machines: 12})
		}
	}
	return all, nil
}

// Decide implements server.Decider: the machine obeys.
func (w *world) Decide(_ context.Context, machine string, change func([]command.Decision) ([]command.Decision, error)) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.standing[machine]
	next, err := change(slices.Clone(old))
	if err != nil {
		return 0, err
	}
	w.revision++
	state := &wire.State{Machine: machine, All: w.revision, Own: w.revision, Mode: "on", From: "configuration"}
	for _, d := range next {
		if !slices.ContainsFunc(old, func(o command.Decision) bool { return o.ID == d.ID }) {
			w.decided = append(w.decided, d)
		}
		state.Outcomes = append(state.Outcomes, &wire.Reply{Id: d.ID, Ok: true, Message: "capped 1 task to 0.1 CPU-s/s", Cap: "cap-1", Tasks: 1})
	}
	w.standing[machine] = next
	w.say(state)
	return w.revision, nil
}

// Decisions implements server.Decider.
func (w *world) Decisions() (all []command.Standing) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, machine := range slices.Sorted(maps.Keys(w.standing)) {
		all = append(all, command.Standing{Machine: machine, Revision: w.revision, List: w.standing[machine]})
	}
	return all
}

// ServeDecisions implements server.Decider.
func (w *world) ServeDecisions(ctx context.Context, each func(*wire.State)) error {
	w.mu.Lock()
	w.say = each
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

// RefreshDecisions implements server.Decider.
func (w *world) RefreshDecisions(context.Context) error { return nil }

// obeyed are the decisions that machines were sent.
func (w *world) obeyed() []command.Decision {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.decided)
}

// emptyWorld starts a server to which no machine has sent anything, and which needs no token.
func emptyWorld(t *testing.T) *world { return begin(t, false, func(*world) {}) }

// invent starts a server of a cluster of machines with tasks each.
func invent(t *testing.T, machines, tasks int, history time.Duration) *world {
	return begin(t, true, func(w *world) {
		w.samples(machines, tasks, history)
		w.history(machines)
	})
}

func begin(t *testing.T, tokens bool, fill func(*world)) *world {
	t.Helper()
	began := time.Now()
	now := func() time.Time { return noon.Add(time.Since(began)) }
	dir := t.TempDir()
	st, err := store.Open(dir, store.Options{Now: now})
	if err != nil {
		t.Fatal(err)
	}
	c := config.DefaultServer()
	c.Store.Flush, c.Specs.Between, c.Query.MemoryMB = 200*time.Millisecond, 0, 512
	w := &world{standing: map[string][]command.Decision{}, say: func(*wire.State) {}}
	file := filepath.Join(t.TempDir(), "tokens")
	text := ""
	for name, scope := range map[string]server.Scope{"olga": server.Operator, "victor": server.Viewer} {
		secret, line, err := server.NewToken(name, scope, "")
		if err != nil {
			t.Fatal(err)
		}
		text += line + "\n"
		if scope == server.Operator {
			w.operator = secret
		} else {
			w.viewer = secret
		}
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var known *server.Tokens
	if tokens {
		if known, err = server.LoadTokens(file); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := of(os.DirFS(".")) // as they are now, also for a test that was built before
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	asker := duck.NewRunner(self, asQuery, dir)
	t.Cleanup(asker.Close)
	if w.Server, err = server.New(server.Options{Config: &c, Version: "test", Store: st, Asker: asker, Learner: w, Decider: w,
		Log: slog.New(slog.DiscardHandler), Tokens: known, Now: now, Pages: pages}); err != nil {
		t.Fatal(err)
	}
	fill(w)
	if err := st.Flush(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	web := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if w.down.Load() {
			panic(http.ErrAbortHandler)
		}
		w.ServeHTTP(out, r)
	}), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	var all sync.WaitGroup
	all.Go(func() { _ = daemon.Serve(web, l, nil, daemon.Bounds{Connections: 100}) })
	all.Go(func() {
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		web.Close()
		all.Wait()
		st.Close()
	})
	w.url = "http://" + l.Addr().String()
	return w
}

// send adds a batch of a machine.
func (w *world) send(stream, machine string, b store.Batch) {
	w.mu.Lock()
	w.n++
	b.Source, b.N = store.Source{Stream: stream, Machine: machine, Boot: "1"}, w.n
	w.mu.Unlock()
	w.Add(&b)
}

// samples are those of every minute: of two minutes for all tasks, of the history for a
// sixth of them.
func (w *world) samples(machines, tasks int, history time.Duration) {
	r := rand.New(rand.NewPCG(7, 7))
	for m := range machines {
		var list []sample.Sample
		for n := range tasks {
			j := jobs[n%len(jobs)]
			of := task(j.name, m, n)
			if m == 2 && n == tasks-1 && !w.plain {
				of = task("", m, n)
			}
			step, from := time.Minute, time.Minute
			if n < len(jobs) {
				from = history
			}
			for ago := from; ago >= 0; ago -= step {
				load := 1 + 0.15*math.Sin(float64(ago)/float64(time.Hour)) + 0.1*r.NormFloat64()
				worse := 1 + 0.15*r.NormFloat64()
				hurt := 1.0
				if m == 1 && j.name == "web" && ago < 14*time.Minute {
					hurt = 5.5
				}
				if m == 3 && j.name == "search" && ago < 9*time.Minute {
					hurt = 1.7
				}
				s := sample.Sample{TS: at.Add(-ago), Machine: machineName(m), Job: of.Job, Task: of.Name, Platform: platform, Class: of.Class, CPU: float32(math.Max(0.02, j.cpu*load)), Coverage: 1}
				if m == 1 && j.name == "encode" && ago < 14*time.Minute {
					s.CPU *= 1.6
				}
				s.Signal, s.Variant, s.Cost = sample.RunQ, "bpf", float32(math.Max(0.001, j.runq*worse*hurt))
				list = append(list, s)
				s.Signal, s.Variant, s.Cost = sample.CPI, "ref-cycles", float32(math.Max(0.2, j.cpi*(1+0.05*r.NormFloat64())*math.Sqrt(hurt)))
				list = append(list, s)
			}
		}
		w.send("samples", machineName(m), store.Batch{Samples: list})
	}
}

// chartOf draws the victim's cost and the usage of suspects, minute by minute. under is the
// factor of the cost while a cap is in force.
func chartOf(inc *incident.Record, normal, bad float64, from, end sample.Millis, r *rand.Rand, suspects ...float64) {
	inc.Usage = make([]incident.Track, min(len(suspects), len(inc.Suspects)))
	for t := from; t <= end; t = t.Add(time.Minute) {
		hurt := t >= inc.Began && (inc.Closed == 0 || t < inc.Closed.Add(-3*time.Minute))
		capped := false
		for _, x := range inc.Rounds {
			capped = capped || t > x.From && (x.Ended == 0 || t <= x.Ended)
		}
		v := normal
		if hurt && !capped {
			v = bad
		}
		inc.Times = append(inc.Times, t)
		inc.VictimCost = append(inc.VictimCost, incident.Value(v*(1+0.08*r.NormFloat64())))
		for i := range inc.Usage {
			u := suspects[i] * (1 + 0.1*r.NormFloat64())
			if i == 0 && !hurt {
				u *= 0.12
			}
			if i == 0 && capped {
				u = 0.1
			}
			inc.Usage[i].Task = inc.Suspects[i].Name
			inc.Usage[i].Usage = append(inc.Usage[i].Usage, incident.Value(math.Max(0, u)))
		}
	}
}

func ground(t sample.Task, l detect.Level, by detect.Basis, figure, usage float64) detect.Suspect {
	s := detect.Suspect{Task: t, Usage: usage, Grounds: detect.Grounds{Level: l, Basis: by}}
	if by == detect.ByAccounts {
		s.Share, s.UsualShare, s.FairShare = figure, 0.06, 0.25
	} else {
		s.Probability = figure
	}
	return s
}

// open is the incident that pictures show: web waits behind encode.
func open() incident.Record {
	enc := ground(task("encode", 1, 8), detect.Proven, detect.ByAccounts, 0.74, 4.4)
	enc.Why = "its weight entitles it to 25 %"
	idx := ground(task("log-indexer", 1, 7), detect.Possible, detect.ByAccounts, 0.11, 0.7)
	away := detect.Suspect{Task: task("backup", 1, 10), Usage: 0.4, Excluded: "it cannot run on the victim’s CPUs"}
	inc := incident.Record{Incident: plan.Incident{ID: "inc-20261125T141600.250-7", Machine: machineName(1), Rule: detect.EvidenceMethod, Signal: sample.RunQ, Variant: "bpf", Victim: task("web", 1, 0),
		Began: at.Add(-14 * time.Minute), Opened: at.Add(-13 * time.Minute), Accused: at.Add(-13 * time.Minute), Updated: at.Add(-30 * time.Second), Mode: plan.Advise, SpecMean: 0.06, SpecStdDev: 0.012, Outcome: plan.WouldCap,
		Analysis: plan.Analysis{Analysed: at.Add(-2 * time.Minute), Reason: "encode ran for 74 % of the time in which web was served or waited (usually 6 %, fair share 25 %)",
			Result: detect.Result{Kind: detect.Neighbour, Threshold: 0.11, Cost: 0.33, Bad: 13, Pairs: 58, Antagonists: 1, Suspects: []detect.Suspect{enc, idx, away}}},
		Rounds: []*incident.Round{}, Advice: "cap " + string(enc.Name) + " to 0.1 CPU-s/s for 5m0s"}}
	chartOf(&inc, 0.06, 0.33, at.Add(-59*time.Minute), at.Add(-time.Minute), rand.New(rand.NewPCG(1, 2)), 4.4, 0.7)
	return inc
}

func (w *world) record(inc *incident.Record) {
	row, err := store.IncidentOf(inc)
	if err != nil {
		panic(err)
	}
	w.send("records", inc.Machine, store.Batch{Incidents: []store.Incident{row}})
}

// history adds incidents: those that are open, and older ones of the last week.
func (w *world) history(machines int) {
	r := rand.New(rand.NewPCG(3, 4))
	first := open()
	w.record(&first)
	// Another has a cap in force and earlier caps.
	train := ground(task("ml-train", 3, 9), detect.Likely, detect.ByStatistics, 0.93, 3.5)
	train.Why = "its usage and the victim’s cost rose together in 5 of 5 episodes"
	second := incident.Record{Incident: plan.Incident{ID: "inc-20261125T142100.000-2", Machine: machineName(3), Rule: detect.EvidenceMethod, Signal: sample.CPI, Variant: "ref-cycles", Victim: task("search", 3, 2),
		Began: at.Add(-19 * time.Minute), Opened: at.Add(-16 * time.Minute), Accused: at.Add(-16 * time.Minute), Updated: at.Add(-time.Minute), Mode: plan.On, SpecMean: 1.4, SpecStdDev: 0.084,
		Analysis: plan.Analysis{Analysed: at.Add(-16 * time.Minute), Reason: "probability 0.93 that it is ml-train", Result: detect.Result{Kind: detect.Neighbour, Threshold: 1.568, Cost: 2.4, Bad: 7, Pairs: 50, Antagonists: 1, Suspects: []detect.Suspect{train, ground(task("encode", 3, 8), detect.None, detect.ByStatistics, 0.02, 2.6)}}},
		Rounds: []*incident.Round{{ID: "cap-1", Capped: plan.Capped{Suspect: train.Task, Rate: 0.1}, From: at.Add(-15 * time.Minute), Until: at.Add(-10 * time.Minute), Ended: at.Add(-10 * time.Minute), By: "quell", Why: "trial: does it hurt search?", Trial: true, CostBefore: 2.4, CostUnder: 1.44, RelativeCost: 0.6, Samples: 5, Outcome: plan.TruePositive},
			{ID: "cap-2", Capped: plan.Capped{Suspect: train.Task, Rate: 0.1}, From: at.Add(-4 * time.Minute), Until: at.Add(time.Hour), By: "quell", Why: "cpi of search at 2.4 over 1.57", CostBefore: 2.4, CostUnder: incident.Value(math.NaN()), RelativeCost: incident.Value(math.NaN())}}}}
	chartOf(&second, 1.4, 2.4, at.Add(-50*time.Minute), at.Add(-time.Minute), r, 3.5, 2.6)
	w.record(&second)
	// A hostile one.
	bad := open()
	bad.ID, bad.Machine, bad.Victim, bad.Reason, bad.Advice = "inc-hostile", machineName(2), task("", 2, 0), hostileJob, hostileTask
	bad.Suspects[0].Task.Name, bad.Suspects[0].Job, bad.Suspects[0].Why = hostileTask, hostileJob, hostileJob
	bad.Usage[0].Task = hostileTask
	if !w.plain {
		w.record(&bad)
	}
	for i := range 60 {
		v, s := task(jobs[i%6].name, i%machines, i%6), task(jobs[6+(i*5)%6].name, i%machines, 6+i%6)
		inc := incident.Record{Incident: plan.Incident{ID: fmt.Sprintf("inc-%d", i), Machine: machineName(i % machines), Rule: detect.EvidenceMethod, Signal: sample.RunQ, Variant: "bpf", Victim: v, Mode: plan.On,
			SpecMean: 0.06, SpecStdDev: 0.012, Analysis: plan.Analysis{Analysed: 1, Result: detect.Result{Kind: detect.Neighbour, Threshold: 0.11, Cost: 0.12 + 0.4*r.Float64(), Bad: 5, Pairs: 40, Antagonists: 1, Suspects: []detect.Suspect{ground(s, detect.Proven, detect.ByAccounts, 0.4+0.5*r.Float64(), 2)}}}, Rounds: []*incident.Round{}}}
		inc.Began = at.Add(-time.Duration(30+i*i*3) * time.Minute)
		inc.Opened, inc.Closed = inc.Began.Add(3*time.Minute), inc.Began.Add(time.Duration(8+i%17)*time.Minute)
		inc.Updated = inc.Closed
		switch i % 6 {
		case 0, 1, 2, 3:
			x := &incident.Round{ID: "c", Capped: plan.Capped{Suspect: s, Rate: 0.1}, From: inc.Opened, Until: inc.Opened.Add(5 * time.Minute), Ended: inc.Opened.Add(5 * time.Minute), By: "quell", CostBefore: 0.3, CostUnder: 0.08, RelativeCost: 0.27, Samples: 4, Outcome: plan.TruePositive}
			if i%6 == 3 {
				x.CostUnder, x.RelativeCost, x.Outcome = 0.3, 1, plan.Noise
			}
			inc.Rounds, inc.Outcome = []*incident.Round{x}, x.Outcome
		case 4:
			inc.Kind, inc.Antagonists, inc.Suspects, inc.NotDone = detect.OwnQuota, 0, nil, "no neighbour is to blame"
		case 5:
			inc.Kind, inc.Antagonists, inc.Suspects[0].Level = detect.Nobody, 0, detect.Possible
		}
		w.record(&inc)
	}
}
