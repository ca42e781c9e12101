package report

import (
	"flag"
	"math"
	"os"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var update = flag.Bool("update", false, "write the golden files")

func TestMain(m *testing.M) { quelltest.Main(m) }

// golden compares text with testdata/name.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := "testdata/" + name
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s differs (-update accepts):\n%s", file, text)
	}
}

// noon is when the synthetic incidents begin.
const noon = sample.Millis(1763726400000) // 2025-11-21 12:00:00 UTC

var (
	nan    = incident.Value(math.NaN())
	redis  = sample.Task{Name: "/kubepods/burstable/pod4711/redis", Job: "redis", Class: sample.LatencySensitive}
	encode = sample.Task{Name: "/kubepods/besteffort/pod4712/encode", Job: "encode", Class: sample.BestEffort}
	index  = sample.Task{Name: "/system.slice/index.service", Job: "index", Class: sample.Batch, NeverCap: true}
	web    = sample.Task{Name: "/kubepods/burstable/pod4713/web", Job: "web", Class: sample.LatencySensitive}
)

// quieted is an incident with the paper's timing: ten minutes of samples, a cap for
// five minutes, and the time after it. The agent that wrote it had no levels yet.
func quieted() incident.Record {
	inc := incident.Record{Incident: plan.Incident{ID: "inc-20251121T120905.250-7", Machine: "node-3", Rule: detect.Quell, Signal: sample.CPI, Variant: "ref-cycles",
		Victim: redis, Began: noon.Add(6 * time.Minute), Opened: noon.Add(9*time.Minute + 5*time.Second),
		Updated: noon.Add(20 * time.Minute), Closed: noon.Add(20 * time.Minute), Mode: plan.On,
		SpecMean: 1.21, SpecStdDev: 0.118, SpecOwn: true,
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.Neighbour, Threshold: 1.446, Cost: 2.31, Bad: 4, Pairs: 10, Antagonists: 3, Suspects: []detect.Suspect{
			{Task: encode, Correlation: 0.46, Usage: 1.42},
			{Task: index, Correlation: 0.38, Usage: 0.31},
			{Task: web, Correlation: 0.37, Usage: 0.22, CoVictim: true},
			{Task: sample.Task{Name: "/system.slice/cron.service", Job: "cron", Class: sample.Batch}, Correlation: -0.11, Usage: 0.004},
			{Task: sample.Task{Name: "/machine.slice/vm-7.scope", Job: "vm-7", Class: sample.Batch}, Usage: 2.1, Excluded: "shares no cache with it"},
		}}},
		Outcome: plan.TruePositive,
		Advice:  "cap /kubepods/besteffort/pod4712/encode to 0.01 CPU-s/s for 5m0s",
		Rounds: []*incident.Round{{ID: "cap-20251121T120905.250-8", Capped: plan.Capped{Suspect: encode, Correlation: 0.46, Rate: 0.01, UsageBefore: 1.77, UsageUnder: 0.01},
			From: noon.Add(9*time.Minute + 5*time.Second), Until: noon.Add(14*time.Minute + 5*time.Second), Ended: noon.Add(14*time.Minute + 5*time.Second),
			By: "quell", Why: "cpi of /kubepods/burstable/pod4711/redis at 2.31 over 1.45, correlation 0.46",
			CostBefore: 2.31, CostUnder: 1.24, RelativeCost: 1.24 / 2.31, Samples: 4, Outcome: plan.TruePositive}},
	}}
	inc.Profiles = []incident.Profile{{Task: encode.Name, URL: "https://parca.example/?job=encode"}}
	cost := []incident.Value{1.19, 1.26, 1.17, nan, 1.22, 2.05, 2.43, 2.38, 2.39, 1.7, 1.25, 1.23, 1.22, 1.26, 1.24, 1.45, 1.2, 1.19, 1.23}
	usage := []incident.Value{nan, 0, 0.02, 0.01, 0.3, 1.6, 1.9, 1.85, 1.8, 0.6, 0.01, 0.01, 0.01, 0.01, 0.2, 0.4, 0.1, 0, 0}
	for i := range cost {
		inc.Times = append(inc.Times, noon.Add(time.Duration(i+1)*time.Minute))
	}
	inc.VictimCost = cost
	steady := make([]incident.Value, len(cost))
	for i := range steady {
		steady[i] = incident.Value(0.3 + 0.02*float64(i%3))
	}
	inc.Usage = []incident.Track{{Task: encode.Name, Usage: usage}, {Task: index.Name, Usage: steady}}
	return inc
}

// queued is an open run-queue incident with a sample a second, far over a low
// threshold, without an action. It named two antagonists before and names none now.
func queued() incident.Record {
	proven := detect.Suspect{Task: encode, Usage: 0.52, Grounds: detect.Grounds{Level: detect.Proven, Basis: detect.ByAccounts, Share: 0.81, UsualShare: 0.03, FairShare: 0.25}}
	likely := detect.Suspect{Task: index, Usage: 0.3, Grounds: detect.Grounds{Level: detect.Likely, Basis: detect.ByStatistics, Probability: 0.93, Why: "it came when the wait began"}}
	inc := incident.Record{Incident: plan.Incident{ID: "inc-20251121T120130.000-9", Machine: "node-3", Rule: detect.EvidenceMethod, Signal: sample.RunQ, Variant: "bpf",
		Victim: redis, Began: noon.Add(60 * time.Second), Opened: noon.Add(90 * time.Second), Updated: noon.Add(100 * time.Second),
		Mode: plan.Advise, SpecMean: 0.01, SpecStdDev: 0.004, Outcome: plan.WouldCap,
		Analysis: plan.Analysis{Analysed: noon.Add(93 * time.Second),
			Reason: "/kubepods/besteffort/pod4712/encode ran for 81 % of the time /kubepods/burstable/pod4711/redis waited (usually 3 %, fair share 25 %)",
			Result: detect.Result{Kind: detect.Neighbour, Threshold: 0.06, Cost: 0.94, Bad: 31, Pairs: 90, Antagonists: 1, Suspects: []detect.Suspect{proven, {Task: web, Usage: 0.2, Grounds: detect.Grounds{Level: detect.Possible, Basis: detect.ByStatistics, Probability: 0.2}}, {Task: redis, Usage: 0.1}}}},
		Latest:   &plan.Analysis{Analysed: noon.Add(100 * time.Second), Result: detect.Result{Kind: detect.Nobody, Threshold: 0.06, Cost: 0.31, Bad: 33, Pairs: 99}, Reason: "no evidence against any suspect"},
		Findings: []plan.Finding{{Suspect: likely, From: noon.Add(90 * time.Second), Until: noon.Add(90 * time.Second)}, {Suspect: proven, From: noon.Add(91 * time.Second), Until: noon.Add(97 * time.Second)}},
		NotDone:  "not tried: trials are off", Advice: "cap /kubepods/besteffort/pod4712/encode to 0.01 CPU-s/s for 5m0s", Rounds: []*incident.Round{}}}
	track := incident.Track{Task: encode.Name}
	for i := range 100 {
		inc.Times = append(inc.Times, noon.Add(time.Duration(i+1)*time.Second))
		cost, usage := incident.Value(0.01), incident.Value(0.02)
		if i >= 60 && i%7 != 3 {
			cost, usage = incident.Value(0.9+0.002*float64(i%40)), 0.8
		}
		inc.VictimCost, track.Usage = append(inc.VictimCost, cost), append(track.Usage, usage)
	}
	inc.Usage = []incident.Track{track}
	return inc
}

// throttled is caused by the task's own quota, not by a neighbour.
func throttled() incident.Record {
	return incident.Record{Incident: plan.Incident{ID: "inc-20251120T180000.000-2", Machine: "node-3", Rule: detect.Quell, Signal: sample.CPT, Variant: "progress",
		Victim: web, Began: noon.Add(-18 * time.Hour), Opened: noon.Add(-18 * time.Hour), Updated: noon.Add(-17 * time.Hour),
		Closed: noon.Add(-17 * time.Hour), Mode: plan.On, SpecMean: 23.1e-6, SpecStdDev: 1.4e-6, Outcome: plan.NotActed, Rounds: []*incident.Round{},
		Analysis: plan.Analysis{Result: detect.Result{Kind: detect.OwnQuota, Threshold: 25.9e-6, Cost: 61.3e-6, Bad: 3}, Reason: "the task ran into its own CPU quota; no neighbour is to blame"}}}
}

// throttledAbove is caused by the quota of the task's pod.
func throttledAbove() incident.Record {
	inc := throttled()
	inc.HeldBy = "/kubepods/burstable/pod4713"
	inc.Reason = "the CPU quota of /kubepods/burstable/pod4713, a cgroup above the task, throttled it; no neighbour is to blame"
	return inc
}

func someTasks() []api.TaskView {
	ready := spec.Spec{State: spec.Ready}
	return []api.TaskView{
		{Task: index, CPU: 0.31, Role: plan.Suspect, Note: "no cgroup of its own for perf", Costs: []api.SignalView{
			{Signal: sample.CPI, Cost: nan, Limit: nan}, {Signal: sample.RunQ, Cost: 0.002, Limit: 0.06, Spec: ready}}},
		{Task: encode, CPU: 1.42, Flags: "capped+throttled", Capped: true, Costs: []api.SignalView{
			{Signal: sample.CPI, Cost: 1.9, Limit: nan}, {Signal: sample.RunQ, Cost: 0.5, Limit: nan}}},
		{Task: sample.Task{Name: "/lxc/bad\x1b[2Jname\n/é", Job: "x", Class: sample.Batch, Protected: true}, CPU: 0.02, Costs: []api.SignalView{
			{Signal: sample.CPT, Cost: 23.1e-6, Limit: 25e-6, Spec: ready}}},
		{Task: redis, CPU: 0.8, Role: plan.Victim, Costs: []api.SignalView{
			{Signal: sample.CPI, Cost: 2.31, Limit: 1.446, Outlier: true, Coverage: 0.62, Spec: ready}, {Signal: sample.RunQ, Cost: 0.03, Limit: 0.06, Spec: ready}}},
	}
}

func someStatus() api.Status {
	return api.Status{Version: "v0.3.1", PID: 4242, Machine: "node-3", Platform: "AuthenticAMD-25-1-1-vm", Started: noon.Add(-75 * time.Hour),
		Now: noon, Rule: "quell", Mode: plan.On, Tasks: 12, Outside: 0.31, Open: 1, Intervals: 4321,
		Signals: []api.SignalStatus{
			{Signal: sample.CPI, Reason: "event cycles: no such event: the machine has no PMU, or its hypervisor hides it", Remedy: "use an instance type with a PMU; the other signals work without"},
			{Signal: sample.CPT, OK: true, Variant: "progress"},
			{Signal: sample.RunQ, OK: true, Variant: "schedstat", Reason: "eBPF is refused: operation not permitted"}},
		Caps: []api.CapView{
			{Task: encode.Name, CapState: plan.CapState{From: noon.Add(-2 * time.Minute), Action: plan.Action{ID: "cap-20251121T115800.000-3", Rate: 0.01, Until: noon.Add(3 * time.Minute),
				By: "quell", Why: "cpi of /kubepods/burstable/pod4711/redis at 2.31 over 1.45, correlation 0.46", Incident: "inc-20251121T115759.000-2"}}},
			{Task: "/batch/upload", CapState: plan.CapState{From: noon.Add(-time.Minute), Action: plan.Action{ID: "cap-20251121T115830.000-4", Net: 1 << 20, Until: noon.Add(4 * time.Minute),
				By: "ann", Why: "too loud"}}}},
		Overruled: []api.Overruled{{Task: "shop/web-0/app", ID: "cap-20251121T110000.000-1", At: noon.Add(-time.Hour), By: "ann", Result: "taken-over",
			Note: "/sys/fs/cgroup/kubepods/burstable/pod4713/web/cpu.max holds \"30000 100000\", neither our \"10000 100000\" nor the old \"50000 100000\"", Likely: "the kubelet sets a pod's limits"}},
		Degraded: []string{"cpi: not counted", "runq: waits of exited threads are lost"}}
}

func someDiagnosis() Diagnosis {
	return Diagnosis{
		{Name: "signals", Capabilities: []host.Capability{
			{Name: "cpi", Reason: "event cycles: no such event: the machine has no PMU, or its hypervisor hides it from this guest", Remedy: "use an instance type with a PMU"},
			{Name: "cps", Reason: "event cycles: no such event: the machine has no PMU, or its hypervisor hides it from this guest", Remedy: "use an instance type with a PMU"},
			{Name: "runq", OK: true, Detail: "counted by eBPF"}}},
		{Name: "machine", Capabilities: []host.Capability{
			{Name: "cgroups", OK: true, Detail: "hybrid, cgroup2 at /sys/fs/cgroup/unified"},
			{Name: "psi per cgroup", OK: true}}},
	}
}
