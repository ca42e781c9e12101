package server

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
)

// Feed is an ordered stream of agents' messages.
type Feed interface {
	// Next returns the following messages, as batches that are valid until the next call. N is 0 of one that was dropped.
	// It waits for the first until ctx ends, which is no error. After an error, earlier
	// numbers are no longer valid, and what was not acknowledged comes again.
	Next(ctx context.Context) ([]store.Batch, error)
	// Ack tells the senders of the messages up to that number that they are stored. It may be
	// called while Next runs, with a number obtained after Next's last error.
	Ack(seq uint64)
	// Stop ends receiving: senders keep what is not acknowledged. Next begins anew.
	Stop()
}

// Backlog is what agents wait for (Options.Backlog).
type Backlog struct {
	Bytes   int64         // of messages in memory that are not read yet
	Refused uint64        // deliveries for which there was no room
	Oldest  time.Duration // since the oldest delivery came that is not stored
}

// intake is a feed being ingested: the last message read and the last one committed.
// Commits run in parallel with reading, one at a time: if reading paused while files are
// written, ingest would fall behind.
type intake struct {
	*Server
	feed       Feed
	last, done uint64
	committing chan uint64 // receives the number that the commit reached, 0 if it failed; nil: none runs
}

// commit starts a commit of what was added, unless it is committed or one is running.
func (t *intake) commit(ctx context.Context) {
	if t.committing != nil || t.last == t.done {
		return
	}
	result, seq := make(chan uint64, 1), t.last
	t.committing = result
	go func() {
		if err := t.Store.Flush(); err != nil {
			t.Log.Error("commit; trying again", "reason", err)
			seq = 0
			select { // before the next attempt
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		} else {
			t.feed.Ack(seq)
		}
		result <- seq
	}()
}

// committed records the end of a commit.
func (t *intake) committed(seq uint64) {
	t.committing, t.done = nil, max(t.done, seq)
}

// settle waits for the running commit.
func (t *intake) settle() {
	if t.committing != nil {
		t.committed(<-t.committing)
	}
}

// finish tries to commit everything that was added.
func (t *intake) finish(ctx context.Context) {
	t.settle()
	t.commit(ctx)
	t.settle()
}

// ingest ingests a feed until ctx ends.
func (s *Server) ingest(ctx context.Context, f Feed) {
	t := &intake{Server: s, feed: f}
	defer f.Stop() // another server may receive from here on
	defer t.finish(ctx)
	flush := time.NewTicker(s.Config.Store.Flush)
	defer flush.Stop()
	for ctx.Err() == nil {
		soon, cancel := context.WithTimeout(ctx, s.Config.Store.Flush)
		batches, err := f.Next(soon)
		cancel()
		if err != nil && ctx.Err() == nil {
			s.Log.Error("read messages; trying again", "reason", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
		for i := range batches {
			if batches[i].N > 0 { // else the message was dropped
				s.Add(&batches[i])
			}
			t.last = max(t.last, batches[i].Seq)
		}
		if err != nil {
			t.finish(ctx)
			t.last, t.done = 0, 0
		}
		select {
		case seq := <-t.committing:
			t.committed(seq)
		case <-flush.C:
			t.commit(ctx)
		default:
			if s.behind(1) {
				t.commit(ctx)
			}
		}
		// If commits cannot keep up, no more is read: agents keep it.
		for s.behind(2) && ctx.Err() == nil {
			t.commit(ctx)
			select {
			case <-ctx.Done():
			case seq := <-t.committing:
				t.committed(seq)
			case <-time.After(time.Second): // another feed's commit
			}
		}
	}
}

// sampleBytes is more than a sample takes in an agent's message.
const sampleBytes = 128

// behind reports whether so many times store.max_pending samples wait to be committed, or messages of
// that size: a record, or a sample with long names, may take as much as 10,000 samples.
func (s *Server) behind(times int) bool {
	most := times * s.Config.Store.MaxPending
	return s.Store.Pending() >= most || s.Store.PendingBytes() >= int64(most)*sampleBytes
}

// Add stores a batch, and tells its contents to the watchers and to the followers of events.
func (s *Server) Add(b *store.Batch) bool {
	if !s.Store.Add(b) {
		return false
	}
	s.live.add(b)
	s.tell(b.Incidents)
	for i := range b.Incidents {
		inc := &b.Incidents[i]
		s.hub.publish("incident", map[string]any{"machine": inc.Machine, "id": inc.ID, "kind": inc.Kind, "signal": inc.Signal,
			"victim_job": inc.VictimJob, "victim_task": inc.VictimTask, "suspect_task": inc.SuspectTask, "capped_task": inc.CappedTask, "outcome": inc.Outcome,
			"updated": inc.Updated, "closed": inc.Closed})
	}
	for i := range b.Actions {
		s.hub.publish("action", &b.Actions[i])
	}
	return true
}

// tell tells the watchers of incidents.
func (s *Server) tell(all []store.Incident) {
	for i := range all {
		var r incident.Record
		if len(s.Watchers) == 0 || json.Unmarshal([]byte(all[i].Doc), &r) != nil {
			continue // the store's rows are made from such documents
		}
		for _, w := range s.Watchers {
			w.Incident(&r)
		}
	}
}

// The streams of agents' messages, as the store names sources.
const (
	samplesStream = "samples"
	recordsStream = "records"
)

// BatchOf converts a message of the stream of samples for the store. The memory of the
// wire batch must stay valid until the result is added.
func BatchOf(b *wire.Batch, seq uint64) store.Batch {
	return store.Batch{Source: store.Source{Stream: samplesStream, Machine: b.Machine, Boot: b.Boot}, N: b.N, Seq: seq, Shape: b.Shape(), Samples: b.Samples}
}

// maxID and maxName bound the ID of an incident and the names in it, bytes: they are remembered while it is
// open, and read for each computation of specs.
const maxID, maxName = 256, command.MaxName

// maxListed, maxAccused and maxCaps bound what an incident lists: suspects, those of two analyses and those
// that it named; the latter, of which an agent remembers 16; and tasks that were capped. One message could
// have 60,000 of them, and each that is named is looked for in the caps.
const maxListed, maxAccused, maxCaps = 5000, 1000, 10_000

// listed returns why an incident lists more than is read, nil if it does not.
func listed(inc *incident.Record) error {
	suspects, named, caps := len(inc.Suspects)+len(inc.Findings), len(inc.Named()), len(inc.Rounds)
	if inc.Latest != nil {
		suspects += len(inc.Latest.Suspects)
	}
	for _, r := range inc.Rounds {
		caps += len(r.With)
	}
	if suspects > maxListed || named > maxAccused || caps > maxCaps {
		return fmt.Errorf("an incident of %.80q lists %d suspects, of which it named %d, and %d caps: want at most %d, %d and %d",
			inc.Machine, suspects, named, caps, maxListed, maxAccused, maxCaps)
	}
	return nil
}

// maxRepeated bounds the texts, bytes, that an incident's rows of caps and suspects repeat of it and of its
// rounds: a reason of 900 KB, of 10,000 tasks that were capped together, is 9 GB to be written.
const maxRepeated = 4 << 20

// repeated is how many bytes those are.
func repeated(b *store.Batch) (n int) {
	for i := range b.Rounds {
		r := &b.Rounds[i]
		n += len(r.Incident) + len(r.ID) + len(r.Rule) + len(r.Signal) + len(r.VictimJob) + len(r.VictimTask) + len(r.By) + len(r.Why) + len(r.Outcome)
	}
	for i := range b.Suspects {
		r := &b.Suspects[i]
		n += len(r.Incident) + len(r.Rule) + len(r.Signal) + len(r.VictimJob) + len(r.VictimTask)
	}
	return n
}

// RecordOf converts a message of the stream of records for the store.
func RecordOf(r *wire.Record, seq uint64) (store.Batch, error) {
	b := store.Batch{Source: store.Source{Stream: recordsStream, Machine: r.Machine, Boot: r.Boot}, N: r.N, Seq: seq}
	switch r.Kind {
	case wire.Record_KIND_INCIDENT:
		var inc incident.Record
		if err := json.Unmarshal(r.Json, &inc); err != nil {
			return b, fmt.Errorf("read incident %.80q of %.80q: %w", r.Id, r.Machine, err)
		}
		if n := max(len(inc.Signal), len(inc.Variant), len(inc.Victim.Name), len(inc.Victim.Job)); len(inc.ID) > maxID || n > maxName {
			return b, fmt.Errorf("an incident of %.80q has an ID of %d bytes and names of up to %d: want at most %d and %d", r.Machine, len(inc.ID), n, maxID, maxName)
		}
		inc.Machine = r.Machine // NATS has checked the sender's machine
		if err := listed(&inc); err != nil {
			return b, err
		}
		if err := b.AddIncident(&inc); err != nil {
			return b, err
		}
		if n := repeated(&b); n > maxRepeated {
			return b, fmt.Errorf("an incident of %.80q has %d bytes of text for its caps and suspects together: want at most %d", r.Machine, n, maxRepeated)
		}
	case wire.Record_KIND_AUDIT:
		a, err := actionOf(r)
		if err != nil {
			return b, err
		}
		b.Actions = []store.Action{a}
	default:
		return b, fmt.Errorf("record %.80q of %.80q has the unknown kind %v", r.Id, r.Machine, r.Kind)
	}
	return b, nil
}

// actionOf reads a line of an agent's audit log (docs/safety.md).
func actionOf(r *wire.Record) (store.Action, error) {
	var e struct {
		At     sample.Millis `json:"at"`
		Who    string        `json:"who"`
		What   string        `json:"what"`
		ID     string        `json:"id"`
		Task   string        `json:"task"`
		Rate   float64       `json:"rate"`
		Until  int64         `json:"until"`
		Why    string        `json:"why"`
		Result string        `json:"result"`
	}
	if err := json.Unmarshal(r.Json, &e); err != nil {
		return store.Action{}, fmt.Errorf("read audit entry of %.80q: %w", r.Machine, err)
	}
	a := store.Action{At: int64(e.At), Machine: r.Machine, ID: e.ID, What: e.What, Task: e.Task, By: e.Who, Why: e.Why, Result: e.Result}
	if e.Rate > 0 {
		a.Rate = &e.Rate
	}
	if e.Until > 0 {
		a.Until = &e.Until
	}
	return a, nil
}
