// Package local shows the dashboard of one machine: the same pages as quell-server's, and as
// much of its API as they need, answered from the agent's socket. There is no store, so there
// is no history beyond the agent's log of incidents, and no SQL.
package local

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"mime"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// Agent is the agent of this machine (*api.Client).
type Agent interface {
	Status(ctx context.Context) (api.Status, error)
	Tasks(ctx context.Context) ([]api.TaskView, error)
	Incidents(ctx context.Context, q logbook.Query) (api.Incidents, error)
	Incident(ctx context.Context, id string) (incident.Record, error)
	Command(ctx context.Context, c command.Command) (api.Done, error)
}

// Options are the parts of a Handler. All are required.
type Options struct {
	Agent Agent
	Pages http.Handler
	// Token is what a browser must send: every user of the machine can reach the address, and
	// only some may open the agent's socket.
	Token string
	// Poll is how often the agent is asked for changes while a page is open.
	Poll time.Duration
}

// most is the largest request, in bytes, and maxIncidents the longest list.
const (
	most         = 64 << 10
	maxIncidents = 1000
)

// lately is how old a change may be that a look finds, much longer than from one look to the next. The
// agent reads each incident that it returns from its log.
const lately = 5 * time.Minute

// patience is how long a browser may let the stream of events wait.
const patience = 30 * time.Second

// refused is an error answer.
type refused struct {
	status int
	api.Failure
}

func (r *refused) Error() string { return r.Failure.Error }

type handler struct {
	Options
	mux     *http.ServeMux
	origins *http.CrossOriginProtection
}

// New returns what answers the browser.
func New(o Options) http.Handler {
	h := &handler{o, http.NewServeMux(), http.NewCrossOriginProtection()}
	get(h, cluster.PathCaller, h.caller)
	get(h, cluster.PathTasks, h.tasks)
	get(h, cluster.PathSpecs, h.specs)
	get(h, cluster.PathMachines, h.machines)
	get(h, cluster.PathIncidents, h.incidents)
	h.mux.HandleFunc("POST "+cluster.PathCommands, h.guard(h.command))
	h.mux.HandleFunc("GET /v1/events", h.guard(h.events))
	h.mux.HandleFunc("/v1/", h.guard(func(http.ResponseWriter, *http.Request) error {
		return &refused{http.StatusNotFound, api.Failure{Error: "an agent does not have this", Remedy: "use quell-server"}}
	}))
	h.mux.Handle("GET /{$}", o.Pages)
	h.mux.Handle("GET /ui/", o.Pages)
	return h.mux
}

// get adds a route that answers with JSON.
func get[T any](h *handler, path string, of func(*http.Request) (T, error)) {
	h.mux.HandleFunc("GET "+path, h.guard(func(w http.ResponseWriter, r *http.Request) error {
		v, err := of(r)
		if err != nil {
			return err
		}
		api.Reply(w, http.StatusOK, v)
		return nil
	}))
}

// guard admits requests with the token that are for this machine's address and not from
// another site's page, and answers errors.
func (h *handler) guard(serve func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		r.Body = http.MaxBytesReader(w, r.Body, most)
		err := h.admit(r)
		if err == nil {
			err = serve(w, r)
		}
		if err == nil {
			return
		}
		var own *refused
		var said *api.RefusedError
		var unreached *api.UnreachableError
		switch {
		case errors.As(err, &own):
			api.Fail(w, own.status, own, own.Remedy)
		case errors.As(err, &said):
			api.Fail(w, said.Status, said, said.Remedy)
		case errors.As(err, &unreached):
			api.Fail(w, http.StatusBadGateway, err, unreached.Remedy())
		default:
			api.Fail(w, http.StatusBadGateway, err, "")
		}
	}
}

func (h *handler) admit(r *http.Request) error {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	acting := *r
	acting.Method = http.MethodPost // reading is refused to other sites too
	secret, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	why := "unknown token"
	if secret == "" {
		why = "a token is required"
	}
	switch kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); {
	case host != "localhost" && (ip == nil || !ip.IsLoopback()):
		return &refused{http.StatusForbidden, api.Failure{Error: "the request names another host", Remedy: "open the address that quell ui prints"}}
	case h.origins.Check(&acting) != nil:
		return &refused{http.StatusForbidden, api.Failure{Error: "the request comes from a page of another site"}}
	case subtle.ConstantTimeCompare([]byte(secret), []byte(h.Token)) != 1:
		return &refused{http.StatusUnauthorized, api.Failure{Error: why, Remedy: "quell ui has printed it"}}
	case r.Method == http.MethodPost && (err != nil || kind != "application/json"):
		return &refused{http.StatusUnsupportedMediaType, api.Failure{Error: "the request's Content-Type is not application/json"}}
	}
	return nil
}

func (h *handler) caller(r *http.Request) (cluster.Caller, error) {
	st, err := h.Agent.Status(r.Context())
	return cluster.Caller{Name: "local", Scope: "operator", Version: st.Version, Now: st.Now, Machine: st.Machine}, err
}

// fits reports whether a value is the one that is asked for, if one is.
func fits(r *http.Request, key, value string) bool {
	want := r.URL.Query().Get(key)
	return want == "" || want == value
}

func (h *handler) tasks(r *http.Request) ([]cluster.Task, error) {
	st, err := h.Agent.Status(r.Context())
	if err != nil {
		return nil, err
	}
	views, err := h.Agent.Tasks(r.Context())
	all := []cluster.Task{}
	for _, v := range views {
		if !fits(r, "job", string(v.Job)) || !fits(r, "machine", st.Machine) {
			continue
		}
		t := cluster.Task{Machine: st.Machine, Task: v.Name.Text(), Job: v.Job, Class: v.Class.String(), CPU: v.CPU, Capped: v.Capped, At: st.Now,
			Costs: []cluster.TaskCost{}} // a list also before the task's first window: the pages go through it
		for _, c := range v.Costs {
			cost := cluster.TaskCost{Signal: c.Signal, Cost: c.Cost, Mean: incident.Value(math.NaN()), Limit: c.Limit}
			if c.Spec.State == spec.Ready || c.Spec.Provisional {
				cost.Mean = incident.Value(c.Spec.Mean)
			}
			t.Costs = append(t.Costs, cost)
		}
		all = append(all, t)
	}
	return all, err
}

// specs are those by which the job's tasks are judged.
func (h *handler) specs(r *http.Request) ([]cluster.Spec, error) {
	views, err := h.Agent.Tasks(r.Context())
	all := []cluster.Spec{}
	seen := map[spec.Key]bool{}
	for _, v := range views {
		for _, c := range v.Costs {
			if !fits(r, "job", string(v.Job)) || c.Spec.Key == (spec.Key{}) || seen[c.Spec.Key] {
				continue
			}
			seen[c.Spec.Key] = true
			all = append(all, cluster.Spec{Spec: c.Spec, Last: c.Spec.Updated, Machines: 1, Threshold: c.Limit})
		}
	}
	return all, err
}

func (h *handler) machines(r *http.Request) ([]cluster.Machine, error) {
	st, err := h.Agent.Status(r.Context())
	return []cluster.Machine{{Machine: st.Machine, LastSeen: st.Now, Lives: 1}}, err
}

func (h *handler) incidents(r *http.Request) ([]incident.Record, error) {
	q := r.URL.Query()
	all := []incident.Record{}
	if id := q.Get("id"); id != "" {
		inc, err := h.Agent.Incident(r.Context(), id)
		var none *api.RefusedError
		if errors.As(err, &none) && none.Status == http.StatusNotFound {
			return all, nil
		}
		return append(all, inc), err
	}
	st, err := h.Agent.Status(r.Context())
	if err != nil {
		return nil, err
	}
	since := sample.Millis(0)
	if text := q.Get("since"); text != "" {
		var ok bool
		if since, ok = sample.ParseTime(text, st.Now); !ok {
			return nil, &refused{http.StatusBadRequest, api.Failure{Error: fmt.Sprintf("since: %.40q is no time", text)}}
		}
	}
	found, err := h.Agent.Incidents(r.Context(), logbook.Query{Since: since, Open: q.Get("open") == "true", Limit: maxIncidents})
	for _, inc := range slices.Backward(found.Incidents) { // newest first
		named := q.Get("suspect") == ""
		for _, f := range inc.Named() {
			named = named || string(f.Suspect.Job) == q.Get("suspect")
		}
		for _, x := range inc.Rounds {
			for _, c := range x.Tasks() {
				named = named || string(c.Suspect.Job) == q.Get("suspect")
			}
		}
		if named && fits(r, "job", string(inc.Victim.Job)) && fits(r, "machine", inc.Machine) {
			all = append(all, inc)
		}
	}
	return all, err
}

func (h *handler) command(w http.ResponseWriter, r *http.Request) error {
	var c cluster.Command
	if err := api.Decode(r.Body, &c); err != nil {
		return &refused{http.StatusBadRequest, api.Failure{Error: err.Error()}}
	}
	if err := c.Validate(); err != nil {
		return &refused{http.StatusBadRequest, api.Failure{Error: err.Error()}}
	}
	st, err := h.Agent.Status(r.Context())
	if err != nil {
		return err
	}
	if !c.Cluster && c.Machine != st.Machine {
		return &refused{http.StatusNotFound, api.Failure{Error: fmt.Sprintf("this is %s, not %.80s", st.Machine, c.Machine)}}
	}
	done, err := h.Agent.Command(r.Context(), c.Command)
	if err != nil {
		return err
	}
	api.Reply(w, http.StatusOK, cluster.Replies{Replies: []cluster.Reply{{Machine: st.Machine, OK: true, Message: done.Message, Cap: done.ID, Tasks: done.Tasks, Refused: done.Refused}}, Silent: []string{}})
	return nil
}

// events tells of incidents that have changed, as quell-server does. The first look only
// notes what there is.
func (h *handler) events(w http.ResponseWriter, r *http.Request) error {
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // else the limit for reading requests ends it; tests have none
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	ticks := time.NewTicker(h.Poll)
	defer ticks.Stop()
	var known map[string]sample.Millis
	for first := true; ; first = false {
		text := ": still here\n\n"
		st, err := h.Agent.Status(r.Context())
		if err != nil {
			return nil // the browser asks again, and is told why
		}
		found, err := h.Agent.Incidents(r.Context(), logbook.Query{Since: st.Now.Add(-lately), Limit: maxIncidents})
		if err != nil {
			return nil
		}
		present := make(map[string]sample.Millis, len(found.Incidents))
		for _, inc := range found.Incidents {
			if present[inc.ID] = inc.Updated; !first && known[inc.ID] != inc.Updated {
				text += event(&inc)
			}
		}
		known = present
		_ = out.SetWriteDeadline(time.Now().Add(patience))
		if _, err := fmt.Fprint(w, text); err != nil || out.Flush() != nil {
			return nil // the browser has gone
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-ticks.C:
		}
	}
}

// event is an incident's event as quell-server sends it.
func event(inc *incident.Record) string {
	e := map[string]any{"machine": inc.Machine, "id": inc.ID, "kind": inc.Kind.String(), "signal": inc.Signal, "victim_job": inc.Victim.Job, "victim_task": inc.Victim.Name.Text(),
		"suspect_task": "", "outcome": inc.Outcome, "updated": inc.Updated, "closed": nil}
	if s := inc.Antagonist(); s != nil {
		e["suspect_task"] = s.Name.Text()
	}
	if inc.Closed != 0 {
		e["closed"] = inc.Closed
	}
	data, err := json.Marshal(e)
	if err != nil {
		return "" // cannot happen: plain values
	}
	return fmt.Sprintf("event: incident\ndata: %s\n\n", data)
}
