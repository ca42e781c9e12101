package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/certificate"
	"github.com/quell-dev/quell/internal/format/wire"
)

// auditEntry is one line of the audit log: an operator's command, or a change to a cap,
// with its result. The functions below make all kinds of entries.
type auditEntry struct {
	At     sample.Millis   `json:"at"`
	Who    string          `json:"who"`
	What   string          `json:"what"`
	ID     string          `json:"id,omitempty"`   // of a cap
	Task   sample.TaskName `json:"task,omitempty"` // or the object of a command: "job web"
	Rate   float64         `json:"rate,omitempty"`
	IO     plan.IORate     `json:"io,omitzero"`
	Net    uint64          `json:"net,omitempty"`
	Until  sample.Millis   `json:"until,omitempty"`
	Why    string          `json:"why,omitempty"`
	Result string          `json:"result"` // "ok", or why not
}

// commandEntry is the entry for an operator's command.
func commandEntry(operator string, c *command.Command) auditEntry {
	e := auditEntry{Who: operator, What: c.Kind(), Task: objectOf(c), Why: c.Why}
	switch {
	case c.Cap != nil:
		e.Rate = c.Cap.Rate
	case c.Enforcement != nil:
		e.What, e.Task = e.What+" "+c.Enforcement.Mode, ""
	}
	return e
}

// objectOf is the task that a command names, or what else it applies to.
func objectOf(c *command.Command) sample.TaskName {
	text := c.Object()
	if name, err := sample.ParseName(text); err == nil {
		return sample.TaskName(name)
	}
	return sample.TaskName(text)
}

// invalidEntry is the entry for a command that is refused as invalid. Its texts may be
// of any length, and its rate may be one that JSON cannot represent.
func invalidEntry(operator string, c *command.Command) auditEntry {
	e := auditEntry{Who: operator, What: cmp.Or(c.Kind(), unknown), Why: cut(c.Why)}
	if c.Enforcement == nil {
		e.Task = sample.TaskName(cut(string(objectOf(c))))
	}
	return e
}

// unknown is the name of a command that this agent does not understand.
const unknown = "unknown command"

// unreadEntry is the entry for a command that could not be read.
func unreadEntry(operator, why string) auditEntry {
	return auditEntry{Who: operator, What: unknown, Why: cut(why)}
}

// capEntry is the entry for setting a cap, or for setting it again at another rate.
func capEntry(what string, act *plan.Action) auditEntry {
	return auditEntry{Who: act.By, What: what, ID: act.ID, Task: act.Task.Name, Rate: act.Rate, IO: act.IO, Net: act.Net, Until: act.Until, Why: act.Why}
}

// cut is the beginning of a text of unbounded length.
func cut(s string) string {
	const most = 256
	return s[:min(len(s), most)]
}

// recorder writes what leaves the agent: the state directory, the trace, and what the
// server gets.
type recorder struct {
	base
	disk *stateDir

	// For the server and from it:
	samples  []sample.Sample // of this window
	specs    map[spec.Key]spec.Spec
	followed []sample.JobName // sorted
}

// receiveSpecs takes the specs that have arrived.
func (rec *recorder) receiveSpecs() {
	if rec.Uplink == nil {
		return
	}
	for _, s := range rec.Uplink.Specs() {
		if rec.specs == nil {
			rec.specs = map[spec.Key]spec.Spec{}
		}
		rec.specs[s.Key] = s
	}
	rec.health.degrade("server", rec.Uplink.Err())
	var expiry error
	if texts := certificate.Warnings(rec.Certificates.Expiries(), rec.clock.now()); len(texts) > 0 {
		expiry = errors.New(strings.Join(texts, "; "))
	}
	rec.health.degrade("certificates", errors.Join(rec.Certificates.Err(), expiry))
	_, due := rec.Uplink.Expires(rec.clock.now())
	rec.health.degrade("credentials", due)
}

// serverSpec is the server's spec, learnt from the whole job, if it is ready. It takes
// precedence over this machine's own spec. If that may not judge (config.Agent.OwnJudges), it is
// the server's in any state.
func (rec *recorder) serverSpec(k spec.Key, at sample.Millis) (spec.Spec, bool) {
	s, ok := rec.specs[k]
	if ok && s.State == spec.Ready && at.Sub(s.Updated) <= rec.Config.Spec.StaleAfter {
		return s, true
	}
	switch {
	case rec.Config.OwnJudges():
		return spec.Spec{}, false
	case !ok: // it is sent no spec of a job with too few tasks
		s = spec.Spec{Key: k, State: spec.Insufficient}
	case s.State == spec.Ready:
		s.State = spec.Stale
	}
	return s, true
}

// sendSamples sends the window's samples, and the jobs whose specs are wanted.
func (rec *recorder) sendSamples(at sample.Millis, tasks []*task) {
	if rec.Uplink == nil {
		return
	}
	rec.Uplink.Samples(at, rec.samples)
	clear(rec.samples) // its strings may belong to tasks that have ended
	rec.samples = rec.samples[:0]
	jobs := make([]sample.JobName, 0, len(tasks))
	for _, t := range tasks {
		if spec.Shared(t.Job) { // else no server has a spec of it
			jobs = append(jobs, t.Job)
		}
	}
	slices.Sort(jobs)
	if jobs = slices.Compact(jobs); slices.Equal(jobs, rec.followed) {
		return
	}
	rec.followed = jobs
	rec.Uplink.WatchSpecs(rec.Platform, jobs)
	for k := range rec.specs {
		if _, found := slices.BinarySearch(jobs, k.Job); !found {
			delete(rec.specs, k)
		}
	}
}

// sendRecord sends an incident or audit entry as it is in the log.
func (rec *recorder) sendRecord(at sample.Millis, kind wire.Record_Kind, id string, entry any) {
	if rec.Uplink == nil {
		return
	}
	document, err := json.Marshal(entry)
	if err == nil {
		rec.Uplink.Record(at, kind, id, document)
	}
	rec.health.degrade("sending to the server", err)
}

// audit writes an entry with its result.
func (rec *recorder) audit(now sample.Millis, e auditEntry, err error) {
	e.At, e.Result = now, "ok"
	if err != nil {
		e.Result = err.Error()
	}
	rec.health.degrade("audit log", rec.disk.audit.Write(e))
	rec.sendRecord(now, wire.Record_KIND_AUDIT, e.ID, e)
}

// record writes the sample to the trace, keeps it for the server, and counts it.
func (rec *recorder) record(s *sample.Sample) {
	rec.stats.samples[s.Signal]++
	if rec.Uplink != nil {
		rec.samples = append(rec.samples, *s)
	}
	rec.traceSample(s)
}

// traceSample writes a sample to the trace only: usage that a replay of the trace needs,
// but the server, which has specs of tasks, does not.
func (rec *recorder) traceSample(s *sample.Sample) {
	if rec.Record != nil {
		rec.health.degrade("recording samples", rec.Record(s))
	}
}

// incident writes an incident to the log and sends it.
func (rec *recorder) incident(now sample.Millis, record *incident.Record) {
	rec.health.degrade("incident log", rec.disk.incidents.Add(record))
	rec.sendRecord(now, wire.Record_KIND_INCIDENT, record.ID, record)
}

// unsent is how old a state may be, when an agent is killed, that is in its log and not yet on the disk of
// what the server gets.
const unsent = time.Minute

// closeLeftOver closes the incidents that an earlier agent left open. It sends again those that ended just
// before: for a server they would be open for ever. One that has them already keeps one of the two.
func (rec *recorder) closeLeftOver(now sample.Millis) error {
	last, _, err := rec.disk.incidents.List(logbook.Query{Since: rec.disk.incidents.Newest().Add(-unsent), Charts: true})
	errs := []error{rec.disk.unread, err}
	for i := range last {
		if inc := &last[i]; inc.Closed != 0 {
			rec.sendRecord(now, wire.Record_KIND_INCIDENT, inc.ID, inc)
		}
	}
	left, _, err := rec.disk.incidents.List(logbook.Query{Open: true, Charts: true})
	errs = append(errs, err)
	for i := range left {
		inc := &left[i]
		inc.End(now, "the agent was restarted")
		errs = append(errs, rec.disk.incidents.Add(inc))
		rec.sendRecord(now, wire.Record_KIND_INCIDENT, inc.ID, inc)
	}
	return errors.Join(errs...)
}
