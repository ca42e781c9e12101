//go:build inguest

package v2

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"github.com/quell-dev/quell/internal/testkit/together"
)

const (
	membersPath = scene + "/batch-"
	quietTask   = scene + "/quiet"
	quietQuota  = "5000 100000\n"
)

// groupConfiguration has the default rule, with shorter times: a trial has about 12 intervals, as
// by default. The rate is one at which caps on two of the tasks are not enough: each takes a share of the
// CPU that the victim always wants, and the third takes half of what is left.
const groupConfiguration = `
signals: [runq]
listen: 127.0.0.1:9399
tick: 500ms
sampling: {duration: 2s, period: 2s}
spec: {min_samples: 60}
detect: {outlier_window: 20s, window: 40s, look_back: 8m, switches: {outside: off}}
enforce: {mode: on, groups: true, rate: 0.15, trial: 24s, for: 32s, calm: 32s}
rules:
  - {match: "/quell-test-find/pod/web", job: web, class: latency-sensitive}
  - {match: "/quell-test-find/batch-*", job: batch, class: batch, signals: [cpi]}
  - {match: "/quell-test-find/quiet", job: quiet, class: batch, signals: [cpi]}
`

// TestThreeTasksHurtOnlyTogether: three batch tasks work on the victim's CPU one at a time, which is
// the victim's normal life, and no incident. Then they work at the same time. They must be named and
// capped together, the victim must be below its threshold under that, no other task may be accused,
// and all limits must be gone afterwards. Each case has another rhythm.
func TestThreeTasksHurtOnlyTogether(t *testing.T) {
	quelltest.Need(t, quelltest.TwoCPUs)
	if err := keepTo(0); err != nil {
		t.Fatal(err)
	}
	cases, err := strconv.Atoi(cmp.Or(os.Getenv("QUELL_TEST_ROUNDS"), "1"))
	if err != nil {
		t.Fatal(err)
	}
	good := 0
	for i := range cases {
		if t.Run(fmt.Sprint(i), func(t *testing.T) { hurtTogether(t, time.Duration(i)*230*time.Millisecond) }) {
			good++
		}
	}
	t.Logf("figure: named, capped together, relieved and undone in %d of %d", good, cases)
}

func hurtTogether(t *testing.T, rhythm time.Duration) {
	stage(t, 0)
	cgroup(t, quietTask)
	var members together.Members
	pids := map[sample.TaskName]int{}
	work := func(task sample.TaskName, on bool) {
		if err := unix.Kill(pids[task], map[bool]unix.Signal{true: unix.SIGCONT, false: unix.SIGSTOP}[on]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		m := fmt.Sprint(membersPath, i)
		cgroup(t, m)
		members = append(members, sample.TaskName(m))
	}
	a := startAgentWith(t, 0, groupConfiguration)
	defer func() {
		if t.Failed() {
			together.Log(t, a.ordered())
		}
	}()
	burn(t, victim, 1)
	for _, m := range members {
		pids[m] = burn(t, string(m), 1)
		work(m, false)
	}
	put(t, filepath.Join(root, quietTask, "cpu.max"), quietQuota)
	burn(t, quietTask, 1)
	end := time.Now().Add(10 * time.Minute)
	members.TakeTurns(4*time.Second+rhythm, work, func() bool {
		if time.Now().After(end) {
			t.Fatal("no spec within 10 minutes")
		}
		return a.hasLearnt(victim)
	})
	turns := 0
	members.TakeTurns(24*time.Second, work, func() bool { turns++; return turns > len(members) })
	members.NoIncident(t, victim, a.ordered())

	for _, m := range members {
		work(m, true)
	}
	until(t, 30*time.Minute, "the three are named and capped together, and the victim is below its threshold", func() bool { return members.Named(a.ordered()) })
	together.Log(t, a.ordered())

	for _, m := range members {
		work(m, false)
	}
	until(t, 4*time.Minute, "every limit is gone", func() bool {
		return !slices.ContainsFunc(append(members, victim), func(m sample.TaskName) bool { return !strings.HasPrefix(text(t, string(m), "cpu.max"), "max ") })
	})
	if got := text(t, quietTask, "cpu.max"); got != quietQuota {
		t.Errorf("the quiet task's own limit is %q now", got)
	}
	members.Innocents(t, victim, a.ordered())
}

// ordered are the agent's incidents, oldest first.
func (a *agent) ordered() (all []incident.Record) {
	for _, inc := range a.incidents() {
		all = append(all, inc)
	}
	slices.SortFunc(all, func(x, y incident.Record) int { return cmp.Compare(x.Opened, y.Opened) })
	return all
}
