package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Uplink is the connection to a server; *bus.Uplink is one. Its methods do not block:
// the loop continues whatever happens to the server.
type Uplink interface {
	// Samples takes the samples of one window; it does not keep the slice.
	Samples(at sample.Millis, samples []sample.Sample)
	// Record takes an incident or audit entry, as JSON.
	Record(at sample.Millis, kind wire.Record_Kind, id string, document []byte)
	// WatchSpecs sets the jobs whose specs are wanted from now on.
	WatchSpecs(platform sample.Platform, jobs []sample.JobName)
	// Specs returns the specs that have arrived since the last call.
	Specs() []spec.Spec
	// Backlog is how many messages wait for the server, and how many were lost.
	Backlog() (waiting, lost uint64)
	// Err is the current failure of the connection; nil if it works.
	Err() error
}

// serverState is the data for the server and from it.
type serverState struct {
	samples  []sample.Sample // of this window
	specs    map[spec.Key]spec.Spec
	followed []sample.JobName // sorted
}

// receiveSpecs takes the specs that have arrived.
func (a *Agent) receiveSpecs() {
	if a.Uplink == nil {
		return
	}
	for _, s := range a.Uplink.Specs() {
		if a.upward.specs == nil {
			a.upward.specs = map[spec.Key]spec.Spec{}
		}
		a.upward.specs[s.Key] = s
	}
	a.degrade("server", a.Uplink.Err())
}

// serverSpec is the server's spec, learnt from the whole job, if it is ready. It takes
// precedence over this machine's own spec.
func (a *Agent) serverSpec(k spec.Key, at sample.Millis) (spec.Spec, bool) {
	s, ok := a.upward.specs[k]
	return s, ok && s.State == spec.Ready && at.Sub(s.Updated) <= a.config.Spec.StaleAfter
}

// sendSamples sends the window's samples, and the jobs whose specs are wanted.
func (a *Agent) sendSamples(at sample.Millis) {
	if a.Uplink == nil {
		return
	}
	u := &a.upward
	a.Uplink.Samples(at, u.samples)
	clear(u.samples) // its strings may belong to tasks that have ended
	u.samples = u.samples[:0]
	jobs := make([]sample.JobName, 0, len(a.roster.order))
	for _, t := range a.roster.order {
		jobs = append(jobs, t.Job)
	}
	slices.Sort(jobs)
	if jobs = slices.Compact(jobs); slices.Equal(jobs, u.followed) {
		return
	}
	u.followed = jobs
	a.Uplink.WatchSpecs(a.Platform, jobs)
	for k := range u.specs {
		if _, found := slices.BinarySearch(jobs, k.Job); !found {
			delete(u.specs, k)
		}
	}
}

// sendRecord sends an incident or audit entry as it is in the log.
func (a *Agent) sendRecord(at sample.Millis, kind wire.Record_Kind, id string, entry any) {
	if a.Uplink == nil {
		return
	}
	document, err := json.Marshal(entry)
	if err == nil {
		a.Uplink.Record(at, kind, id, document)
	}
	a.degrade("sending to the server", err)
}

// Command carries out an operator's command that came over the bus, which has
// authenticated the operator. It is in the audit log before the answer is sent.
func (a *Agent) Command(ctx context.Context, m *wire.Command) *wire.Reply {
	operator := m.Who + " (server)"
	var done api.Done
	var refused error
	err := a.ask(ctx, func() {
		now := sample.At(a.now())
		c, err := wire.DecodeCommand(m)
		if err != nil {
			refused = fmt.Errorf("unknown command for quell-agent %s: upgrade it", a.Version)
			a.audit(now, unreadEntry(operator, m.Why), refused)
			return
		}
		done, refused = a.operate(now, operator, c)
	})
	var none *notFoundError
	switch {
	case err != nil:
		return &wire.Reply{Message: err.Error()}
	case refused != nil:
		return &wire.Reply{Message: refused.Error(), None: errors.As(refused, &none)}
	}
	return &wire.Reply{Ok: true, Message: done.Message, Cap: done.ID, Tasks: uint32(done.Tasks), Refused: done.Refused}
}

// uplinkMetrics are the metrics of the connection to the server, if there is one.
func uplinkMetrics() []metric {
	return []metric{
		{"quell_uplink_connected", "Whether the connection to the server works; absent without a server.", gauge, nil,
			uplink(func(u Uplink) float64 { return truth(u.Err() == nil) })},
		{"quell_uplink_waiting", "Batches of samples and records on disk that the server has not taken yet.", gauge, nil,
			uplink(func(u Uplink) float64 { waiting, _ := u.Backlog(); return float64(waiting) })},
		{"quell_uplink_lost_total", "Batches and records that will never reach the server: the spool was full, too slow or damaged.", count, nil,
			uplink(func(u Uplink) float64 { _, lost := u.Backlog(); return float64(lost) })},
	}
}

func uplink(of func(Uplink) float64) func(*Agent, *exposition) {
	return func(a *Agent, e *exposition) {
		if a.Uplink != nil {
			e.add(of(a.Uplink))
		}
	}
}
