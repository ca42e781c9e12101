package server

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/certificate"
)

// route is a route of the API, as used by the mux, the guard and the OpenAPI document.
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

var spanParams = []param{{"since", "time, day, or how long ago (24h)"}, {"until", "like since"}}

// table is the whole API.
func table() []route {
	return []route{
		{method: "GET", path: "/healthz", summary: "whether the server works; 503 if it has to be restarted. What is impaired is told to callers with a token", out: Health{}, serve: (*Server).healthz},
		{method: "GET", path: "/readyz", summary: "whether it accepts messages and requests; 503 if not", out: Health{}, serve: (*Server).readyz},
		{method: "GET", path: "/metrics", scope: Viewer, summary: "the server's own metrics, for Prometheus", media: "text/plain", serve: (*Server).serveMetrics},
		{method: "GET", path: "/openapi.json", summary: "this document", serve: (*Server).openapi},
		{method: "GET", path: cluster.PathCaller, scope: Viewer, summary: "who asks: the token's name and scope, and the server's version and time", out: cluster.Caller{}, serve: (*Server).whoAsks},
		{method: "GET", path: cluster.PathTasks, scope: Viewer, summary: "tasks with their newest samples, by machine and name; those of the last 10 minutes unless since says otherwise",
			params: []param{{"machine", "only tasks of this machine"}, {"job", "only tasks of this job"}, spanParams[0]}, out: []cluster.Task{}, serve: (*Server).listTasks},
		{method: "GET", path: cluster.PathSpecs, scope: Viewer, summary: "specs of jobs, newest versions; of more than 20,000 only those that were ever ready",
			params: []param{{"job", "only specs of this job"}, {"platform", "only specs of this platform"}}, out: []cluster.Spec{}, serve: (*Server).listSpecs},
		{method: "POST", path: cluster.PathCompute, scope: Operator, summary: "compute all specs now", in: cluster.Reason{}, out: cluster.Done{}, serve: (*Server).computeSpecs},
		{method: "POST", path: cluster.PathRevoke, scope: Operator, summary: "take back what was learnt from a machine, about a job, or both, and compute all specs without it", in: cluster.Revocation{}, out: cluster.Done{}, serve: (*Server).revokeSpecs},
		{method: "GET", path: cluster.PathIncidents, scope: Viewer, summary: "incidents in their current state, newest first, at most 1000; of more, each machine's newest 100 before others",
			params: append([]param{{"job", "only incidents whose victim is of this job"}, {"machine", "only incidents of this machine"}, {"id", "only incidents whose ID contains this text"}, {"open", "true: only open incidents"},
				{"suspect", "only incidents that name or cap a task of this job"}, {"brief", "true: without charts, findings and the latest analysis"}}, spanParams...), out: []json.RawMessage{}, serve: (*Server).listIncidents},
		{method: "GET", path: cluster.PathMachines, scope: Viewer, summary: "machines that sent a message in the last 30 days, with the newest batch and record of each", out: []cluster.Machine{}, serve: (*Server).listMachines},
		{method: "GET", path: cluster.PathDecisions, scope: Viewer, summary: "operators' decisions that stand, for all machines and for single ones, and how many machines have them", out: []cluster.Decision{}, serve: (*Server).listDecisions},
		{method: "GET", path: cluster.PathPairs, scope: Viewer, summary: "jobs that should not share a machine: pairs of victim and antagonist, the strongest evidence first, at most 1000",
			params: append([]param{{"job", "only pairs in which this job is the victim"}}, spanParams...), out: []cluster.Pair{}, serve: (*Server).listPairs},
		{method: "GET", path: "/v1/segments", scope: Viewer, summary: "the store's current files", params: spanParams, out: SegmentList{}, serve: (*Server).listSegments},
		{method: "GET", path: cluster.PathQueries, scope: Viewer, summary: "the canned queries", out: []cluster.Canned{}, serve: (*Server).listCanned},
		{method: "POST", path: cluster.PathQuery, scope: Viewer, summary: "one SELECT, or a canned query, over the store", in: cluster.Query{}, out: duck.Answer{}, serve: (*Server).query},
		{method: "GET", path: "/v1/events", scope: Viewer, summary: "events: new states of incidents, actions, changes of specs", media: "text/event-stream", serve: (*Server).events},
		{method: "POST", path: cluster.PathCommands, scope: Operator, summary: "decide for one machine or for all: one of cap, uncap, protect, unprotect, enforcement, pardon, reset", in: cluster.Command{}, out: cluster.Replies{}, serve: (*Server).command},
	}
}

func (s *Server) routes() *http.ServeMux {
	mux := http.NewServeMux()
	for _, rt := range table() {
		mux.HandleFunc(rt.method+" "+rt.path, s.guard(&rt))
	}
	if s.Pages != nil {
		serve := func(_ *Server, w http.ResponseWriter, r *request) error { s.Pages.ServeHTTP(w, r.Request); return nil }
		for _, path := range [...]string{"/{$}", "/ui/"} {
			mux.HandleFunc("GET "+path, s.guard(&route{method: "GET", path: path, serve: serve}))
		}
	}
	mux.HandleFunc("/", s.guard(&route{path: "/", serve: func(*Server, http.ResponseWriter, *request) error {
		return &httpError{http.StatusNotFound, "unknown path", "see /openapi.json"}
	}}))
	return mux
}

// Health is the state of the server.
type Health struct {
	OK       bool     `json:"ok"`
	Version  string   `json:"version"`
	Degraded []string `json:"degraded,omitempty"` // what is impaired; without a token only how much
}

func (s *Server) health() Health {
	h := Health{OK: true, Version: s.Version}
	if err := s.Store.Err(); err != nil { // a checkpoint that failed is repeated: what comes is stored all the same
		h.OK, h.Degraded = !errors.Is(err, store.ErrBroken), append(h.Degraded, err.Error())
	}
	if s.Check != nil {
		if err := s.Check(); err != nil {
			h.OK, h.Degraded = false, append(h.Degraded, err.Error())
		}
	}
	if err := s.Store.Stale(); err != nil {
		h.Degraded = append(h.Degraded, err.Error())
	}
	if err := s.Tokens.err(); err != nil {
		h.Degraded = append(h.Degraded, "tokens_file was not read again, the previous tokens stay valid: "+err.Error())
	}
	for _, f := range s.Certificates {
		if err := f.Err(); err != nil {
			h.Degraded = append(h.Degraded, err.Error())
		}
		h.Degraded = append(h.Degraded, certificate.Warnings(f.Expiries(), s.Now())...)
	}
	s.specs.mu.Lock()
	defer s.specs.mu.Unlock()
	if s.specs.failed != nil {
		h.Degraded = append(h.Degraded, "specs are from "+s.specs.at.Time().Format(time.RFC3339)+" or older: "+s.specs.failed.Error())
	}
	if s.specs.over {
		h.Degraded = append(h.Degraded, fmt.Sprintf("more than %d specs are stored, and the oldest were not loaded", maxSpecs))
	}
	return h
}

// ErrRestart is the remedy of what only a restart mends.
var ErrRestart = errors.New("restart quell-server")

// healthz answers 503 only if a restart helps: Kubernetes makes one then. The bus or the storage that is away for some
// minutes is back without it, and what is stored can be read meanwhile.
func (s *Server) healthz(w http.ResponseWriter, r *request) error {
	h := s.health()
	h.OK = !errors.Is(s.Store.Err(), store.ErrBroken) && (s.Check == nil || !errors.Is(s.Check(), ErrRestart))
	return healthReply(w, r, h)
}

func (s *Server) readyz(w http.ResponseWriter, r *request) error {
	h := s.health()
	if !s.ready.Load() {
		h.OK, h.Degraded = false, append(h.Degraded, "the server is starting or stopping")
	}
	return healthReply(w, r, h)
}

// healthReply answers with a state. Its texts have paths, addresses and words of files: a caller who may
// not read what the server knows gets their number.
func healthReply(w http.ResponseWriter, r *request, h Health) error {
	if n := len(h.Degraded); n > 0 && !r.caller.scope.allows(Viewer) {
		h.Degraded = []string{fmt.Sprintf("%d problems: a token is required to read them", n)}
	}
	status := http.StatusOK
	if !h.OK {
		status = http.StatusServiceUnavailable
	}
	return reply(w, status, h)
}

func (s *Server) listSpecs(w http.ResponseWriter, r *request) error {
	job, platform := r.URL.Query().Get("job"), r.URL.Query().Get("platform")
	fits := func(v *store.Spec) bool {
		return (job == "" || job == v.Job) && (platform == "" || platform == v.Platform)
	}
	n, judging := 0, 0
	s.specs.mu.Lock()
	for _, v := range s.specs.by {
		if fits(&v) {
			if n++; v.Version > 0 {
				judging++
			}
		}
	}
	s.specs.mu.Unlock()
	wanted, truncated := fits, n > max(maxUnfit, judging)
	if truncated {
		n, fits = judging, func(v *store.Spec) bool { return v.Version > 0 && wanted(v) }
	}
	return s.withMemory(r, int64(n)*rowBytes, func() error { return replyList(s, w, r, slices.Values(s.specViews(n, fits)), truncated) })
}

// maxUnfit is up to how many specs those are listed that are of too few tasks or machines to judge by: one
// machine can make up any number of them.
const maxUnfit = 20_000

// rowBytes is more than a spec, a segment or a source takes, without texts that are shared.
const rowBytes = 512

// specViews returns about n specs that fit, sorted.
func (s *Server) specViews(n int, fits func(*store.Spec) bool) []cluster.Spec {
	views := make([]cluster.Spec, 0, n)
	s.specs.mu.Lock()
	for _, v := range s.specs.by {
		if fits(&v) {
			views = append(views, cluster.Spec{Spec: dialect.SpecOf(&v), Version: v.Version, Last: sample.Millis(v.Last),
				Machines: v.Machines, MachinesOut: v.MachinesOut, LeftOut: machinesLeftOut(&v), Threshold: threshold(dialect.SpecOf(&v))})
		}
	}
	s.specs.mu.Unlock()
	slices.SortFunc(views, func(a, b cluster.Spec) int {
		return slices.Compare([]string{string(a.Job), string(a.Platform), string(a.Signal), a.Variant}, []string{string(b.Job), string(b.Platform), string(b.Signal), b.Variant})
	})
	return views
}

// runAudited executes an operator's request and writes it to the audit log on disk before the
// answer.
func (s *Server) runAudited(r *request, path, target, why string, outcome func() string, do func() error) error {
	if err := command.ValidateWhy(why); err != nil {
		return bad("%v", err)
	}
	err := do()
	a := r.caller.audit(r.Method + " " + path)
	a.Target, a.Why, a.Outcome = target, why, outcome()
	if err != nil {
		a.Outcome = err.Error()
	}
	s.record(a)
	if bad := s.Store.Flush(); bad != nil {
		return fmt.Errorf("store the audit entry: %w", errors.Join(bad, err))
	}
	return err
}

func (s *Server) computeSpecs(w http.ResponseWriter, r *request) error {
	var in cluster.Reason
	if err := body(r, &in); err != nil {
		return err
	}
	changed := func() string {
		s.specs.mu.Lock()
		defer s.specs.mu.Unlock()
		return fmt.Sprintf("%d specs changed", s.specs.changed)
	}
	ctx, cancel := s.lasting(r.Context())
	defer cancel()
	if err := s.runAudited(r, cluster.PathCompute, "", in.Why, changed, func() error { return s.learn(ctx) }); err != nil {
		return err
	}
	return reply(w, http.StatusOK, cluster.Done{Message: changed()})
}

// incidentsSQL selects the newest incidents, %[2]d with %[3]d bytes. If there are more, those of a machine beyond its
// newest 100, or beyond %[4]d bytes, are left out first: it reports as many as it likes, of 1 MB each. The second column
// says whether any is left out for its size. Only documents that are listed are held: those of all would take more memory
// than a query may have.
const incidentsSQL = `WITH found AS (
  SELECT machine, id, updated, row_number() OVER (PARTITION BY machine ORDER BY updated DESC) > 100 AS further FROM incidents WHERE %[1]s
), listed AS (
  SELECT machine, id, updated, further, row_number() OVER (ORDER BY further, updated DESC) AS n FROM found QUALIFY n <= %[2]d
), sized AS (
  SELECT n, machine, id, updated, further, max(bytes) AS size, max(closed) AS closed
  FROM (SELECT machine, id, updated, closed, strlen(doc) AS bytes FROM incident_history) h JOIN listed USING (machine, id, updated) GROUP BY n, machine, id, updated, further
), shared AS (
  SELECT *, further OR sum(size) OVER (PARTITION BY machine ORDER BY n) > %[4]d AS beyond FROM sized
), fitting AS (
  SELECT *, n = %[2]d AS extra, sum(size) OVER (ORDER BY beyond, n) - size > %[3]d AS cut FROM shared
)
SELECT any_value(h.doc) AS doc, (SELECT bool_or(cut) FROM fitting) AS short FROM incident_history h
JOIN fitting l ON h.machine = l.machine AND h.id = l.id AND h.updated = l.updated AND h.closed IS NOT DISTINCT FROM l.closed
WHERE NOT l.cut GROUP BY l.n, l.extra, l.updated ORDER BY l.extra, l.updated DESC LIMIT %[2]d`

func (s *Server) listIncidents(w http.ResponseWriter, r *request) error {
	where, from, err := s.incidentsWhere(r, [][2]string{{"job", "victim_job = %s"}, {"machine", "machine = %s"}, {"id", "contains(id, %s)"},
		// Not of suspects and rounds: to find the newest state of all suspects takes more memory than a query may have.
		{"suspect", "(EXISTS (SELECT 1 FROM suspect_history s WHERE s.machine = incidents.machine AND s.incident = incidents.id AND s.job = %[1]s AND s.named_from IS NOT NULL)" +
			" OR EXISTS (SELECT 1 FROM round_history r WHERE r.machine = incidents.machine AND r.incident = incidents.id AND r.job = %[1]s))"}})
	if err != nil {
		return err
	}
	if r.URL.Query().Get("open") == "true" {
		where += " AND closed IS NULL"
	}
	of := docOf
	if r.URL.Query().Get("brief") == "true" {
		of = briefOf
	}
	cut := false
	a := s.answer(w, r, listForm(func(row json.RawMessage) (json.RawMessage, error) {
		if !cut && strings.HasSuffix(string(row), ",true]") { // the first row, before anything is sent
			cut = true
			w.Header().Set(cluster.TruncatedTrailer, "true") // a browser reads no trailers
		}
		return of(row)
	}))
	// As a text in JSON a document takes up to twice as much. DuckDB holds them several times.
	most := int64(min(s.Config.Query.MaxMB, s.Config.Query.MemoryMB/4)) << 19
	// Segments are selected by time of update, so an incident's newest state is included.
	job := &duck.Job{SQL: fmt.Sprintf(incidentsSQL, where, cluster.MostIncidents+1, most, most/8), From: from, Limits: duck.Limits{Rows: cluster.MostIncidents}}
	sum, err := s.ask(r.Context(), s.forLists, job, a, a)
	return a.finish(sum.Truncated || cut, err)
}

// docOf is the document that a row begins with, nil if it is malformed.
func docOf(row json.RawMessage) (json.RawMessage, error) {
	var doc [1]string
	if err := json.Unmarshal(row, &doc); err != nil {
		return nil, fmt.Errorf("read incidents: %w", err)
	}
	if !json.Valid([]byte(doc[0])) {
		return nil, nil
	}
	return json.RawMessage(doc[0]), nil
}

// briefOf is docOf without what only a page of one incident needs: most of its size.
func briefOf(row json.RawMessage) (json.RawMessage, error) {
	text, err := docOf(row)
	var doc map[string]json.RawMessage
	if err != nil || json.Unmarshal(text, &doc) != nil { // malformed
		return nil, err
	}
	for _, key := range [...]string{"times", "victim_cost", "suspect_usage", "latest", "findings"} {
		delete(doc, key)
	}
	return json.Marshal(doc)
}

// incidentsWhere returns a request's conditions on the table of incidents, and the time
// from which segments are read. by has each parameter's condition, with %s for its value.
func (s *Server) incidentsWhere(r *request, by [][2]string) (where string, from sample.Millis, err error) {
	q := r.URL.Query()
	from, to, err := span(q.Get("since"), q.Get("until"), s.now())
	if err != nil {
		return "", 0, err
	}
	all := []string{"true"}
	for _, p := range by {
		if v := q.Get(p[0]); v != "" {
			all = append(all, fmt.Sprintf(p[1], dialect.DuckDB().Quote(v)))
		}
	}
	if from > 0 {
		all = append(all, fmt.Sprintf("updated >= make_timestamptz(%d)", int64(from)*1000))
	}
	if to > 0 {
		all = append(all, fmt.Sprintf("began <= make_timestamptz(%d)", int64(to)*1000))
	}
	return strings.Join(all, " AND "), from, nil
}

// listMachines returns one row per machine, however often its agent has restarted.
func (s *Server) listMachines(w http.ResponseWriter, r *request) error {
	marks := s.Store.Marks()
	return s.withMemory(r, int64(len(marks))*rowBytes, func() error { return replyList(s, w, r, s.withStates(machinesOf(marks)), false) })
}

// machinesOf returns the machines of sources, by name.
func machinesOf(marks map[store.Source]store.Mark) iter.Seq[*cluster.Machine] {
	by := map[string]*cluster.Machine{}
	boots := map[[2]string]bool{}
	// The newest of each kind comes last and stays.
	for _, source := range slices.SortedFunc(maps.Keys(marks), func(a, b store.Source) int { return cmp.Compare(marks[a].At, marks[b].At) }) {
		if source.Stream != samplesStream && source.Stream != recordsStream {
			continue // an import belongs to no machine
		}
		v, m := by[source.Machine], marks[source]
		if v == nil {
			v = &cluster.Machine{Machine: source.Machine}
			by[source.Machine] = v
		}
		if boot := [2]string{source.Machine, source.Boot}; !boots[boot] {
			boots[boot] = true
			v.Lives++
		}
		v.LastSeen, v.Boot = m.At, source.Boot
		if source.Stream == samplesStream {
			v.Batch = m.High
		} else {
			v.Record = m.High
		}
	}
	return func(yield func(*cluster.Machine) bool) {
		for _, name := range slices.Sorted(maps.Keys(by)) {
			if !yield(by[name]) {
				return
			}
		}
	}
}

// SegmentList is the list of the store's files at one commit.
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
	return s.withMemory(r, int64(len(sn.Segments))*rowBytes, func() error {
		return reply(w, http.StatusOK, SegmentList{sn.Generation, append([]store.Segment{}, sn.Segments...)})
	})
}

func (s *Server) query(w http.ResponseWriter, r *request) error {
	var in cluster.Query
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
		if text, err = s.cannedSQL(in.Canned, in.Params, dialect.DuckDB().At(from)); err != nil {
			return err
		}
	}
	a := s.answer(w, r, tableForm())
	sum, err := s.ask(r.Context(), s.forUsers, &duck.Job{SQL: text, From: from, To: to}, a, a)
	return a.finish(sum.Truncated, err)
}
