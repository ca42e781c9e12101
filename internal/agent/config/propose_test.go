package config

import (
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/origin"
)

// What speaks for a class, strongest first: each row adds to what the rows below it say.
func TestPropose(t *testing.T) {
	listens := origin.Process{Read: true, Listens: []int{80, 443, 8080, 9000}}
	pod := func(q origin.QoS, p origin.Process) origin.Facts {
		return origin.Facts{Origin: origin.Origin{Runtime: origin.Kubernetes, QoS: q}, Name: "shop/web-0/app", Job: "shop/web/app", Process: p}
	}
	with := func(f origin.Facts, set func(*origin.Facts)) origin.Facts { set(&f); return f }
	unit := origin.Origin{Runtime: origin.Systemd}
	for _, c := range []struct {
		what      string
		facts     origin.Facts
		path      string
		class     sample.Class
		protected bool
		never     bool
		why       string
	}{
		{what: "annotation", facts: with(pod(origin.BestEffort, listens), func(f *origin.Facts) {
			f.Annotations, f.PriorityClass = map[string]string{"quell.io/class": "latency-sensitive"}, "low"
		}), class: sample.LatencySensitive, why: "annotation quell.io/class"},
		{what: "annotation of no class", facts: with(pod(origin.BestEffort, listens), func(f *origin.Facts) {
			f.Annotations = map[string]string{"quell.io/class": "fast", "quell.io/protect": "true"}
		}), class: sample.BestEffort, protected: true, why: "QoS class BestEffort"},
		{what: "critical", facts: with(pod(origin.Burstable, origin.Process{}), func(f *origin.Facts) { f.PriorityClass, f.Priority = "system-node-critical", 2000001000 }),
			class: sample.LatencySensitive, never: true, why: "priority class system-node-critical"},
		{what: "of the cluster itself", facts: with(pod(origin.BestEffort, origin.Process{}), func(f *origin.Facts) { f.Labels = map[string]string{"namespace": "kube-system"} }),
			class: sample.BestEffort, never: true, why: "QoS class BestEffort"},
		{what: "of an unknown namespace", facts: with(pod(origin.BestEffort, origin.Process{}), func(f *origin.Facts) { f.Name, f.Job = "", "kubernetes/1" }),
			class: sample.BestEffort, never: true, why: "QoS class BestEffort"},
		{what: "below zero", facts: with(pod(origin.Guaranteed, listens), func(f *origin.Facts) { f.Priority = -1 }), class: sample.BestEffort, why: "priority -1"},
		{what: "BestEffort", facts: pod(origin.BestEffort, listens), class: sample.BestEffort, why: "QoS class BestEffort"},
		{what: "idle", facts: pod(origin.Guaranteed, origin.Process{Read: true, Policy: origin.SchedIdle}), class: sample.BestEffort, why: "scheduling policy SCHED_IDLE"},
		{what: "nice", facts: origin.Facts{Origin: unit, Process: origin.Process{Read: true, Nice: 19, Listens: []int{80}}}, class: sample.BestEffort, why: "niceness 19"},
		{what: "background", facts: origin.Facts{Origin: unit, Process: listens}, path: "/user.slice/user-1.slice/user@1.service/background.slice/a.service", class: sample.BestEffort, why: "in background.slice"},
		{what: "Job", facts: with(pod(origin.Guaranteed, listens), func(f *origin.Facts) { f.Finite = true }), class: sample.Batch, why: "pod of a Job"},
		{what: "batch policy", facts: origin.Facts{Origin: unit, Process: origin.Process{Read: true, Policy: origin.SchedBatch, Listens: []int{80}}}, class: sample.Batch, why: "scheduling policy SCHED_BATCH"},
		{what: "a little nice", facts: origin.Facts{Origin: unit, Process: origin.Process{Read: true, Nice: 5, Listens: []int{80}}}, class: sample.Batch, why: "niceness 5"},
		{what: "libvirt", facts: origin.Facts{Origin: origin.Origin{Runtime: origin.Libvirt}, Process: listens}, class: sample.Batch, protected: true, why: "virtual machine"},
		{what: "QEMU in a unit", facts: origin.Facts{Origin: unit, Process: origin.Process{Read: true, Guest: "db"}}, class: sample.Batch, protected: true, why: "virtual machine"},
		{what: "Guaranteed", facts: pod(origin.Guaranteed, origin.Process{Read: true}), class: sample.LatencySensitive, why: "QoS class Guaranteed"},
		{what: "listens", facts: pod(origin.Burstable, listens), class: sample.LatencySensitive, why: "accepts connections at TCP port 80, 443, 8080, …"},
		{what: "one port", facts: origin.Facts{Origin: unit, Process: origin.Process{Read: true, Nice: -5, Listens: []int{22}}}, class: sample.LatencySensitive, why: "accepts connections at TCP port 22"},
		{what: "nothing", facts: pod(origin.Burstable, origin.Process{Read: true}), class: sample.Batch, why: "nothing speaks for another class"},
		{what: "not allowed to see", facts: origin.Facts{Origin: unit, Process: origin.Process{Unread: "permission denied"}}, class: sample.Batch, why: "nothing speaks for another class (permission denied)"},
	} {
		a := load(t, "rules: [{match: /**, class: batch, propose: true}]", nil, nil)
		path := c.path
		if path == "" {
			path = "/x"
		}
		v := a.Classify(path, &c.facts)
		if v.Class != c.class || v.Protected != c.protected || v.NeverCap != c.never || v.Why != c.why || !v.Proposed {
			t.Errorf("%s: %s, protected %v, never cap %v: %s", c.what, v.Class, v.Protected, v.NeverCap, v.Why)
		}
		// A rule that does not propose decides alone.
		a = load(t, "rules: [{match: /**, class: best-effort, never_cap: true}]", nil, nil)
		if v := a.Classify(path, &c.facts); v.Class != sample.BestEffort || v.Protected || !v.NeverCap || v.Proposed || v.Why != "rule /**" {
			t.Errorf("%s: a rule without propose: %+v", c.what, v)
		}
	}
	// Annotations are not read where they are not allowed.
	a := load(t, "{names: {annotations: false}, rules: [{match: /**, class: batch, propose: true}]}", nil, nil)
	f := pod(origin.BestEffort, listens)
	f.Annotations = map[string]string{"quell.io/class": "latency-sensitive", "quell.io/protect": "true", "quell.io/job": "other"}
	if v := a.Classify("/x", &f); v.Class != sample.BestEffort || v.Protected || v.Job != "shop/web/app" {
		t.Errorf("annotations that are not allowed: %+v", v)
	}
}

// Rules match paths, task names and commands, and name jobs by what is known.
func TestClassifyByName(t *testing.T) {
	a := load(t, `
rules:
  - {match: "shop/test-*/*", ignore: true}
  - {match: "shop/*/app", class: latency-sensitive}
  - {match: "vm/db-*", class: batch, job: "$1"}
  - {match: "/docker/**", class: batch, job: "$container of $image"}
  - {match: "/sessions/*", command: "*python* train.py*", class: best-effort, job: train}
  - {match: "/sessions/*", class: batch}
`, nil, nil)
	pod := origin.Facts{Origin: origin.Origin{Runtime: origin.Kubernetes}, Name: "shop/web-0/app", Job: "shop/web/app"}
	test := pod
	test.Name = "shop/test-1/app"
	own := pod
	own.Annotations = map[string]string{"quell.io/job": "front"}
	long := pod
	long.Annotations = map[string]string{"quell.io/job": strings.Repeat("ü", 3000)}
	sandbox := pod
	sandbox.Sandbox = true
	labelled := origin.Facts{Name: "docker/web", Job: "docker/web", Labels: map[string]string{"container": "web", "image": "nginx"}}
	bare := origin.Facts{Name: "docker/web", Job: "docker/web", Labels: map[string]string{"container": "web"}}
	train := origin.Facts{Process: origin.Process{Read: true, Command: "/usr/bin/python3 train.py\n--epochs 9"}}
	for _, c := range []struct {
		path      string
		facts     *origin.Facts
		rule      int // -1: none
		name, job string
	}{
		{"/kubepods/burstable/podx/y", &pod, 1, "shop/web-0/app", "shop/web/app"},
		{"/kubepods/burstable/podx/y", &test, -1, "", ""},
		{"/kubepods/burstable/podx/y", &own, 1, "shop/web-0/app", "shop/front"},
		{"/kubepods/burstable/podx/y", &long, 1, "shop/web-0/app", "shop/" + strings.Repeat("ü", 509)}, // 1023 bytes
		{"/kubepods/burstable/podx/y", &sandbox, -1, "", ""},
		{"/kubepods/burstable/podx/y", nil, -1, "", ""},
		{"/x", &origin.Facts{Name: "vm/db-7"}, 2, "vm/db-7", "7"},
		{"/docker/1", &labelled, 3, "docker/web", "web of nginx"},
		{"/docker/1", &bare, 3, "docker/web", "docker/web"}, // it has no image: the runtime's name
		{"/docker/1", nil, 3, "", "1"},
		{"/sessions/1", &train, 4, "", "train"},
		{"/sessions/1", nil, 5, "", "1"},
	} {
		v := a.Classify(c.path, c.facts)
		switch {
		case c.rule < 0:
			if v.Rule != nil {
				t.Errorf("%s, %+v: matched by %q", c.path, c.facts, v.Rule.Match)
			}
		case v.Rule != &a.Rules[c.rule] || string(v.Name) != c.name || string(v.Job) != c.job:
			t.Errorf("%s, %+v: %+v", c.path, c.facts, v)
		}
	}
	for path, want := range map[string][3]bool{ // known, may be a task, more must be known
		"/kubepods/x": {true, true, true}, "/other": {false, false, false}, "/docker/1": {false, true, false}, "/sessions/1": {false, true, true},
	} {
		if may, ask := a.MayBeTask(path, want[0]); may != want[1] || ask != want[2] {
			t.Errorf("%s: may be a task %v, must be asked for %v", path, may, ask)
		}
	}
}

func TestRulesAreChecked(t *testing.T) {
	for rule, want := range map[string]string{
		`{match: "", class: batch}`:                   "rules[0].match",
		`{match: "a/*", class: batch, job: "$2"}`:     "number of stars",
		`{match: "a/*", class: batch, job: "$nmspc"}`: "namespace, workload",
	} {
		_, err := Load(write(t, "rules: ["+rule+"]"), nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
	for set, want := range map[string]string{"names.kubelet.url=127.0.0.1:10250": "names.kubelet.url", "names.timeout=1h": "names.timeout"} {
		if _, err := Load("", nil, []string{set}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", set, err)
		}
	}
	if _, err := Load("", nil, []string{"names.kubelet.url=http://127.0.0.1:10255/pods", "names.kubelet.token=/t"}); err == nil || !strings.Contains(err.Error(), "in the clear") {
		t.Errorf("a token without TLS: %v", err)
	}
}
