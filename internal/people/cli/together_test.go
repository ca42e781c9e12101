//go:build groups

package cli

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"github.com/quell-dev/quell/internal/testkit/together"
)

var cases = flag.Int("cases", 10, "how often three real tasks hurt a fourth together")

const togetherConfig = `
signals: [runq]
sampling: {duration: 200ms, period: 250ms}
spec: {min_samples: 60}
detect: {outlier_window: 2500ms, window: 5s, look_back: 1m}
enforce: {mode: on, groups: true, rate: 0.05, trial: 3s, for: 4s, calm: 4s}
`

// TestThreeRealTasksHurtOnlyTogether: real processes on one CPU, and the shipped agent. Three batch
// tasks work one at a time, which is the victim's normal life: none of them alone is an incident.
// Then they work at the same time. They must be named and capped together, the victim must be
// below its threshold under that, no other task may be limited, and all limits must be gone
// afterwards.
func TestThreeRealTasksHurtOnlyTogether(t *testing.T) {
	good := 0
	for i := range *cases {
		if t.Run(fmt.Sprint(i), threeTogether) {
			good++
		}
	}
	t.Logf("named, capped together, relieved and undone in %d of %d", good, *cases)
}

// keepTo places this process, and the agent that it starts, on CPUs.
func keepTo(t *testing.T, cpus sample.Set) {
	t.Helper()
	if err := host.PlaceThreads(func() ([]int, error) { return host.ThreadsOf(os.Getpid()) }, cpus); err != nil {
		t.Fatal(err)
	}
}

func threeTogether(t *testing.T) {
	members := []string{"a", "b", "c"}
	procs := map[string]*workload.Proc{}
	quelltest.Need(t, quelltest.TwoCPUs)
	tree, env, _, _ := startAgentOver(t, togetherConfig, 100, func(tree *workload.Tree) {
		on := func(task string, s workload.Spec) {
			p, err := tree.Start(task, s, workload.StartOptions{CPUs: sample.SetOf(0)})
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Begin(); err != nil {
				t.Fatal(err)
			}
			procs[task] = p
		}
		on("victim", workload.Default(workload.Serve))
		quiet := workload.Default(workload.Spin)
		quiet.Duty = 0.05
		on("innocent", quiet)
		for _, m := range members {
			on(m, workload.Default(workload.Spin))
			send(t, procs[m], syscall.SIGSTOP)
		}
		// What the test asks the agent takes CPU time: it must not be a further neighbour.
		everywhere, err := host.Affinity(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		keepTo(t, sample.SetOf(slices.DeleteFunc(everywhere.Numbers(), func(cpu int) bool { return cpu == 0 })...))
		t.Cleanup(func() { keepTo(t, everywhere) })
	})
	all := func() (all []incident.Record) {
		t.Helper()
		if err := json.Unmarshal([]byte(quell(t, env, "incidents", "--json").Out), &all); err != nil {
			t.Fatal(err)
		}
		return all
	}
	defer func() {
		if t.Failed() {
			t.Log(quell(t, env, "top", "--once").Out, quell(t, env, "incidents").Out)
			together.Log(t, all())
		}
	}()
	var three together.Members
	victim := sample.TaskName(tree.Path("victim"))
	of := map[sample.TaskName]*workload.Proc{}
	for _, m := range members {
		name := sample.TaskName(tree.Path(m))
		three, of[name] = append(three, name), procs[m]
	}
	work := func(m sample.TaskName, on bool) {
		send(t, of[m], map[bool]syscall.Signal{true: syscall.SIGCONT, false: syscall.SIGSTOP}[on])
	}
	three.TakeTurns(500*time.Millisecond, work, func() bool { return hasLearnt(t, env) })
	turns := 0
	three.TakeTurns(3*time.Second, work, func() bool { turns++; return turns > len(members) })
	three.NoIncident(t, victim, all())

	for _, m := range three {
		work(m, true)
	}
	quelltest.Until(t, "the three are capped together, and the victim is below its threshold", quelltest.Paced(func() bool { return three.Relieved(all()) }))
	quelltest.Until(t, "the three are named as one group", quelltest.Paced(func() bool { return three.Named(all()) }))
	together.Log(t, all())
	for _, m := range three {
		work(m, false)
	}
	quelltest.Until(t, "every limit is gone", quelltest.Paced(func() bool {
		return !slices.ContainsFunc(members, func(m string) bool { return strings.HasPrefix(limit(t, tree, m), "5000 ") })
	}))
	three.Innocents(t, victim, all())
	for _, task := range append(members, "victim", "innocent") {
		if l := limit(t, tree, task); !strings.HasPrefix(l, "-1") && !strings.HasPrefix(l, "max") {
			t.Errorf("%s is left with %s", task, l)
		}
	}
}
