package server

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
)

// addCopies adds n incidents to the store that differ in their ID and time, faster than one by one.
func (b *bench) addCopies(t *testing.T, inc *incident.Record, n int) {
	t.Helper()
	one := store.Batch{Source: store.Source{Stream: recordsStream, Machine: inc.Machine, Boot: "b"}}
	if err := one.AddIncident(inc); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		b.store.Add(copyOf(one, i))
	}
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
}

// copyOf returns the i-th copy of the batch of an incident.
func copyOf(one store.Batch, i int) *store.Batch {
	one.N, one.Incidents, one.Suspects = uint64(i+1), slices.Clone(one.Incidents), slices.Clone(one.Suspects)
	row := &one.Incidents[0]
	id := fmt.Sprint("lie", i)
	row.Doc = strings.Replace(row.Doc, strconv.Quote(row.ID), strconv.Quote(id), 1)
	row.ID, row.Updated = id, row.Updated+int64(i)*time.Second.Milliseconds()
	for k := range one.Suspects {
		one.Suspects[k].Incident = id
	}
	return &one
}

// TestAttackIncidentsOfOneMachine: a machine that reports more incidents than a list has hides those of no other from
// it. The rest of the list is the newest, in their order.
func TestAttackIncidentsOfOneMachine(t *testing.T) {
	var lies []*incident.Record
	for i := range cluster.MostIncidents + 1 {
		lie := found(fmt.Sprint("lie", i), "web", "x", detect.Likely, detect.ByStatistics, false)
		lie.Machine, lie.Updated = "liar", sample.At(start).Add(time.Duration(i)*time.Second-time.Hour)
		lies = append(lies, lie)
	}
	b := forensic(t, lies...)
	var all []incident.Record
	w := b.local("GET", "/v1/incidents", "")
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
		t.Fatal(err, w.Body)
	}
	newestFirst := slices.IsSortedFunc(all, func(x, y incident.Record) int { return cmp.Compare(y.Updated, x.Updated) })
	if len(all) != cluster.MostIncidents || !newestFirst || all[len(all)-1].ID != case4 || all[0].ID != fmt.Sprint("lie", cluster.MostIncidents) {
		t.Errorf("%d incidents, newest first: %v, want %d with that of m4 as the last", len(all), newestFirst, cluster.MostIncidents)
	}
}

// TestAttackLargeIncidentsOfOneMachine: a machine whose incidents take as much as a message may have leaves room for others
// in the list, which says that it is cut off, and keeps within the memory of a query.
func TestAttackLargeIncidentsOfOneMachine(t *testing.T) {
	lie := found("lie0", "web", "x", detect.Likely, detect.ByStatistics, false)
	lie.Machine, lie.Updated, lie.NotDone = "liar", sample.At(start).Add(-time.Hour), strings.Repeat("x", 900<<10)
	b := forensic(t)
	b.addCopies(t, lie, 60)
	b.Config.Query.MemoryMB, b.Config.Query.Threads = 50, 1
	for query, least := range map[string]int{"": 2, "?machine=liar": 1, "?machine=m4": 1, "?id=lie7": 1} {
		var all []incident.Record
		w := b.local("GET", "/v1/incidents"+query, "")
		if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
			t.Fatalf("%s: %v %.200s", query, err, w.Body)
		}
		cut, lying := w.Result().Trailer.Get(cluster.TruncatedTrailer) == "true", strings.Contains(query, "liar")
		if said := w.Result().Header.Get(cluster.TruncatedTrailer) == "true"; said != cut {
			t.Errorf("%s: cut off %v, and %v for a client without trailers", query, cut, said)
		}
		if len(all) < least || len(all) > 30 || cut != (query == "" || lying) || !lying && query != "?id=lie7" && all[len(all)-1].ID != case4 {
			t.Errorf("%s: %d incidents, cut off: %v", query, len(all), cut)
		}
	}
}

// TestAttackTasksOfOneMachine: a machine that reports more tasks than a list has hides those of no other from it.
func TestAttackTasksOfOneMachine(t *testing.T) {
	b := forensic(t)
	b.Config.Query.Rows = 1500
	one := sample.Sample{TS: sample.At(start), Machine: "m9", Job: "web", Task: "/web", Platform: "p", Signal: sample.CPI, Class: sample.LatencySensitive, CPU: 1, Cost: 2, Coverage: 1}
	add := func(all ...sample.Sample) {
		b.store.Add(&store.Batch{Source: store.Source{Stream: samplesStream, Machine: all[0].Machine, Boot: "b"}, N: 1, Samples: all})
	}
	add(one)
	var lies []sample.Sample
	for i := range 2000 {
		lie := one
		lie.Machine, lie.Task = "liar", sample.TaskName(fmt.Sprintf("/%04d", i))
		lies = append(lies, lie)
	}
	add(lies...)
	if err := b.store.Flush(); err != nil {
		t.Fatal(err)
	}
	var all []cluster.Task
	w := b.local("GET", "/v1/tasks", "")
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
		t.Fatal(err, w.Body)
	}
	if len(all) != 1500 || !slices.ContainsFunc(all, func(k cluster.Task) bool { return k.Machine == "m9" && len(k.Costs) == 1 }) {
		t.Errorf("%d tasks, want 1500 with that of m9", len(all))
	}
}

// TestAttackPairsOfOneMachine: the same for a machine that reports more pairs of jobs than a list has.
func TestAttackPairsOfOneMachine(t *testing.T) {
	var lies []*incident.Record
	for i := range 1001 {
		lie := found(fmt.Sprint("lie", i), "web", fmt.Sprint("x", i), detect.Proven, detect.ByAccounts, true)
		lie.Machine = "liar"
		lies = append(lies, lie)
	}
	b := forensic(t, append(lies, found("i1", "web", "zip", detect.Proven, detect.ByAccounts, true))...)
	var all []cluster.Pair
	w := b.local("GET", cluster.PathPairs, "")
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil {
		t.Fatal(err, w.Body)
	}
	if len(all) != 1000 || !slices.ContainsFunc(all, func(p cluster.Pair) bool { return p.Antagonist == "zip" }) {
		t.Errorf("%d pairs, want 1000 with that of m4", len(all))
	}
}

// TestAttackSuspectsOfOneMachine: a machine whose incidents list as many suspects as they may does not make the list of
// pairs take more memory than a query may have.
func TestAttackSuspectsOfOneMachine(t *testing.T) {
	lie := found("lie0", "web", "x", detect.Likely, detect.ByStatistics, false)
	lie.Machine = "liar"
	for k := range maxListed - 2 {
		lie.Suspects = append(lie.Suspects, detect.Suspect{Task: sample.Task{Name: sample.TaskName(fmt.Sprint("/a-long-name-of-a-suspect-", k)), Job: "y"}})
	}
	b := forensic(t)
	b.addCopies(t, lie, 40)
	b.Config.Query.MemoryMB, b.Config.Query.Threads = 50, 1
	var all []cluster.Pair
	w := b.local("GET", cluster.PathPairs, "")
	if err := json.Unmarshal(w.Body.Bytes(), &all); err != nil || len(all) != 1 || all[0].Antagonist != "scientific simulation" {
		t.Errorf("%+v, %v %.200s", all, err, w.Body)
	}
}

// TestCannedQueriesAreOfTheirTime: a file that is read for the last hour has incidents of a day. Those of before do not
// count.
func TestCannedQueriesAreOfTheirTime(t *testing.T) {
	var all []*incident.Record
	for i, ago := range []time.Duration{10 * time.Minute, 3 * time.Hour} {
		inc := found(fmt.Sprint("inc-", i), "web", "x", detect.Proven, detect.ByStatistics, false)
		inc.Machine, inc.Updated = "m9", sample.At(start).Add(-ago)
		all = append(all, inc)
	}
	b := forensic(t, all...)
	for since, want := range map[string]string{"1h": "1", "24h": "2", "": "2"} {
		if rows := b.ask(t, cluster.Query{Canned: "worst-machines", Since: since}, "machine", "incidents"); len(rows) == 0 || rows[0] != "m9 | "+want {
			t.Errorf("since %q: %q, want %s of m9", since, rows, want)
		}
		if rows := b.ask(t, cluster.Query{Canned: "worst-antagonists", Since: since, Params: map[string]string{"job": "web"}}, "job", "incidents"); len(rows) != 1 || rows[0] != "x | "+want {
			t.Errorf("since %q: %q, want %s of x", since, rows, want)
		}
	}
}
