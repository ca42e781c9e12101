//go:build browser

package dashboard

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/people/dashboard/local"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// busyAgent is an agent whose incident changes whenever it is asked for.
type busyAgent struct {
	oneAgent
	mu     sync.Mutex
	events int // changes of the incident
	lists  int // of tasks
}

func (a *busyAgent) Incidents(context.Context, logbook.Query) (api.Incidents, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events++
	inc := a.inc
	inc.Updated = inc.Updated.Add(time.Duration(a.events) * time.Millisecond)
	return api.Incidents{Incidents: []incident.Record{inc}}, nil
}

// Tasks has one more after the first look.
func (a *busyAgent) Tasks(ctx context.Context) ([]api.TaskView, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lists++
	all, err := a.oneAgent.Tasks(ctx)
	if a.lists > 1 {
		all = append(all, api.TaskView{Task: sample.Task{Name: "/late/comer", Job: "comer"}})
	}
	return all, err
}

// pagesOf serves the pages of an agent; before answers a request if it wants to.
func pagesOf(t *testing.T, a local.Agent, before func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	files, err := of(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	h := local.New(local.Options{Agent: a, Pages: files, Token: "T", Poll: 500 * time.Millisecond})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if before == nil || !before(w, r) {
			h.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// A page is read again while events come without a pause: what they do not tell of is shown.
func TestEventsPutOffNothingInABrowser(t *testing.T) {
	b := browse(t, pagesOf(t, &busyAgent{oneAgent: oneAgent{inc: open()}}, nil), "T")
	b.until("it is shown", "document.querySelector('main h1')?.innerText.includes('held up')")
	b.until("the new task is shown", `document.querySelector('[role=region][aria-label="Tasks"]').innerText.includes('comer')`)
	b.quiet()
}

// A page that was opened while the agent did not answer knows, once it does, that there is no SQL and
// which commands may be sent.
func TestLateAnswersInABrowser(t *testing.T) {
	var mu sync.Mutex
	refusals := 0
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path != "/v1/caller" || refusals > 0 {
			return false
		}
		refusals++
		http.Error(w, `{"error": "it starts"}`, http.StatusBadGateway)
		return true
	}), "T")
	b.until("it is known who asks", "document.querySelector('#who').innerText === 'local · operator'")
	b.visit("#/machine/node-02", "Tasks that share it")
	b.quiet("502")
}

// A server takes a request and does not answer: the page says that its data is old, does not wait for ever, and
// is read again.
func TestAServerThatHangsInABrowser(t *testing.T) {
	var hangs atomic.Bool
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(_ http.ResponseWriter, r *http.Request) bool {
		if !hangs.Load() || r.URL.Path != "/v1/tasks" {
			return false
		}
		<-r.Context().Done()
		return true
	}), "T")
	b.until("it is shown", "document.querySelector('main h1')?.innerText.includes('held up')")
	// Two minutes are long for a test.
	eval[bool](b, "(window.limits = [], AbortSignal.timeout = () => { const c = new AbortController(); window.limits.push(c); return c.signal; }, true)")
	hangs.Store(true)
	eval[bool](b, "(document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true})), true)")
	b.until("the page says that it is stale", "document.querySelector('#stale').innerText.includes('has not answered yet')")
	hangs.Store(false)
	eval[bool](b, "(window.limits.forEach(c => c.abort(new DOMException('', 'TimeoutError'))), true)")
	b.until("it is read again", "document.querySelector('#stale').hidden")
}

// A command to a machine that does not answer is not said to be done.
func TestASilentMachineInABrowser(t *testing.T) {
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/commands" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"replies": [], "silent": ["node-02"], "decision": "d1"}`) // as quell-server
		return true
	}), "T")
	b.visit("#/incident/"+open().ID, "Cost of web")
	eval[bool](b, `(document.querySelector('[data-key=cap]').click(), document.querySelector('#why').value = 'w', document.querySelector('#for').value = '1d', document.querySelector('dialog form').requestSubmit(), true)`)
	b.until("it is said", "document.querySelector('dialog .result')?.innerText.includes('node-02: no answer')")
	if class := eval[string](b, "document.querySelector('dialog .result').className"); class != "result bad" {
		t.Errorf("the result is of class %q", class)
	}
	b.quiet()
}

// An incident that was open when its machine was removed does not hold up a task for ever.
func TestARemovedMachineInABrowser(t *testing.T) {
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/machines" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `[{"machine": "node-02", "last_seen": %d}]`, at.Add(-25*time.Hour))
		return true
	}), "T")
	b.until("it is shown", "document.querySelector('main h1')?.innerText === 'No task is held up'")
	if text := eval[string](b, "document.querySelector('main').innerText"); !strings.Contains(text, "1 more of machines that have sent nothing for a day") {
		t.Errorf("the page is %q", text)
	}
	if n := eval[string](b, "document.querySelector('.stat b').innerText"); n != "0" {
		t.Errorf("%s machines are there", n)
	}
	b.quiet()
}

// A task that suffers by two signals is one task.
func TestATaskWithTwoIncidentsInABrowser(t *testing.T) {
	first, second := open(), open()
	second.ID, second.Signal = "inc-second", sample.CPI
	text, err := json.Marshal([]incident.Record{first, second})
	if err != nil {
		t.Fatal(err)
	}
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/incidents" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.ReplaceAll(string(text), `"kind":"neighbour"`, `"kind":"nobody"`))
		return true
	}), "T")
	b.until("it is shown", "document.querySelector('main h1')?.innerText === '1 task suffers, and no neighbour is named'")
	b.quiet()
}

// Of more incidents than the server lists the headline does not say that these are all.
func TestMoreIncidentsThanAreListedInABrowser(t *testing.T) {
	var all []incident.Record
	for i := range 1000 {
		inc := open()
		inc.ID, inc.Victim.Name = fmt.Sprint("inc-", i), sample.TaskName(fmt.Sprint("/web/", i))
		inc.Times, inc.VictimCost, inc.Usage = nil, nil, nil
		all = append(all, inc)
	}
	for _, c := range []struct {
		n           int
		cut, listed string
	}{{1000, "false", "1,000"}, {640, "true", "640"}} { // the second list is cut off for its size
		t.Run(c.listed, func(t *testing.T) {
			text, err := json.Marshal(all[:c.n])
			if err != nil {
				t.Fatal(err)
			}
			b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path != "/v1/incidents" {
					return false
				}
				if q := r.URL.Query(); q.Get("open") == "true" && q.Get("since") == "" {
					t.Error("all that was ever stored is read for the open incidents")
				}
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Quell-Truncated", c.cut)
				_, _ = w.Write(text)
				return true
			}), "T")
			b.until("it is shown", "document.querySelector('main h1')?.innerText === 'At least "+c.listed+" tasks are held up by neighbours on 1 machine'")
			for _, page := range []string{"#/job/web", "#/machine/node-02"} {
				b.visit(page, "Of the newest "+c.listed+" incidents")
			}
			b.quiet()
		})
	}
}

// Of more tasks than the server lists the page does not say that these are all, nor that a machine has none.
func TestMoreTasksThanAreListedInABrowser(t *testing.T) {
	costs := strings.TrimSuffix(strings.Repeat(`{"signal": "runq", "cost": 1, "mean": null, "limit": null},`, 100), ",")
	var all []string
	for i := range 1000 {
		all = append(all, fmt.Sprintf(`{"machine": "node-01", "task": "/t/%d", "job": "t", "class": "batch", "cpu": 1, "at": %d, "costs": [%s]}`, i, at, costs))
	}
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/tasks" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "["+strings.Join(all, ",")+"]")
		return true
	}), "T")
	b.until("it is shown", "document.querySelector('main').innerText.includes('1,000 tasks, the first by machine; the server lists no more')")
	for _, want := range []string{"≥ 1,000", "not listed"} {
		if text := eval[string](b, "document.querySelector('main').innerText"); !strings.Contains(text, want) {
			t.Errorf("no %q in %.1000q", want, text)
		}
	}
	b.quiet()
}

// Of a time with more samples than a query may read the page of the cluster shows what needs no samples, and does not
// ask for them again.
func TestTooManySamplesInABrowser(t *testing.T) {
	var asked atomic.Int32
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/v1/pairs":
			_, _ = io.WriteString(w, "[]")
		case "/v1/query":
			if text, err := io.ReadAll(r.Body); err == nil && strings.Contains(string(text), "JOIN samples") {
				asked.Add(1)
				w.WriteHeader(http.StatusUnprocessableEntity)
				_, _ = io.WriteString(w, `{"error": "the query exceeded its time limit"}`)
				return true
			}
			_, _ = io.WriteString(w, `{"columns": [], "rows": []}`)
		default:
			return false
		}
		return true
	}), "T")
	b.visit("#/cluster", "too many samples for a query")
	if n := asked.Load(); n != 1 {
		t.Errorf("samples were asked for %d times", n)
	}
	b.quiet("422")
}

// Tabs with incidents have names that tell them apart.
func TestTheTitleOfAnIncidentInABrowser(t *testing.T) {
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, nil), "T")
	b.visit("#/incident/"+open().ID, "Cost of web")
	if title := eval[string](b, "document.title"); title != "web on node-02 · quell" {
		t.Errorf("it is %q", title)
	}
	b.quiet()
}

// A machine that has become silent is shown before those that are calm.
func TestASilentMachineAmongManyInABrowser(t *testing.T) {
	var calm strings.Builder
	for i := range 60 {
		fmt.Fprintf(&calm, `{"machine": "calm-%02d", "last_seen": %d}, `, i, at)
	}
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/machines" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `[%s{"machine": "quiet-1", "last_seen": %d}]`, calm.String(), at.Add(-time.Hour))
		return true
	}), "T")
	b.until("it is shown", "document.querySelector('.places')?.innerText.includes('calm-00')")
	if text := eval[string](b, "document.querySelector('.places').innerText"); !strings.Contains(text, "quiet-1") || !strings.Contains(text, "silent for 6") {
		t.Errorf("the machines are %q", text)
	}
	b.quiet()
}

// What a machine's tasks use now is without those that have ended, and without what stands in for the machine,
// whose usage is that of all tasks.
func TestUsageOfAMachineInABrowser(t *testing.T) {
	b := browse(t, pagesOf(t, &oneAgent{inc: open()}, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v1/tasks" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		const task = `{"machine": "node-02", "task": %q, "job": "j", "class": "batch", "cpu": %g, "capped": %t, "at": %d, "costs": [{"signal": %q, "cost": 0.3, "mean": 0.05, "limit": 0.1}]}`
		_, _ = fmt.Fprintf(w, "["+task+","+task+","+task+"]", "/run", 1.5, false, at, "runq", "/ended", 2.5, true, at.Add(-4*time.Minute), "runq", "(machine)", 1.75, false, at, "steal")
		return true
	}), "T")
	for _, page := range [][3]string{{"#/machine/node-02", "CPUs used by tasks", "1.50"}, {"#/machine/node-02", "over their threshold", "2"}, {"#/machine/node-02", "tasks", "2"}, {"#/now", "capped", "0"}, {"#/now", "over their threshold", "2"}} {
		b.visit(page[0], "last seen")
		if got := eval[string](b, `[...document.querySelectorAll('.stat')].find(e => e.innerText.includes(`+quote(page[1])+`)).querySelector('b').innerText`); got != page[2] {
			t.Errorf("%s: %s %s, want %s", page[0], got, page[1], page[2])
		}
	}
	b.quiet()
}

// A cap whose lease is over is not shown as one that holds, also if its machine has not said that it ended.
func TestALeaseThatIsOverInABrowser(t *testing.T) {
	for _, x := range []struct {
		until sample.Millis
		holds bool
	}{{at.Add(-time.Minute), false}, {at.Add(time.Hour), true}} {
		inc := open()
		inc.Rounds = []*incident.Round{{ID: "c1", Capped: plan.Capped{Suspect: inc.Suspects[0].Task, Rate: 0.1}, From: at.Add(-5 * time.Minute), Until: x.until, By: "quell"}}
		b := browse(t, pagesOf(t, &oneAgent{inc: inc}, nil), "T")
		b.visit("#/incident/"+inc.ID, "Caps and trials")
		said := strings.Contains(eval[string](b, "document.querySelector('.try').innerText"), "is capped to 0.1")
		listed := strings.Contains(eval[string](b, "document.querySelector('[aria-label=\"Caps and trials\"] tbody').innerText"), "running")
		if offered := eval[bool](b, "!!document.querySelector('[data-key=cap]')"); said != x.holds || listed != x.holds || offered == x.holds {
			t.Errorf("until %v: said that it is capped: %t, listed as running: %t, another cap is offered: %t", x.until, said, listed, offered)
		}
		b.quiet()
	}
}

// A cap and its outcome count for the job of the task that was capped.
func TestCapsOfSeveralSuspectsInABrowser(t *testing.T) {
	inc := open()
	for i, outcome := range []plan.Outcome{plan.TruePositive, plan.Noise} {
		inc.Rounds = append(inc.Rounds, &incident.Round{ID: fmt.Sprint("c", i), Capped: plan.Capped{Suspect: inc.Suspects[i].Task, Rate: 0.1}, From: at.Add(-5 * time.Minute), Until: at, Ended: at, By: "quell", Outcome: outcome})
	}
	b := browse(t, pagesOf(t, &oneAgent{inc: inc}, nil), "T")
	for _, p := range [][3]string{{"#/job/web", "Worst neighbours", "1 of 1"}, {"#/job/encode", "Jobs that it hurts", "1 of 1"}, {"#/job/log-indexer", "Jobs that it hurts", "0 of 1"}} {
		b.visit(p[0], p[1])
		if text := eval[string](b, "document.querySelector('main .columns').innerText"); !strings.Contains(text, p[2]) {
			t.Errorf("%s: no %s in %q", p[0], p[2], text)
		}
	}
	b.quiet()
}

// What is entered for a canned query is a literal, whatever it consists of.
func TestParametersInABrowser(t *testing.T) {
	w := invent(t, 2, 12, time.Minute)
	b := browse(t, w.url, w.viewer)
	b.visit("#/sql?canned=worst-antagonists", "worst antagonists of a job")
	eval[bool](b, `(i => { i.value = "a$'b$&c$$d"; i.dispatchEvent(new Event('input')); return true; })(document.querySelector('main input[name=job]'))`)
	sql := eval[string](b, "document.querySelector('#sql').value")
	if n := strings.Count(sql, "victim_job = 'a$''b$&c$$d'"); n != 2 || strings.Contains(sql, "$job") {
		t.Errorf("the query is %s", sql)
	}
	b.quiet()
}

// Who does not want to enter a token now is not asked again whenever the page is read.
func TestATokenIsAskedForOnceInABrowser(t *testing.T) {
	w := invent(t, 2, 12, time.Minute)
	b := browse(t, w.url, "")
	b.until("a token is asked for", "document.querySelector('dialog #token')")
	eval[bool](b, `([...document.querySelectorAll('dialog button')].find(e => e.innerText === 'Cancel').click(), window.refused = 0, addEventListener('quell-token', () => { window.refused++; }), document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true})), true)`)
	b.until("a request is refused", "window.refused > 0")
	if eval[bool](b, "!!document.querySelector('dialog[open]')") {
		t.Error("it is asked for again")
	}
	eval[bool](b, "(document.querySelector('#who').click(), true)")
	b.until("it is asked for on request", "document.querySelector('dialog[open] #token')")
	b.quiet("401")
}

// A query that was typed is there when the zone is changed.
func TestATypedQueryInABrowser(t *testing.T) {
	w := invent(t, 2, 12, time.Minute)
	b := browse(t, w.url, w.viewer)
	b.visit("#/sql", "One SELECT")
	eval[bool](b, `(s => { window.before = s; s.value = 'SELECT 4711'; s.dispatchEvent(new Event('change')); document.querySelector('#zone').click(); return true; })(document.querySelector('#sql'))`)
	b.until("the page is made again", "document.querySelector('#sql') && document.querySelector('#sql') !== window.before")
	if text := eval[string](b, "document.querySelector('#sql').value"); text != "SELECT 4711" {
		t.Errorf("it is %q", text)
	}
	b.quiet()
}

// The address of a query over all times is not that of one over the last day.
func TestTheAddressOfAQueryInABrowser(t *testing.T) {
	w := invent(t, 2, 12, time.Minute)
	b := browse(t, w.url, w.viewer)
	b.visit("#/sql", "One SELECT")
	const files = "document.querySelectorAll('main select')[1]"
	eval[bool](b, "(s => { s.selectedIndex = 3; s.dispatchEvent(new Event('change')); window.before = s; document.querySelector('main button.primary').click(); return true; })("+files+")")
	b.until("it is answered", "document.querySelector('main [aria-label=Result]')")
	eval[bool](b, "(document.querySelector('#zone').click(), true)")
	b.until("the page is made again", files+" && "+files+" !== window.before")
	if text := eval[string](b, files+".selectedOptions[0].text"); text != "all times" {
		t.Errorf("it is of %q", text)
	}
	b.quiet()
}

// A list of the incidents of one job does not show those of others that begin meanwhile.
func TestEventsOfOthersInABrowser(t *testing.T) {
	w := invent(t, 4, 12, time.Minute)
	b := browse(t, w.url, w.viewer)
	b.visit("#/incidents?since=168h&job=checkout", "checkout")
	b.until("it is live", "document.querySelector('#live').innerText === 'live'")
	for i, job := range []string{"postgres", "checkout"} {
		inc := open()
		inc.ID, inc.Machine, inc.Victim = "inc-new-"+job, machineName(i), task(job, i, 1)
		w.record(&inc)
	}
	b.until("its own is shown", "document.querySelector('main').innerHTML.includes('inc-new-checkout')")
	if eval[bool](b, "document.querySelector('main').innerHTML.includes('inc-new-postgres')") {
		t.Error("another job's is shown too")
	}
	b.quiet()
}

// A machine's root reports an incident at times that no calendar has. The incidents of all others are shown.
func TestAttackTimesThatNoPageCanShowInABrowser(t *testing.T) {
	w := invent(t, 4, 12, time.Minute)
	const far = 1 << 62
	inc := open()
	inc.ID, inc.Machine, inc.Opened, inc.Began = "inc-far", machineName(3), far, -far
	inc.Latest = &plan.Analysis{Analysed: far}
	inc.Times = append([]sample.Millis{-far}, inc.Times[1:]...)
	inc.Rounds = []*incident.Round{{ID: "c1", Capped: plan.Capped{Suspect: inc.Suspects[0].Task, Rate: 0.1}, From: -far, Until: far, Ended: far}}
	w.record(&inc)
	b := browse(t, w.url, w.viewer)
	for _, p := range [][2]string{{"#/now", "held up by neighbours"}, {"#/incidents?since=168h", "thumbnailer"}, {"#/machine/node-04", "Tasks that share it"}, {"#/incident/inc-far", "out of order"}} {
		b.visit(p[0], p[1])
	}
	b.quiet()
}

// An incident's page that stays open says how long ago it ended, not how long ago that was when it was opened.
func TestAnEndedIncidentInABrowser(t *testing.T) {
	w := invent(t, 4, 12, time.Minute)
	inc := open()
	inc.Closed, inc.Updated = inc.Updated, at
	w.record(&inc)
	b := browse(t, w.url, w.viewer)
	b.visit("#/incident/"+inc.ID+"?machine=node-02", "It ended")
	const said = "document.querySelector('.try').innerText"
	first := eval[string](b, said)
	b.until("it counts", said+" !== "+quote(first))
	if now := eval[string](b, said); !strings.Contains(now, " ago, at 14:29:30 UTC, after 14 min.") {
		t.Errorf("it says %q", now)
	}
	b.quiet()
}

// Who goes through the tasks by keyboard stays at a task, also if a task above it leads to the same page, while
// data is read again.
func TestTheFocusStaysInABrowser(t *testing.T) {
	w := invent(t, 4, 24, time.Minute)
	b := browse(t, w.url, w.viewer)
	b.look(1280, 860, "light")
	b.until("it is shown", "document.querySelector('main').innerText.includes('held up')")
	const links = `[...document.querySelectorAll('[role=region][aria-label="Tasks"] td a')]`
	place := eval[int](b, `(all => { const i = all.findIndex((a, i) => all.slice(0, i).some(x => x.getAttribute('href') === a.getAttribute('href'))); all[i].focus({preventScroll: true}); return i; })(`+links+`)`)
	eval[bool](b, "(performance.clearMarks(), document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true})), true)")
	b.until("it is read again", "performance.getEntriesByName('quell-data').length > 0")
	if now := eval[int](b, links+".indexOf(document.activeElement)"); place < 1 || now != place {
		t.Errorf("the focus was on link %d and is on %d", place, now)
	}
	b.quiet()
}

// A time of summer that is looked at in winter has summer's zone.
func TestZonesInABrowser(t *testing.T) {
	w := invent(t, 2, 12, time.Minute)
	inc := open()
	inc.ID, inc.Began = "inc-summer", sample.At(noon.AddDate(0, -4, 0))
	w.record(&inc)
	b := browse(t, w.url, w.viewer)
	_, err := chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Europe/Berlin"})
	b.check("set the zone", err)
	b.until("it is shown", "document.querySelector('main').innerText.includes('held up')")
	eval[bool](b, "(document.querySelector('#zone').click(), true)")
	b.visit("#/incident/inc-summer", "bad since")
	titles := eval[[]string](b, "[...document.querySelectorAll('main dl time')].map(e => e.title)")
	if len(titles) < 2 || titles[0] != "2026-07-25 16:30:00 CEST" || !strings.HasSuffix(titles[1], " CET") {
		t.Errorf("times %q", titles)
	}
	b.quiet()
}

// Each task of those that were capped together has the time of the cap in its chart.
func TestACappedGroupInABrowser(t *testing.T) {
	w := invent(t, 2, 12, time.Minute)
	inc := open()
	inc.ID = "inc-group"
	inc.Rounds = []*incident.Round{{ID: "c1", Capped: plan.Capped{Suspect: inc.Suspects[0].Task, Rate: 0.1}, With: []plan.Capped{{Suspect: inc.Suspects[1].Task, Rate: 0.1}},
		From: at.Add(-5 * time.Minute), Until: at, By: "quell"}}
	w.record(&inc)
	b := browse(t, w.url, w.viewer)
	b.visit("#/incident/inc-group", "Usage of log-indexer")
	if n := eval[int](b, "[...document.querySelectorAll('figure.chart .legend')].filter(e => e.innerText.includes('capped')).length"); n != 3 {
		t.Errorf("%d charts have the cap, want the victim's and those of two suspects", n)
	}
	b.quiet()
}

// A screen reader is told once that data is old, not each second how old; of a result its size, not
// all of its rows.
func TestWhatIsReadOutInABrowser(t *testing.T) {
	w := invent(t, 2, 12, time.Minute)
	b := browse(t, w.url, w.viewer)
	b.until("it is live", "document.querySelector('#live').innerText === 'live' && document.querySelector('main h1')?.innerText.includes('held up')")
	eval[bool](b, `(window.told = 0, new MutationObserver(all => { window.told += all.filter(m => !m.target.closest?.('[aria-hidden]') && !m.target.parentElement?.closest('[aria-hidden]')).length; }).observe(document.querySelector('#stale'), {childList: true, characterData: true, subtree: true}), true)`)
	w.down.Store(true)
	eval[bool](b, "(document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true})), true)")
	b.until("the page says that it is stale", "document.querySelector('#stale').innerText.includes('does not answer')")
	first, told := eval[string](b, "document.querySelector('#stale .age').innerText"), eval[int](b, "window.told")
	b.until("it says how old", "document.querySelector('#stale .age').innerText !== "+quote(first))
	if n := eval[int](b, "window.told"); told == 0 || n != told {
		t.Errorf("what is read out has changed %d times, and %d times when the age did", told, n-told)
	}
	w.down.Store(false)
	eval[bool](b, "(document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'r', bubbles: true})), true)")
	b.visit("#/sql", "One SELECT")
	eval[bool](b, `(document.querySelector('#sql').value = 'SELECT range FROM range(7)', document.querySelector('main button.primary').click(), true)`)
	b.until("its size is told", "document.querySelector('#said').innerText.startsWith('7 rows in')")
	if n := eval[int](b, "document.querySelectorAll('main [aria-live] table').length"); n != 0 {
		t.Error("all rows are read out")
	}
}

// A tab that was opened before the server was upgraded shows pages that it has not shown yet: it takes the
// new files.
func TestAnUpgradeInABrowser(t *testing.T) {
	old, err := of(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	tree := fstest.MapFS{"web/more.js": {Data: []byte("// of the next version")}}
	if err := fs.WalkDir(web, "web", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		tree[name] = &fstest.MapFile{Data: text}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	next, err := of(tree)
	if err != nil {
		t.Fatal(err)
	}
	var now atomic.Pointer[Handler]
	now.Store(old)
	pages := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { now.Load().ServeHTTP(w, r) })
	s := httptest.NewServer(local.New(local.Options{Agent: &oneAgent{inc: open()}, Pages: pages, Token: "T", Poll: time.Second}))
	t.Cleanup(s.Close)
	b := browse(t, s.URL, "T")
	b.until("it is shown", "document.querySelector('main h1')?.innerText.includes('held up')")
	const files = "document.querySelector('script[type=module]').getAttribute('src')"
	first := eval[string](b, files)
	now.Store(next)
	eval[bool](b, "(location.hash = '#/incidents', true)")
	taken, end := false, time.Now().Add(time.Minute)
	quelltest.Until(t, "the new files are taken", func() bool {
		second, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](files))
		taken = err == nil && second != first // while the tab is loaded again there is nothing to evaluate
		return taken || time.Now().After(end)
	})
	if !taken {
		t.Fatalf("the files are still those of %s", first)
	}
	b.until("the page is shown", "document.querySelector('main')?.innerText.includes('encode')")
	b.quiet("404")
}
