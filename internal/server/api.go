package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
	"github.com/quell-dev/quell/internal/store"
	"github.com/quell-dev/quell/internal/store/duck"
	"github.com/quell-dev/quell/internal/wire"
)

// route is one of the API's: what the mux, the guard and the OpenAPI document
// know of it.
type route struct {
	method, path string
	scope        Scope
	summary      string
	params       []param // of the query string
	in, out      any     // examples of the bodies' types; nil: none
	media        string  // of the answer, application/json if empty
	serve        func(*Server, http.ResponseWriter, *request) error
}

type param struct{ name, help string }

var spanParams = []param{{"since", "time, day, or how long ago (24h)"}, {"until", "the same"}}

// table is the whole API.
func table() []route {
	return []route{
		{method: "GET", path: "/healthz", summary: "whether the server works; 503 if not", out: Health{}, serve: (*Server).healthz},
		{method: "GET", path: "/readyz", summary: "whether it takes messages and answers; 503 if not", out: Health{}, serve: (*Server).readyz},
		{method: "GET", path: "/metrics", scope: Viewer, summary: "the server's own metrics, for Prometheus", media: "text/plain", serve: (*Server).serveMetrics},
		{method: "GET", path: "/openapi.json", summary: "this document", serve: (*Server).openapi},
		{method: "GET", path: "/v1/specs", scope: Viewer, summary: "what jobs normally cost, newest versions",
			params: []param{{"job", "only this job's"}, {"platform", "only this platform's"}}, out: []SpecView{}, serve: (*Server).listSpecs},
		{method: "POST", path: "/v1/specs/compute", scope: Operator, summary: "compute all specs now", in: Reason{}, out: Done{}, serve: (*Server).computeSpecs},
		{method: "GET", path: "/v1/incidents", scope: Viewer, summary: "incidents as they stand, newest first, at most 1000",
			params: append([]param{{"job", "only those whose victim is of this job"}, {"open", "true: only those that are not closed"}}, spanParams...), out: []json.RawMessage{}, serve: (*Server).listIncidents},
		{method: "GET", path: "/v1/machines", scope: Viewer, summary: "machines that ever sent something, with what was taken of them", out: []duck.Machine{}, serve: (*Server).listMachines},
		{method: "GET", path: "/v1/segments", scope: Viewer, summary: "the store's files that count now", params: spanParams, out: SegmentList{}, serve: (*Server).listSegments},
		{method: "GET", path: "/v1/queries", scope: Viewer, summary: "the canned queries", out: []Canned{}, serve: (*Server).listCanned},
		{method: "POST", path: "/v1/query", scope: Viewer, summary: "one SELECT, or a canned query, over the store", in: QueryRequest{}, out: duck.Answer{}, serve: (*Server).query},
		{method: "GET", path: "/v1/events", scope: Viewer, summary: "incidents, actions and specs as they come", media: "text/event-stream", serve: (*Server).events},
		{method: "POST", path: "/v1/commands", scope: Operator, summary: "a command to a machine's agent: one of cap, uncap, protect, enforcement", in: CommandRequest{}, out: CommandReply{}, serve: (*Server).command},
	}
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, rt := range table() {
		mux.HandleFunc(rt.method+" "+rt.path, s.guard(&rt))
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fail(w, &httpError{http.StatusNotFound, "there is nothing here", "see /openapi.json"}, s)
	})
	return mux
}

// Health is how the server is.
type Health struct {
	OK       bool     `json:"ok"`
	Version  string   `json:"version"`
	Degraded []string `json:"degraded,omitempty"` // what does not work as it should
}

func (s *Server) health() Health {
	h := Health{OK: true, Version: s.Version}
	if err := s.Store.Err(); err != nil {
		h.OK, h.Degraded = false, append(h.Degraded, err.Error())
	}
	s.specs.mu.Lock()
	defer s.specs.mu.Unlock()
	if s.specs.failed != nil {
		h.Degraded = append(h.Degraded, "specs are as of "+s.specs.at.Time().Format(time.RFC3339)+" or older: "+s.specs.failed.Error())
	}
	return h
}

func (s *Server) healthz(w http.ResponseWriter, _ *request) error { return healthReply(w, s.health()) }

func (s *Server) readyz(w http.ResponseWriter, _ *request) error {
	h := s.health()
	if !s.ready.Load() {
		h.OK, h.Degraded = false, append(h.Degraded, "it starts, or stops")
	}
	return healthReply(w, h)
}

func healthReply(w http.ResponseWriter, h Health) error {
	status := http.StatusOK
	if !h.OK {
		status = http.StatusServiceUnavailable
	}
	return reply(w, status, h)
}

// SpecView is a spec for people and programs.
type SpecView struct {
	spec.Spec
	Version int64         `json:"version"`
	Last    sample.Millis `json:"last"` // newest sample in it
}

func (s *Server) listSpecs(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	views := []SpecView{}
	s.specs.mu.Lock()
	for _, v := range s.specs.by {
		if (q.Get("job") == "" || q.Get("job") == v.Job) && (q.Get("platform") == "" || q.Get("platform") == v.Platform) {
			views = append(views, SpecView{SpecOf(&v), v.Version, sample.Millis(v.Last)})
		}
	}
	s.specs.mu.Unlock()
	slices.SortFunc(views, func(a, b SpecView) int {
		return slices.Compare([]string{string(a.Job), string(a.Platform), string(a.Signal), a.Variant}, []string{string(b.Job), string(b.Platform), string(b.Signal), b.Variant})
	})
	return reply(w, http.StatusOK, views)
}

// Reason is why an operator acts.
type Reason struct {
	Why string `json:"why"`
}

// Done says what a request did.
type Done struct {
	Message string `json:"message"`
}

// acting carries out what an operator asked for, and has it in the audit log,
// on disk, before the answer.
func (s *Server) acting(r *request, rt, target, why string, do func() error) error {
	if strings.TrimSpace(why) == "" {
		return bad("why: want a reason, for the audit log")
	}
	err := do()
	outcome := "done"
	if err != nil {
		outcome = err.Error()
	}
	s.audit(r, &route{method: r.Method, path: rt}, target, why, outcome)
	if bad := s.Store.Flush(); bad != nil {
		return fmt.Errorf("keep the audit entry: %w", errors.Join(bad, err))
	}
	return err
}

func (s *Server) computeSpecs(w http.ResponseWriter, r *request) error {
	var in Reason
	if err := body(r, &in); err != nil {
		return err
	}
	if err := s.acting(r, "/v1/specs/compute", "", in.Why, func() error { return s.learn(r.Context()) }); err != nil {
		return err
	}
	s.specs.mu.Lock()
	changed := s.specs.changed
	s.specs.mu.Unlock()
	return reply(w, http.StatusOK, Done{fmt.Sprintf("%d specs changed", changed)})
}

func (s *Server) listIncidents(w http.ResponseWriter, r *request) error {
	q := r.URL.Query()
	from, to, err := span(q.Get("since"), q.Get("until"), s.now())
	if err != nil {
		return err
	}
	where := []string{"true"}
	if job := q.Get("job"); job != "" {
		where = append(where, "victim_job = "+literal(job))
	}
	if q.Get("open") == "true" {
		where = append(where, "closed IS NULL")
	}
	if from > 0 {
		where = append(where, fmt.Sprintf("updated >= make_timestamptz(%d)", int64(from)*1000))
	}
	if to > 0 {
		where = append(where, fmt.Sprintf("began <= make_timestamptz(%d)", int64(to)*1000))
	}
	// The segments' times are those of updates: an incident's newest is not left out.
	a, err := s.ask(r.Context(), "SELECT doc FROM incidents WHERE "+strings.Join(where, " AND ")+" ORDER BY updated DESC LIMIT 1000", from, 0)
	if err != nil {
		return err
	}
	docs := make([]json.RawMessage, 0, len(a.Rows))
	for _, row := range a.Rows {
		var doc [1]string
		if err := json.Unmarshal(row, &doc); err != nil {
			return fmt.Errorf("read incidents: %w", err)
		}
		if json.Valid([]byte(doc[0])) {
			docs = append(docs, json.RawMessage(doc[0]))
		}
	}
	return reply(w, http.StatusOK, docs)
}

// literal is a text in SQL.
func literal(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }

func (s *Server) listMachines(w http.ResponseWriter, _ *request) error {
	job, sn := s.job("", 0, 0)
	sn.Close()
	slices.SortFunc(job.Machines, func(a, b duck.Machine) int {
		return slices.Compare([]string{a.Machine, a.Stream, a.Boot}, []string{b.Machine, b.Stream, b.Boot})
	})
	if job.Machines == nil {
		job.Machines = []duck.Machine{}
	}
	return reply(w, http.StatusOK, job.Machines)
}

// SegmentList are the store's files at one commit.
type SegmentList struct {
	Generation uint64          `json:"generation"`
	Segments   []store.Segment `json:"segments"`
}

func (s *Server) listSegments(w http.ResponseWriter, r *request) error {
	from, to, err := span(r.URL.Query().Get("since"), r.URL.Query().Get("until"), s.now())
	if err != nil {
		return err
	}
	sn := s.Store.Snapshot(from, to)
	defer sn.Close()
	return reply(w, http.StatusOK, SegmentList{sn.Generation, append([]store.Segment{}, sn.Segments...)})
}

// QueryRequest is a query: SQL or the name of a canned one.
type QueryRequest struct {
	SQL    string            `json:"sql,omitempty"`
	Canned string            `json:"canned,omitempty"`
	Params map[string]string `json:"params,omitempty"` // of the canned one
	Since  string            `json:"since,omitempty"`  // samples from then on; it need not read older ones
	Until  string            `json:"until,omitempty"`
}

func (s *Server) query(w http.ResponseWriter, r *request) error {
	var in QueryRequest
	if err := body(r, &in); err != nil {
		return err
	}
	from, to, err := span(in.Since, in.Until, s.now())
	if err != nil {
		return err
	}
	text := in.SQL
	switch {
	case (in.SQL == "") == (in.Canned == ""):
		return bad("want sql, or the name of a canned query")
	case in.Canned != "":
		if text, err = cannedSQL(in.Canned, in.Params); err != nil {
			return err
		}
	}
	a, err := s.ask(r.Context(), text, from, to)
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, a)
}

// CommandRequest is an operator's command. One of Cap, Uncap, Protect and
// Enforcement says what to do.
type CommandRequest struct {
	Machine     string  `json:"machine"`
	Why         string  `json:"why"`
	Cap         *CapDo  `json:"cap,omitempty"`
	Uncap       *TaskDo `json:"uncap,omitempty"`
	Protect     *TaskDo `json:"protect,omitempty"`
	Unprotect   *TaskDo `json:"unprotect,omitempty"`
	Enforcement *ModeDo `json:"enforcement,omitempty"`
}

// CapDo holds a task to a rate.
type CapDo struct {
	Task string  `json:"task"`
	Rate float64 `json:"rate"` // CPU-s/s
	For  string  `json:"for"`  // "5m"
}

// TaskDo names a task.
type TaskDo struct {
	Task string `json:"task"`
}

// ModeDo is off, advise or on.
type ModeDo struct {
	Mode string `json:"mode"`
}

// CommandReply is what a machine made of a command.
type CommandReply struct {
	Machine string `json:"machine"`
	OK      bool   `json:"ok"`
	Message string `json:"message"`
	Cap     string `json:"cap,omitempty"` // its ID, if one was set
}

// commandTime is how long a machine may take.
const commandTime = 10 * time.Second

func (s *Server) command(w http.ResponseWriter, r *request) error {
	var in CommandRequest
	if err := body(r, &in); err != nil {
		return err
	}
	c, target, err := in.command()
	if err != nil {
		return err
	}
	var answer *wire.Reply
	err = s.acting(r, "/v1/commands", target, in.Why, func() error {
		if s.Commander == nil {
			return &httpError{http.StatusServiceUnavailable, "the server has no connection to machines", "set bus.listen or bus.url"}
		}
		now := s.Now()
		c.Who, c.Why, c.Id, c.Expires = r.caller.name, in.Why, fmt.Sprintf("%s-%d", r.caller.name, now.UnixNano()), now.Add(commandTime).UnixMilli()
		ctx, cancel := context.WithTimeout(r.Context(), commandTime)
		defer cancel()
		var err error
		if answer, err = s.Commander.Command(ctx, in.Machine, c); err != nil {
			return &httpError{http.StatusBadGateway, err.Error(), "see /v1/machines: its agent may be down, or cut off"}
		}
		if !answer.Ok {
			return &httpError{http.StatusConflict, answer.Message, ""}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, CommandReply{answer.Machine, answer.Ok, answer.Message, answer.Cap})
}

// command is what goes over the wire, and what the audit log says it is about.
func (in *CommandRequest) command() (*wire.Command, string, error) {
	c := &wire.Command{}
	n := 0
	var what, task string
	set := func(name, of string) { what, task = name, of; n++ }
	if in.Cap != nil {
		set("cap", in.Cap.Task)
		d, err := time.ParseDuration(in.Cap.For)
		if err != nil || d < time.Second || d > 24*time.Hour {
			return nil, "", bad("cap.for: %.40q: want a duration from 1s to 24h", in.Cap.For)
		}
		if !(in.Cap.Rate >= 0.001 && in.Cap.Rate <= 1024) {
			return nil, "", bad("cap.rate: %g: want 0.001 to 1024 CPU-s/s", in.Cap.Rate)
		}
		c.Do = &wire.Command_Cap_{Cap: &wire.Command_Cap{Task: in.Cap.Task, Rate: in.Cap.Rate, ForMs: d.Milliseconds()}}
	}
	if in.Uncap != nil {
		set("uncap", in.Uncap.Task)
		c.Do = &wire.Command_Uncap_{Uncap: &wire.Command_Uncap{Task: in.Uncap.Task}}
	}
	if in.Protect != nil {
		set("protect", in.Protect.Task)
		c.Do = &wire.Command_Protect_{Protect: &wire.Command_Protect{Task: in.Protect.Task}}
	}
	if in.Unprotect != nil {
		set("unprotect", in.Unprotect.Task)
		c.Do = &wire.Command_Protect_{Protect: &wire.Command_Protect{Task: in.Unprotect.Task, Off: true}}
	}
	if in.Enforcement != nil {
		set("enforcement", in.Enforcement.Mode)
		if !slices.Contains([]string{"off", "advise", "on"}, in.Enforcement.Mode) {
			return nil, "", bad("enforcement.mode: %.40q: want off, advise or on", in.Enforcement.Mode)
		}
		c.Do = &wire.Command_Enforcement_{Enforcement: &wire.Command_Enforcement{Mode: in.Enforcement.Mode}}
	}
	switch {
	case in.Machine == "":
		return nil, "", bad("machine: want a name")
	case n != 1:
		return nil, "", bad("want one of cap, uncap, protect, unprotect, enforcement")
	case task == "":
		return nil, "", bad("%s.task: want the task's name", what)
	}
	return c, strings.Join([]string{in.Machine, what, task}, " "), nil
}
