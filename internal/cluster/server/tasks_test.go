package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// rows makes the fake answer every query with these rows.
func (f *fake) rows(all ...string) {
	f.answer = func(*duck.Job) (*duck.Answer, error) {
		a := &duck.Answer{Answer: dialect.Answer{Columns: []dialect.Column{}}}
		for _, row := range all {
			a.Rows = append(a.Rows, json.RawMessage(row))
		}
		return a, nil
	}
}

// The rows of a task's signals become one task, with the thresholds of specs that are ready.
func TestTasks(t *testing.T) {
	b := newBench(t, nil)
	b.specs.by = map[spec.Key]store.Spec{}
	for _, s := range []store.Spec{
		{Job: "web", Platform: "p", Signal: "cpi", Variant: "v", State: "ready", Mean: 2, StdDev: 0.5},
		{Job: "web", Platform: "p", Signal: "runq", Variant: "bpf", State: "insufficient", Mean: 2, StdDev: 0.5},
	} {
		b.specs.by[dialect.KeyOf(&s)] = s
	}
	b.fake.rows(
		`["m1","/web/1","web","latency-sensitive","p","cpi","v",0.5,3.5,0,1000]`,
		`["m1","/web/1","web","latency-sensitive","p","runq","bpf",0.5,null,1,2000]`,
		`["m2","/web/1","web","latency-sensitive","q","cpi","v",0.25,1,0,1500]`,
	)
	w := b.local("GET", "/v1/tasks?machine=m%271&since=1h", "")
	want := `[{"machine":"m1","task":"/web/1","job":"web","class":"latency-sensitive","cpu":0.5,"capped":true,"at":2000,"costs":[` +
		`{"signal":"cpi","cost":3.5,"mean":2,"limit":3},{"signal":"runq","cost":null,"mean":null,"limit":null}]},` + "\n" +
		`{"machine":"m2","task":"/web/1","job":"web","class":"latency-sensitive","cpu":0.25,"at":1500,"costs":[{"signal":"cpi","cost":1,"mean":null,"limit":null}]}]` + "\n"
	if got := w.Body.String(); w.Code != http.StatusOK || strings.ReplaceAll(got, "\n", "") != strings.ReplaceAll(want, "\n", "") {
		t.Errorf("%d\n%s, want\n%s", w.Code, got, want)
	}
	job := b.fake.jobs[len(b.fake.jobs)-1]
	if !strings.Contains(job.SQL, "machine = 'm''1'") || job.From != sample.At(start)-3_600_000 {
		t.Errorf("asked from %d: %s", job.From, job.SQL)
	}
	if b.local("GET", "/v1/tasks", ""); b.fake.jobs[len(b.fake.jobs)-1].From != sample.At(start).Add(-recent) {
		t.Error("without since it does not ask for recent samples")
	}
	b.fake.rows()
	if w := b.local("GET", "/v1/tasks", ""); w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != "[]" {
		t.Errorf("no task: %d %s", w.Code, w.Body)
	}
	b.fake.rows(`["m1"]`, `["m1",2]`)
	if w := b.local("GET", "/v1/tasks", ""); w.Code == http.StatusOK && json.Valid(w.Body.Bytes()) && strings.Contains(w.Body.String(), `"task":"2"`) {
		t.Errorf("malformed rows: %d %s", w.Code, w.Body)
	}
	if w := b.local("GET", "/v1/tasks?since=never", ""); w.Code != http.StatusBadRequest {
		t.Errorf("since=never: %d %s", w.Code, w.Body)
	}
}

// What a task uses now, and whether it is capped, are not those of the last sample of a signal that is paused.
func TestTasksWithAPausedSignal(t *testing.T) {
	b := newBench(t, nil)
	b.fake.rows(
		`["m1","/web/1","web","batch","p","cpi","v",4,3.5,1,1000]`,
		`["m1","/web/1","web","batch","p","cpt","v",0.5,3.5,0,2000]`,
		`["m1","/web/1","web","batch","p","runq","bpf",4,null,1,1000]`,
	)
	if got := b.local("GET", "/v1/tasks", "").Body.String(); !strings.Contains(got, `"class":"batch","cpu":0.5,"at":2000`) {
		t.Error(got)
	}
}

// A spec has its threshold: mean + 2σ, and at least the signal's least effect.
func TestSpecsHaveThresholds(t *testing.T) {
	b := newBench(t, nil)
	b.specs.by = map[spec.Key]store.Spec{}
	for _, s := range []store.Spec{
		{Job: "a", Signal: "cpi", State: "ready", Mean: 2, StdDev: 0.5}, {Job: "b", Signal: "cpi", State: "ready", Mean: 2, StdDev: 0.001}, {Job: "c", Signal: "other", State: "ready", Mean: 2},
	} {
		b.specs.by[dialect.KeyOf(&s)] = s
	}
	got := b.local("GET", "/v1/specs", "").Body.String()
	for _, want := range []string{`"threshold":3}`, `"threshold":2.1}`, `"threshold":null}`} {
		if strings.Count(got, want) != 1 {
			t.Errorf("%s is not once in %s", want, got)
		}
	}
}

// TestCaller: a client learns what the server takes it for.
func TestCaller(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Tokens = tokens(t) })
	for token, want := range map[string]cluster.Caller{
		"viewer-secret":   {Scope: "viewer", Version: "test", Now: sample.At(start)},
		"operator-secret": {Scope: "operator", Version: "test", Now: sample.At(start)},
	} {
		var got cluster.Caller
		w := b.do("192.0.2.1", "quell", token, "GET", "/v1/caller", "")
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Name == "" {
			t.Errorf("%s: %v, %s", token, err, w.Body)
		}
		if got.Name = ""; got != want {
			t.Errorf("%s: %+v, want %+v", token, got, want)
		}
	}
	if w := newBench(t, nil).local("GET", "/v1/caller", ""); !strings.Contains(w.Body.String(), `"name":"","scope":"viewer"`) {
		t.Errorf("without a token: %s", w.Body)
	}
}

// A list of incidents without what only one incident's page needs, and of those that name a
// job as the suspect.
func TestBriefIncidents(t *testing.T) {
	b := newBench(t, nil)
	doc, err := json.Marshal(`{"id":"i1","victim":{"task":"/web"},"rounds":[],"latest":{},"findings":[],"times":[1,2],"victim_cost":[1,null],"suspect_usage":[]}`)
	if err != nil {
		t.Fatal(err)
	}
	b.fake.rows(fmt.Sprintf("[%s]", doc), `["no JSON"]`)
	w := b.local("GET", "/v1/incidents?brief=true&suspect=o%27neill", "")
	if want := `[{"id":"i1","rounds":[],"victim":{"task":"/web"}}]`; strings.TrimSpace(w.Body.String()) != want {
		t.Errorf("%s, want %s", w.Body, want)
	}
	if sql := b.fake.jobs[0].SQL; strings.Count(sql, "job = 'o''neill'") != 2 || strings.Count(sql, "_history ") != 3 {
		t.Errorf("asked %s", sql)
	}
	if w := b.local("GET", "/v1/incidents", ""); !strings.Contains(w.Body.String(), `"times":[1,2]`) {
		t.Errorf("in full: %s", w.Body)
	}
}

// TestListsSayThatTheyAreCutOff: a list that does not have all rows says so in a trailer, whether it is sent
// at once or in parts.
func TestListsSayThatTheyAreCutOff(t *testing.T) {
	b := newBench(t, func(p *Options) { p.Config.Query.Rows = 200_000 })
	web := httptest.NewServer(b)
	defer web.Close()
	for path, most := range map[string]int{cluster.PathIncidents: 1000, cluster.PathTasks: 100_000, cluster.PathPairs: 1000} {
		for _, size := range []int{2, 2 * heldBack} {
			for _, truncated := range []bool{false, true} {
				b.fake.answer = func(*duck.Job) (*duck.Answer, error) {
					doc, err := json.Marshal([]string{`{"id":"` + strings.Repeat("x", size) + `"}`})
					rows := []json.RawMessage{doc}
					if path != cluster.PathIncidents {
						rows = nil
					}
					return &duck.Answer{Answer: dialect.Answer{Columns: []dialect.Column{}, Rows: rows, Truncated: truncated}}, err
				}
				resp, err := web.Client().Get(web.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Body.Close() != nil {
					t.Fatal(err)
				}
				if got := resp.Trailer.Get(cluster.TruncatedTrailer) == "true"; got != truncated {
					t.Errorf("%s, %d bytes: %v, want %v", path, size, got, truncated)
				}
			}
		}
		if last := b.fake.jobs[len(b.fake.jobs)-1]; last.Limits.Rows != most || !strings.Contains(last.SQL, fmt.Sprint("LIMIT ", most+1)) {
			t.Errorf("%s: %d rows of %s", path, last.Limits.Rows, last.SQL)
		}
	}
}

// TestPages: pages need no token, count as requests, and are nothing but what is below /ui/.
func TestPages(t *testing.T) {
	served := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "page ", r.URL.Path) })
	b := newBench(t, func(p *Options) { p.Tokens, p.Pages = tokens(t), served })
	for path, want := range map[string]int{"/": 200, "/ui/x/main.js": 200, "/v1/tasks": 401, "/other": 404} {
		if w := b.do("192.0.2.1", "quell", "", "GET", path, ""); w.Code != want || want == 200 && w.Body.String() != "page "+path {
			t.Errorf("%s: %d %s, want %d", path, w.Code, w.Body, want)
		}
	}
	if w := b.do("192.0.2.1", "quell", "", "POST", "/", ""); w.Code == http.StatusOK {
		t.Errorf("POST /: %d", w.Code)
	}
	few := newBench(t, func(p *Options) { p.Pages, p.Config.Limits.PerSecond, p.Config.Limits.Burst = served, 0.001, 3 })
	var last *httptest.ResponseRecorder
	for range 4 {
		last = few.local("GET", "/", "")
	}
	if last.Code != http.StatusTooManyRequests {
		t.Errorf("the fourth request of three: %d", last.Code)
	}
	if w := newBench(t, nil).local("GET", "/", ""); w.Code != http.StatusNotFound {
		t.Errorf("without pages: %d", w.Code)
	}
}
