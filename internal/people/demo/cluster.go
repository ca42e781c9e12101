package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/lab/workload"
)

// ClusterOptions are the options of the cluster demo.
type ClusterOptions struct {
	Seed          uint64
	Agent, Server string // the programs
	Logs          string // keep the programs' logs in this folder; "" deletes them with the rest
	Show          func(Event)
}

// ClusterResult is the result of the cluster demo.
type ClusterResult struct {
	OK      bool   `json:"ok"`
	Verdict string `json:"verdict"`
	// Why is what was missing if no task was capped, as far as the agent reports it;
	// Excuse is why this machine cannot do better, as in Result.
	Why      string   `json:"why,omitempty"`
	Excuse   string   `json:"excuse,omitempty"`
	Seed     uint64   `json:"seed"`
	Machines []string `json:"machines"`
	// SpecTasks, SpecSamples, SpecMean and SpecStdDev describe the spec that all agents
	// use, learnt by the server from all machines' tasks.
	SpecTasks   int             `json:"spec_tasks"`
	SpecSamples int64           `json:"spec_samples"`
	SpecMean    incident.Value  `json:"spec_mean"`
	SpecStdDev  incident.Value  `json:"spec_stddev"`
	Victim      sample.TaskName `json:"victim"`
	Antagonist  sample.TaskName `json:"antagonist"`
	// Named, Correlation and so on describe the first cap that ended as in the server's store.
	Named        sample.TaskName `json:"named"`
	On           string          `json:"on"` // machine
	Correlation  incident.Value  `json:"correlation"`
	RelativeCost incident.Value  `json:"relative_cost"`
	Outcome      plan.Outcome    `json:"outcome"`
	// Away is how long the server was down after kill -9, from before the antagonist's
	// start to after the cap's end; s.
	Away float64 `json:"server_away"`
	// Stored counts samples in the server's store, Twice those stored more than once,
	// Missing those that an agent took before the newest stored one and that are not
	// stored.
	Stored  int `json:"stored"`
	Twice   int `json:"stored_twice"`
	Missing int `json:"missing"`
	// Audited are the server's audit entries: operator, command, outcome.
	Audited    [][3]string `json:"audited"`
	Accused    []string    `json:"accused"` // other tasks, wrongly
	Seconds    float64     `json:"seconds"`
	LeftBehind []string    `json:"left_behind"`
}

// machineNames are the machines of the cluster. The first has the antagonist, on the
// CPU of the victims; all other tasks are light and share the other CPU.
var machineNames = [...]string{"m1", "m2", "m3"}

// clusterScene is a running cluster demo.
type clusterScene struct {
	demo
	server string // the program
	logs   string
	tree   *workload.Tree
	hub    *serverProcess
	agents map[string]*agentProcess
	procs  map[string]*workload.Proc
	result *ClusterResult
}

// RunCluster plays the cluster demo on this machine: a server, and three agents that
// each see only their own tasks. The server learns the normal cost of the victims' job
// from all three; an operator turns enforcement on everywhere; the server is killed,
// one machine gets a noisy neighbour, and its agent handles it alone with the spec
// learnt from the server; then the server restarts and receives everything once. Errors
// are as those of Run.
func RunCluster(ctx context.Context, o ClusterOptions) (r *ClusterResult, err error) {
	began := time.Now()
	f := &clusterScene{demo: demo{Options: Options{Seed: o.Seed, Channel: CPU, Agent: o.Agent, Show: o.Show}, began: began, beat: cpuBeat},
		server: o.Server, logs: o.Logs, agents: map[string]*agentProcess{}, procs: map[string]*workload.Proc{}}
	if _, err := workload.Sweep(treePrefix); err != nil {
		return nil, err
	}
	if err := f.choosePair(); err != nil {
		return nil, err
	}
	if f.tree, err = workload.OpenTree(treePrefix, workload.TreeOptions{Weight: weight}); err != nil {
		return nil, err
	}
	f.result = &ClusterResult{Seed: o.Seed, Machines: machineNames[:], LeftBehind: []string{}, Accused: []string{}, Audited: [][3]string{},
		SpecMean: none(), SpecStdDev: none(), Correlation: none(), RelativeCost: none()}
	r = f.result
	defer func() {
		err = errors.Join(err, f.close())
		r.Seconds = time.Since(began).Seconds()
		if r.judge(); !r.OK && err == nil {
			r.Excuse = f.excuse()
		}
	}()
	return r, f.play(ctx)
}

// close ends all programs and checks what remains.
func (f *clusterScene) close() error {
	var errs []error
	for _, name := range machineNames {
		if g := f.agents[name]; g != nil {
			errs = append(errs, g.stop())
		}
	}
	clear(f.agents)
	if f.hub != nil {
		errs = append(errs, f.hub.stop())
	}
	for name := range f.procs {
		left, err := quotaLeft(f.tree, name)
		errs = append(errs, err)
		if left != "" {
			f.result.LeftBehind = append(f.result.LeftBehind, left)
		}
	}
	errs = append(errs, f.tree.Close())
	f.result.LeftBehind = append(f.result.LeftBehind, f.tree.Leftovers()...)
	return errors.Join(errs...)
}

func (f *clusterScene) play(ctx context.Context) error {
	for _, step := range []func(context.Context) error{f.start, f.learn, f.checkCommands, f.outage, f.catchUp} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// cast lists the tasks, by machine and name.
func (f *clusterScene) cast() []castMember {
	light := func(k workload.Kind, n uint64) workload.Spec {
		s := workload.Default(k)
		s.Seed, s.Duty = f.Seed*16+n, 0.04
		return s
	}
	// One job has one spec: its three tasks share one CPU; the server and the agents
	// share the other.
	web := workload.Default(workload.Serve)
	web.Pause = 10 * time.Millisecond
	noisy := workload.Default(workload.Hog)
	noisy.Seed, noisy.Epoch = f.Seed*16, workload.Epoch()
	noisy.Work, noisy.Vary, noisy.Pause, noisy.Period = f.beat.cycle()/4, 0.2, 0, f.beat.cycle()
	return []castMember{
		{"m1/" + victimName, web, f.victimCPU}, {"m1/encode", light(workload.Spin, 1), f.otherCPU}, {"m1/" + antagonistName, noisy, f.victimCPU},
		{"m2/" + victimName, web, f.victimCPU}, {"m2/logship", light(workload.Syscall, 2), f.otherCPU},
		{"m3/" + victimName, web, f.victimCPU}, {"m3/encode", light(workload.Spin, 3), f.otherCPU},
	}
}

// start starts the server, the tasks except the antagonist, and the agents.
func (f *clusterScene) start(ctx context.Context) error {
	logs := cmp.Or(f.logs, f.tree.Scratch())
	var err error
	if f.hub, err = newHub(ctx, f.server, filepath.Join(f.tree.Scratch(), "server"), filepath.Join(logs, "server.log"), f.tree, f.otherCPU, machineNames[:]); err != nil {
		return err
	}
	if err := f.hub.start(ctx); err != nil {
		return err
	}
	f.say("quell-server runs: API on %s with tokens of a viewer and an operator, bus on %s", f.hub.api, f.hub.bus)
	for _, p := range f.cast() {
		proc, err := f.tree.Start(p.name, p.spec, workload.StartOptions{CPUs: sample.SetOf(p.cpu), Stderr: os.Stderr})
		if err != nil {
			return err
		}
		f.procs[p.name] = proc
		if !strings.HasSuffix(p.name, antagonistName) {
			if err := proc.Begin(); err != nil {
				return err
			}
		}
	}
	f.result.Victim, f.result.Antagonist = sample.TaskName(f.tree.Path("m1/"+victimName)), sample.TaskName(f.tree.Path("m1/"+antagonistName))
	for _, m := range machineNames {
		dir := filepath.Join(f.tree.Scratch(), m)
		conf := "listen: \"\"\n" + f.beat.settings(sample.RunQ, plan.Advise, 1_000_000) + f.rules(m, dir) // its own learning takes too long for the demo
		if f.agents[m], err = launchAgent(ctx, f.tree, launch{exe: f.Agent, task: agentName + "-" + m, dir: dir, conf: conf, log: filepath.Join(logs, m+".log"), cpu: f.otherCPU}); err != nil {
			return err
		}
		// Three agents share one CPU with tasks that should wait for neighbours only. On a
		// real cluster they would need less CPU.
		if err := f.tree.Weigh(agentName+"-"+m, 0.1); err != nil {
			return err
		}
	}
	f.say("3 agents run, each only with the tasks below %s/<its name> and with its own credentials; enforcement is advise", f.tree.Top())
	f.say("times are shortened: %s", f.beat)
	return nil
}

func (f *clusterScene) rules(machine, dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "machine: %q\nrecord: %q\n", machine, filepath.Join(dir, "samples.csv"))
	fmt.Fprintf(&b, "server: {url: %q, credentials: %q, spool: {max_mb: 8}}\n", "nats://"+f.hub.bus, f.hub.credentials[machine])
	top := f.tree.Path(machine)
	fmt.Fprintf(&b, "rules:\n  - {match: %q, job: %q, class: latency-sensitive}\n", top+"/"+victimName, victimName)
	fmt.Fprintf(&b, "  - {match: %q, job: \"$1\", class: batch}\n", top+"/*")
	return b.String()
}

// rateLimited limits a check that costs a process to one every two seconds.
func rateLimited(ask func() (bool, error)) func() (bool, error) {
	var last time.Time
	return func() (bool, error) {
		if time.Since(last) < 2*time.Second {
			return false, nil
		}
		last = time.Now()
		return ask()
	}
}

// victim is the view that a machine's agent has of its victim.
func (f *clusterScene) victim(ctx context.Context, machine string) (*api.TaskView, error) {
	return f.agents[machine].victim(ctx, sample.TaskName(f.tree.Path(machine+"/"+victimName)))
}

// learn waits until the server has enough samples, makes it compute specs, and waits
// until every agent uses the server's.
func (f *clusterScene) learn(ctx context.Context) error {
	first := f.agents[machineNames[0]]
	var counts []int // of each victim's samples, ascending
	err := first.Until(ctx, 2*f.beat.learnLimit(), "send enough samples", rateLimited(func() (bool, error) {
		var err error
		counts, err = rows(ctx, f.hub.viewer, fmt.Sprintf("SELECT count(*) FROM samples WHERE job = '%s' AND signal = '%s' AND cost IS NOT NULL GROUP BY task ORDER BY 1", victimName, sample.RunQ),
			func(n *int) []any { return []any{n} })
		if err != nil || len(counts) < len(machineNames) {
			return false, err
		}
		f.progress(min(counts[0], samples), samples, "the server learns what %s costs", victimName)
		return counts[0] >= samples, nil
	}))
	if err != nil {
		return fmt.Errorf("%w; of %d victims the server has %v samples, want %d of each", err, len(machineNames), counts, samples)
	}
	done, err := f.hub.operator.Compute(ctx, "the demo has enough samples")
	if err != nil {
		return fmt.Errorf("compute specs: %w", err)
	}
	begun := time.Now()
	for _, m := range machineNames {
		var s spec.Spec
		err := f.agents[m].Until(ctx, 15*time.Second, "use the server's spec", func() (bool, error) {
			v, err := f.victim(ctx, m)
			if err != nil || v == nil || len(v.Costs) == 0 {
				return false, err
			}
			s = v.Costs[0].Spec
			// Where other work disturbs one of them, its machine is left out of the spec.
			return s.State == spec.Ready && !s.Own && s.Tasks >= len(machineNames)-1, nil
		})
		if err != nil {
			return fmt.Errorf("machine %s: %w; its spec is %s, of %d tasks (its own: %t); the server said: %s", m, err, s.State, s.Tasks, s.Own, done.Message)
		}
	}
	specs, err := f.hub.viewer.Specs(ctx, victimName, "")
	if err != nil {
		return fmt.Errorf("get the server's specs: %w", err)
	}
	if len(specs) == 0 {
		return fmt.Errorf("the server has no spec of %s", victimName)
	}
	s := specs[0]
	f.result.SpecTasks, f.result.SpecSamples, f.result.SpecMean, f.result.SpecStdDev = s.Tasks, s.Samples, incident.Value(s.Mean), incident.Value(s.StdDev)
	f.say("%s: %s costs %.3g ± %.2g s/CPU-s by %d samples of %d tasks; all 3 agents use that spec %d ms later", done.Message, victimName, s.Mean, s.StdDev, s.Samples, s.Tasks, time.Since(begun).Milliseconds())
	return nil
}

// checkCommands sends operators' commands, as an operator and as a viewer without that right.
func (f *clusterScene) checkCommands(ctx context.Context) error {
	capping := cluster.Command{Machine: "m2", Command: command.CapTask(f.tree.Path("m2/logship"), 0.05, time.Minute, "the demo tests a cap")}
	var refused *api.RefusedError
	switch _, err := f.hub.viewer.Command(ctx, capping); {
	case err == nil:
		return errors.New("a viewer's cap was not refused")
	case !errors.As(err, &refused) || refused.Status != 403:
		return fmt.Errorf("a viewer's cap: want a refusal with 403: %w", err)
	}
	f.say("a viewer asks for a cap on m2: refused")
	if _, err := f.hub.operator.Command(ctx, capping); err != nil {
		return fmt.Errorf("an operator's cap: %w", err)
	}
	switch left, err := quotaLeft(f.tree, "m2/logship"); {
	case err != nil:
		return fmt.Errorf("an operator's cap: %w", err)
	case left == "":
		return errors.New("an operator's cap has changed nothing")
	}
	f.say("an operator caps logship on m2: done, its limit is set")
	uncap := cluster.Command{Cluster: true, Command: command.Command{Why: "the demo tests an uncap", Uncap: &command.Target{Job: "logship"}}}
	if _, err := f.hub.operator.Command(ctx, uncap); err != nil {
		return fmt.Errorf("an operator's uncap: %w", err)
	}
	switch left, err := quotaLeft(f.tree, "m2/logship"); {
	case err != nil:
		return fmt.Errorf("an operator's uncap: %w", err)
	case left != "":
		return fmt.Errorf("an operator's uncap has changed nothing: %s", left)
	}
	f.say("an operator uncaps job logship in the cluster: done, the limit is gone")
	replies, err := f.hub.operator.Command(ctx, cluster.Command{Cluster: true,
		Command: command.Command{Why: "the advice was right", Enforcement: &command.Enforcement{Mode: "on"}}})
	if err != nil {
		return fmt.Errorf("switch enforcement on: %w", err)
	}
	on := 0
	for _, r := range replies.Replies {
		if r.OK {
			on++
		}
	}
	if on != len(machineNames) {
		return fmt.Errorf("switch enforcement on: %+v", replies)
	}
	f.say("an operator switches enforcement on in the cluster: done on %d of %d machines", on, len(machineNames))
	return nil
}

// outage kills the server, starts the antagonist on one machine, and waits for its
// agent to handle it alone; then the server is restarted.
func (f *clusterScene) outage(ctx context.Context) error {
	away := time.Now()
	if err := f.hub.kill(); err != nil {
		return fmt.Errorf("kill the server: %w", err)
	}
	f.say("the server is killed (kill -9); the agents continue with the specs that they have")
	if err := f.procs["m1/"+antagonistName].Begin(); err != nil {
		return err
	}
	f.say("%s arrives on m1", antagonistName)
	g := f.agents["m1"]
	var found *incident.Record
	var all []incident.Record
	var seen costStats
	err := g.Until(ctx, 3*f.beat.cycle()+f.beat.triedLimit()+f.beat.capFor()+f.beat.times(10), "name and cap a task, and lift the cap", func() (bool, error) {
		if v, err := f.victim(ctx, "m1"); err == nil && v != nil && len(v.Costs) > 0 {
			seen.look(&v.Costs[0])
		}
		var err error
		all, err = g.incidents()
		for i := range all {
			if inc := &all[i]; inc.Victim.Name == f.result.Victim && capped(inc) != nil && (found == nil || found.ID == inc.ID) {
				if r := capped(inc); found == nil {
					f.say("m1 accuses %s and caps it to %g CPU-s/s: %s", short(r.Suspect.Name), r.Rate, r.Why)
				}
				found = inc
			}
		}
		return found != nil && capped(found).Ended != 0, err
	})
	switch {
	case errors.Is(err, child.ErrSlow) && found != nil:
		f.result.Why = fmt.Sprintf("m1 capped %s, but did not lift the cap in time", short(capped(found).Suspect.Name))
		f.say("%s", f.result.Why)
	case errors.Is(err, child.ErrSlow):
		f.result.Why = whyNotCapped(all, f.result.Victim, &seen)
		f.say("no task was capped in time: %s", f.result.Why)
	case err != nil:
		return err
	}
	if found != nil && capped(found).Ended != 0 {
		r := capped(found)
		f.say("the cap is lifted: %s cost %.3g under it, %.2f of %.3g before (%s)", victimName, float64(r.CostUnder), float64(r.RelativeCost), float64(r.CostBefore), r.Outcome)
	}
	if err := f.hub.start(ctx); err != nil {
		return err
	}
	f.result.Away = time.Since(away).Seconds()
	f.say("the server is back after %.0f s", f.result.Away)
	return nil
}

// catchUp waits until the server has received everything, and compares its data with the
// agents' traces.
func (f *clusterScene) catchUp(ctx context.Context) error {
	back := time.Now()
	type arrived struct {
		machine string
		at      int64 // ms, of its newest sample
	}
	type told struct {
		named, job, machine, outcome string
		correlation, relative        *float64
	}
	var seen told
	var behind []string
	err := f.agents["m1"].Until(ctx, 60*time.Second, "send all newer data to the server", rateLimited(func() (bool, error) {
		newest, err := rows(ctx, f.hub.viewer, "SELECT machine, max(epoch_ms(ts)) FROM samples GROUP BY machine", func(m *arrived) []any { return []any{&m.machine, &m.at} })
		if err != nil {
			return false, err
		}
		behind = behind[:0]
		for _, name := range machineNames {
			if !slices.ContainsFunc(newest, func(m arrived) bool { return m.machine == name && m.at > back.UnixMilli() }) {
				behind = append(behind, name)
			}
		}
		// An incident's own outcome is that of its newest cap, which may be in force again.
		found, err := rows(ctx, f.hub.viewer, fmt.Sprintf("SELECT task, job, machine, outcome, correlation, relative_cost FROM rounds WHERE victim_task = '%s' AND NOT trial AND ended IS NOT NULL ORDER BY began LIMIT 1", f.result.Victim),
			func(t *told) []any {
				return []any{&t.named, &t.job, &t.machine, &t.outcome, &t.correlation, &t.relative}
			})
		if err == nil && len(found) > 0 {
			seen = found[0]
		}
		return len(behind) == 0 && (seen.outcome != "" || time.Since(back) > 20*time.Second), err
	}))
	if err != nil {
		return fmt.Errorf("%w; no newer samples from: %v", err, behind)
	}
	r := f.result
	r.Named, r.On, r.Outcome = sample.TaskName(seen.named), seen.machine, plan.Outcome(seen.outcome)
	if seen.correlation != nil {
		r.Correlation = incident.Value(*seen.correlation)
	}
	if seen.relative != nil {
		r.RelativeCost = incident.Value(*seen.relative)
	}
	if r.Named == "" && r.Why == "" {
		r.Why = "m1 capped a task, but the server did not receive the incident"
	}
	// To the other machines the antagonist is usage outside their tasks, which they may name.
	accused, err := rows(ctx, f.hub.viewer, fmt.Sprintf("SELECT DISTINCT machine || ': ' || task || ' (' || level || ')' FROM suspects WHERE named_from IS NOT NULL AND task NOT IN ('%s', '%s') ORDER BY 1", r.Antagonist, detect.OutsideName),
		func(s *string) []any { return []any{s} })
	if err != nil {
		return err
	}
	r.Accused = append(r.Accused, accused...)
	type entry struct{ who, what, outcome string }
	audit, err := rows(ctx, f.hub.viewer, "SELECT who, what || ' ' || target, outcome FROM audit ORDER BY \"at\"", func(e *entry) []any { return []any{&e.who, &e.what, &e.outcome} })
	if err != nil {
		return err
	}
	for _, e := range audit {
		r.Audited = append(r.Audited, [3]string{e.who, strings.TrimSpace(e.what), e.outcome})
	}
	return f.compare(ctx)
}

// reading identifies a sample.
type reading struct {
	machine, task, signal string
	at                    int64 // ms
}

// compare ends the agents and compares their traces with the store.
func (f *clusterScene) compare(ctx context.Context) error {
	stored, err := rows(ctx, f.hub.viewer, "SELECT machine, task, signal, epoch_ms(ts) FROM samples", func(r *reading) []any { return []any{&r.machine, &r.task, &r.signal, &r.at} })
	if err != nil {
		return err
	}
	r := f.result
	r.Stored = len(stored)
	has, newest := map[reading]int{}, map[string]int64{}
	for _, s := range stored {
		if has[s]++; has[s] > 1 {
			r.Twice++
		}
		newest[s.machine] = max(newest[s.machine], s.at)
	}
	for _, m := range machineNames {
		if err := f.agents[m].stop(); err != nil {
			return err
		}
		delete(f.agents, m) // its trace is complete now
		taken, err := recorded(filepath.Join(f.tree.Scratch(), m, "samples.csv"))
		if err != nil {
			return err
		}
		var gone []reading
		for _, s := range taken {
			if s.at <= newest[m] && has[s] == 0 {
				gone = append(gone, s)
			}
		}
		if n := len(gone); n > 0 {
			r.Missing += n
			f.say("%s: %d of %d samples are missing, from %.1f s to %.1f s of the demo; the first is a sample of %s", m, n, len(taken),
				sample.Millis(gone[0].at).Time().Sub(f.began).Seconds(), sample.Millis(gone[n-1].at).Time().Sub(f.began).Seconds(), gone[0].task)
		}
	}
	f.say("the server has %d samples: %d of them twice, and %d older than the newest are missing", r.Stored, r.Twice, r.Missing)
	return nil
}

// recorded reads the keys of the samples in a trace.
func recorded(path string) ([]reading, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read an agent's trace: %w", err)
	}
	defer file.Close()
	r, err := trace.NewReader(file)
	if err != nil {
		return nil, fmt.Errorf("read an agent's trace: %w", err)
	}
	var all []reading
	for {
		var s sample.Sample
		err := r.Read(&s)
		switch bad := r.Report(); {
		case bad.Bad > 0:
			return nil, fmt.Errorf("read an agent's trace: %s", bad.Reasons[0])
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, fmt.Errorf("read an agent's trace: %w", err)
		case s.Task != detect.OutsideName: // usage outside tasks is not sent
			all = append(all, reading{s.Machine, string(s.Task), string(s.Signal), int64(s.TS)})
		}
	}
}
