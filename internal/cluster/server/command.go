package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/format/wire"
)

// commandTime is how long to wait for what machines say of a new decision. Those that say
// nothing get it when they come back.
const commandTime = 10 * time.Second

// lately is the age of a machine's last message up to which it is expected to answer.
const lately = 5 * time.Minute

func (s *Server) command(w http.ResponseWriter, r *request) error {
	var in cluster.Command
	if err := body(r, &in); err != nil {
		return err
	}
	if err := in.Validate(); err != nil {
		return bad("%v", err)
	}
	var out cluster.Replies
	outcome := func() string { return summary(&in, &out) }
	err := s.runAudited(r, cluster.PathCommands, in.String(), in.Why, outcome, func() (err error) {
		if s.Decider == nil {
			return &httpError{http.StatusServiceUnavailable, "the server has no connection to machines", "set bus.listen or bus.url"}
		}
		if in.Machine != "" && !s.knows(in.Machine) {
			return &httpError{http.StatusNotFound, fmt.Sprintf("the machine %q was never heard of", in.Machine), "see `quell machines`"}
		}
		out, err = s.decide(r.Context(), r.caller.name, &in)
		return err
	})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, out)
}

// decide makes a command a decision and returns what machines have done about it, when all that
// were heard of lately have said so, or the time for that is over. A single machine's refusal is
// an error, and withdraws the decision: what it had replaced stands again.
func (s *Server) decide(ctx context.Context, who string, in *cluster.Command) (out cluster.Replies, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.answers)
	defer cancel()
	d := command.Decide(rand.Text(), who, s.now(), in.Command)
	if in.Canary != nil {
		machines := slices.Collect(maps.Keys(s.seen()))
		if len(machines) == 0 { // it would reach none, and wait for it for ever
			return out, &httpError{http.StatusConflict, "no machine was heard of in the last 5 minutes, and a roll-out begins with one", "see `quell machines`, and try again"}
		}
		d = d.Begin(0, machines, in.Canary.Every, d.At)
	}
	missing := map[string]bool{in.Machine: true}
	if in.Cluster {
		missing = s.seen()
	}
	said, end := s.states.watch()
	defer end()
	var replaced []command.Decision
	revision, err := s.Decider.Decide(ctx, in.Machine, func(list []command.Decision) ([]command.Decision, error) {
		next := command.Add(list, d)
		replaced = slices.DeleteFunc(slices.Clone(list), func(old command.Decision) bool { return place(next, old.ID) >= 0 })
		if in.Reset != nil && len(next) == len(list) {
			return nil, &httpError{http.StatusNotFound, "no decision stands that would be reset: " + in.Object(), "see `quell decisions --cluster`"}
		}
		return next, nil
	})
	if err != nil {
		if _, refused := err.(*httpError); refused { //nolint:errorlint // its own, not wrapped
			return out, err
		}
		return out, &httpError{http.StatusBadGateway, err.Error(), "see the server's log"}
	}
	out = cluster.Replies{Replies: []cluster.Reply{}, Silent: []string{}}
	if in.Reset == nil {
		out.Decision, out.Until = d.ID, d.Until
	}
	answers := s.gather(ctx, in.Machine, d.ID, revision, missing, said)
	for machine, answer := range answers {
		out.Replies = append(out.Replies, replyOf(machine, answer))
	}
	slices.SortFunc(out.Replies, func(a, b cluster.Reply) int { return strings.Compare(a.Machine, b.Machine) })
	out.Silent = append(out.Silent, slices.Sorted(maps.Keys(missing))...)
	if answer := answers[in.Machine]; in.Machine != "" && answer != nil && !answer.Ok {
		if _, err := s.Decider.Decide(context.WithoutCancel(ctx), in.Machine, func(list []command.Decision) ([]command.Decision, error) { return takenBack(list, &d, replaced), nil }); err != nil {
			return out, &httpError{http.StatusBadGateway, err.Error(), "the machine has refused; see `quell decisions --cluster`"}
		}
		return out, &httpError{http.StatusConflict, printable.Text(answer.Message), ""}
	}
	return out, nil
}

// place returns where a decision is in a list, -1 if it is not.
func place(list []command.Decision, id string) int {
	return slices.IndexFunc(list, func(d command.Decision) bool { return d.ID == id })
}

// takenBack returns a list without a refused decision, and with those that it had replaced, before
// the others as they are older. An uncap ends them all the same. If the list does not have the
// decision any more, another one has taken its place, and theirs.
func takenBack(list []command.Decision, refused *command.Decision, replaced []command.Decision) []command.Decision {
	i := place(list, refused.ID)
	if i < 0 {
		return list
	}
	list = slices.Delete(slices.Clone(list), i, i+1)
	if refused.Uncap != nil {
		return list
	}
	return slices.Concat(replaced, list)
}

// gather waits until the missing machines have a revision, and removes those that do. It
// returns what each machine has done.
func (s *Server) gather(ctx context.Context, scope, id string, revision uint64, missing map[string]bool, said <-chan *wire.State) map[string]*wire.Reply {
	answers := map[string]*wire.Reply{}
	take := func(state *wire.State) {
		if !has(state, scope, revision) || scope != "" && state.Machine != scope {
			return
		}
		answer := outcomeOf(state, id)
		switch {
		case answer == nil && state.Mode == "":
			return // the agent is starting
		case answer == nil: // what was reset
			answer = &wire.Reply{Ok: true, Message: fmt.Sprintf("enforcement is %s (%s)", state.Mode, state.From)}
		}
		answers[state.Machine] = answer
		delete(missing, state.Machine)
	}
	for _, state := range s.states.all() {
		take(state.State)
	}
	for len(missing) > 0 {
		select {
		case state := <-said:
			take(state)
		case <-ctx.Done():
			for _, state := range s.states.all() {
				take(state.State)
			}
			return answers
		}
	}
	return answers
}

// replyOf converts an outcome. Its texts come from the machine: each is one line.
func replyOf(machine string, r *wire.Reply) cluster.Reply {
	out := cluster.Reply{Machine: machine, OK: r.Ok, NoMatch: r.None, Message: printable.Text(r.Message), Cap: printable.Text(r.Cap), Tasks: int(r.Tasks)}
	for _, why := range r.Refused {
		out.Refused = append(out.Refused, printable.Text(why))
	}
	return out
}

// summary is the outcome of a command for the audit log. The outcome on each machine is
// in the table actions.
func summary(in *cluster.Command, out *cluster.Replies) string {
	if !in.Cluster && len(out.Silent) == 0 {
		return "done"
	}
	var done, none int
	var refused []string
	for _, r := range out.Replies {
		switch {
		case r.OK:
			done++
		case r.NoMatch:
			none++
		default:
			refused = append(refused, r.Machine+": "+r.Message)
		}
	}
	text := fmt.Sprintf("done on %d machines", done)
	if none > 0 {
		text += fmt.Sprintf("; %d have no matching task", none)
	}
	if len(refused) > 0 {
		text += fmt.Sprintf("; %d refused: %s", len(refused), strings.Join(refused[:min(len(refused), 10)], "; "))
	}
	if n := len(out.Silent); n > 0 {
		text += fmt.Sprintf("; %d get it when they come back: %s", n, strings.Join(out.Silent[:min(n, 10)], ", "))
	}
	return cmp.Or(text, "done")
}
