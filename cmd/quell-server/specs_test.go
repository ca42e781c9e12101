package main

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestSpecsOfALyingMachine: of four machines with a job one reports made-up tasks, and it has a job
// of its own. The real server leaves it out and names it, over a restart, has no spec of its job,
// and takes back at an operator's request what the honest ones taught.
func TestSpecsOfALyingMachine(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("ts,machine,job,task,platform,signal,variant,class,cpu,cost,coverage,flags\n")
	r := rand.New(rand.NewPCG(1, 2))
	now := time.Now().UnixMilli()
	row := func(i int, machine, job, task string, cost float64) {
		fmt.Fprintf(&b, "%d,%s,%s,%s,p,cpi,v,batch,1,%g,1,\n", now-int64(i)*15_000, machine, job, task, cost)
	}
	for i := range 120 {
		for m := range 3 {
			for task := range 2 {
				row(i, fmt.Sprint("m", m), "web", fmt.Sprint("/web/", task), 1.5+0.1*r.NormFloat64())
			}
		}
		for task := range 6 {
			row(i, "liar", "web", fmt.Sprint("/made-up/", task), 40)
			row(i, "liar", "own", fmt.Sprint("/own/", task), 1)
			row(i, "liar", fmt.Sprintf("%064x", task), fmt.Sprint("/x/", task), 1)
		}
	}
	file := filepath.Join(t.TempDir(), "t.csv")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startGuarded(t)
	g.end()
	if _, err := quellServer(t, "import", "--set", "state_dir="+g.state, file); err != nil {
		t.Fatal(err)
	}
	g.begin()
	g.token = g.secret["olga"]
	specs := func() map[string]cluster.Spec {
		var all []cluster.Spec
		if _, text := g.get("/v1/specs"); json.Unmarshal([]byte(text), &all) != nil {
			return nil
		}
		by := map[string]cluster.Spec{}
		for _, s := range all {
			by[string(s.Job)] = s
		}
		return by
	}
	check := func(when string) {
		t.Helper()
		quelltest.Until(t, "the spec is ready "+when, quelltest.Paced(func() bool { return specs()["web"].State == spec.Ready }))
		s := specs()["web"]
		if math.Abs(s.Mean-1.5) > 0.05 || s.StdDev > 0.2 || s.Tasks != 6 || s.Machines != 3 || s.MachinesOut != 1 || len(s.LeftOut) != 1 {
			t.Errorf("%s: %+v", when, s)
		}
	}
	check("at first")
	if s := specs()["own"]; s.State != spec.Insufficient || s.Version != 0 {
		t.Errorf("the liar's own job: %+v", s)
	}
	if n := len(specs()); n != 2 {
		t.Errorf("%d specs: identifiers of containers are jobs", n)
	}
	g.end()
	g.begin()
	check("after a restart")
	if status, text := g.ask("POST", cluster.PathRevoke, `{"machine":"m2","since":"24h","why":"it was a test"}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	quelltest.Until(t, "two machines are too few", quelltest.Paced(func() bool { return specs()["web"].State == spec.Insufficient }))
	if got := g.sql(`SELECT machine, "by", why FROM revocations`); got != `["m2","olga","it was a test"]` {
		t.Errorf("revocations: %s", got)
	}
	if status, text := g.ask("POST", cluster.PathRevoke, `{"machine":"m2","lift":true,"why":"done"}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	check("after the revocation is lifted")
}

// TestRevocationsStay: a revocation without an end holds until it is lifted, also when records of its
// age are removed.
func TestRevocationsStay(t *testing.T) {
	c, now := config.DefaultServer(), time.Now()
	s, err := store.Open(t.TempDir(), store.Options{Keep: keeping(&c), Now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	at := now.UnixMilli()
	s.Add(&store.Batch{Revocations: []store.Revocation{{At: at, Machine: "host-17", By: "olga", Why: "x"}}, Audit: []store.Audit{{At: at, Who: "olga"}}})
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * c.Store.KeepRecords)
	if err := s.Retain(); err != nil {
		t.Fatal(err)
	}
	sn := s.Snapshot(0, 0)
	defer sn.Close()
	if revoked, audit := sn.Files(store.Revocations), sn.Files(store.AuditLog); len(revoked) != 1 || len(audit) != 0 {
		t.Errorf("there are still %q and %q", revoked, audit)
	}
}
