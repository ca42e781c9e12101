package notify

import (
	"cmp"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
)

// Event is a notification. Its texts come from agents and tasks: they are printable and short.
// Its times are within what an encoder and a receiver accept.
type Event struct {
	Version   int       `json:"version"` // of this document: 1
	Event     string    `json:"event"`   // firing or resolved
	ID        string    `json:"id"`
	Machine   string    `json:"machine"`
	Victim    Task      `json:"victim"`
	Suspect   Task      `json:"suspect"`
	Level     string    `json:"level"`
	Signal    string    `json:"signal"`
	Cost      float64   `json:"cost"`
	Threshold float64   `json:"threshold"`
	Opened    time.Time `json:"opened"`
	Closed    time.Time `json:"closed,omitzero"`
	Outcome   string    `json:"outcome,omitempty"`
	Text      string    `json:"text"`             // a sentence
	Advice    string    `json:"advice,omitempty"` // what to do
	Link      string    `json:"link,omitempty"`   // the dashboard's page of it
	// LeftOut is the number of incidents of the pair that were not notified in the last
	// cool-down.
	LeftOut int `json:"left_out,omitempty"`
}

// Task is a task and its job.
type Task struct {
	Job  string `json:"job"`
	Task string `json:"task"`
	pod  pod
}

// maxText is the most bytes of a name or another text of an agent.
const maxText = 200

// Clip returns a text of an agent as it is sent to other systems: printable, in one line, short.
func Clip(s string) string {
	s = printable.Text(s[:min(len(s), 4*maxText)]) // no more is escaped than may be used
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return s
}

// JobOf is the job of a task, or its name if it has none, as what runs outside of all tasks.
func JobOf(t *sample.Task) string { return Clip(cmp.Or(string(t.Job), string(t.Name))) }

func taskOf(t *sample.Task) Task {
	return Task{JobOf(t), Clip(string(t.Name)), podOf(string(t.Name))}
}

// within returns a time of an agent, whose clock may be wrong, moved between two others.
func within(from time.Time, ms sample.Millis, until time.Time) time.Time {
	return time.UnixMilli(min(max(int64(ms), from.UnixMilli()), until.UnixMilli())).UTC()
}

// longest is the age from which on it is not told how old an incident is.
const longest = 10 * 365 * 24 * time.Hour

// firing describes an incident that names a suspect.
func firing(r *incident.Record, s *detect.Suspect, link string, now time.Time) *Event {
	e := &Event{Version: 1, Event: "firing", ID: Clip(r.ID), Machine: Clip(r.Machine), Victim: taskOf(&r.Victim), Suspect: taskOf(&s.Task), Level: s.Level.String(),
		Signal: Clip(string(r.Signal)), Cost: r.Cost, Threshold: r.Threshold, Opened: within(now.Add(-longest), r.Opened, now), Outcome: Clip(string(r.Outcome)), Advice: Clip(r.Advice)}
	e.Text = fmt.Sprintf("%s on %s is slowed by %s (%s): %s is %.3g, its threshold %.3g", e.Victim.Job, e.Machine, e.Suspect.Job, e.Level, e.Signal, e.Cost, e.Threshold)
	if link != "" { // the dashboard's first page is at /; below /ui/ are its files
		e.Link = strings.TrimSuffix(link, "/") + "/#/incident/" + url.PathEscape(e.ID) + "?machine=" + url.QueryEscape(e.Machine)
	}
	return e
}

// lapsed is the end of what was told by an event, of whose incident nothing was heard for long.
func (e Event) lapsed(now time.Time) *Event {
	e.Event, e.Closed, e.Advice, e.LeftOut = "resolved", now.UTC(), "", 0
	e.Text = fmt.Sprintf("%s on %s: it is not known whether %s still slows it, since nothing was heard of it for %s", e.Victim.Job, e.Machine, e.Suspect.Job, sample.Duration(late))
	return &e
}

// resolved is the end of what was told by an event.
func (e Event) resolved(r *incident.Record, now time.Time) *Event {
	e.Event, e.Closed, e.Outcome, e.Advice, e.LeftOut = "resolved", now.UTC(), Clip(string(r.Outcome)), "", 0
	e.Text = fmt.Sprintf("%s on %s: %s is no longer named", e.Victim.Job, e.Machine, e.Suspect.Job)
	if r.Closed != 0 {
		e.Closed = within(e.Opened, r.Closed, now)
		e.Text = fmt.Sprintf("%s on %s is no longer slowed by %s", e.Victim.Job, e.Machine, e.Suspect.Job)
	}
	if e.Outcome != "" {
		e.Text += "; outcome: " + e.Outcome
	}
	return &e
}
