package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/api/cluster"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/wire"
)

// commandTime is how long machines may take.
const commandTime = 10 * time.Second

// lately is how long ago a machine may have sent something and still be expected
// to answer a command to all.
const lately = 5 * time.Minute

// grace is how long more is waited for machines that are not expected, once all
// that are have answered.
const grace = 300 * time.Millisecond

func (s *Server) command(w http.ResponseWriter, r *request) error {
	var in cluster.Command
	if err := body(r, &in); err != nil {
		return err
	}
	c, target, err := wireCommand(&in)
	if err != nil {
		return err
	}
	var out cluster.Replies
	outcome := func() string { return summary(&in, &out) }
	err = s.acting(r, cluster.PathCommands, target, in.Why, outcome, func() error {
		if s.Commander == nil {
			return &httpError{http.StatusServiceUnavailable, "the server has no connection to machines", "set bus.listen or bus.url"}
		}
		now := s.Now()
		c.Who, c.Why, c.Id, c.Expires = r.caller.name, in.Why, fmt.Sprintf("%s-%d", r.caller.name, now.UnixNano()), now.Add(commandTime).UnixMilli()
		ctx, cancel := context.WithTimeout(r.Context(), commandTime)
		defer cancel()
		if in.Cluster {
			out, err = s.commandAll(ctx, c)
		} else {
			out, err = s.commandOne(ctx, in.Machine, c)
		}
		return err
	})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, out)
}

// commandOne sends a command to a machine; that it refuses is an error.
func (s *Server) commandOne(ctx context.Context, machine string, c *wire.Command) (out cluster.Replies, err error) {
	answer, err := s.Commander.Command(ctx, machine, c)
	if err != nil {
		return out, &httpError{http.StatusBadGateway, err.Error(), "see `quell machines`: its agent may be down, or cut off"}
	}
	if !answer.Ok {
		return out, &httpError{http.StatusConflict, answer.Message, ""}
	}
	return cluster.Replies{Replies: []cluster.Reply{replyOf(answer)}, Silent: []string{}}, nil
}

// commandAll sends a command to all machines, and waits for those that were there
// lately.
func (s *Server) commandAll(ctx context.Context, c *wire.Command) (cluster.Replies, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	missing := map[string]bool{}
	for source, m := range s.Store.Marks() {
		if s.now().Sub(m.At) <= lately {
			missing[source.Machine] = true
		}
	}
	all := len(missing) > 0
	out := cluster.Replies{Replies: []cluster.Reply{}, Silent: []string{}}
	var timer *time.Timer
	err := s.Commander.CommandAll(ctx, c, 0, func(r *wire.Reply) {
		out.Replies = append(out.Replies, replyOf(r))
		if delete(missing, r.Machine); all && len(missing) == 0 && timer == nil {
			timer = time.AfterFunc(grace, cancel)
		}
	})
	if timer != nil {
		timer.Stop()
	}
	if err != nil {
		return out, &httpError{http.StatusBadGateway, err.Error(), "see the server's log"}
	}
	out.Silent = append(out.Silent, slices.Sorted(maps.Keys(missing))...)
	slices.SortFunc(out.Replies, func(a, b cluster.Reply) int { return strings.Compare(a.Machine, b.Machine) })
	if len(out.Replies) == 0 {
		return out, &httpError{http.StatusBadGateway, "no machine has answered", "see `quell machines`: agents may be down, or cut off"}
	}
	return out, nil
}

func replyOf(r *wire.Reply) cluster.Reply {
	return cluster.Reply{Machine: r.Machine, OK: r.Ok, None: r.None, Message: r.Message, Cap: r.Cap, Tasks: int(r.Tasks), Refused: r.Refused}
}

// summary is what came of a command, for the audit log; that of each machine is in
// the table actions.
func summary(in *cluster.Command, out *cluster.Replies) string {
	if !in.Cluster {
		return "done"
	}
	var done, none int
	var refused []string
	for _, r := range out.Replies {
		switch {
		case r.OK:
			done++
		case r.None:
			none++
		default:
			refused = append(refused, r.Machine+": "+r.Message)
		}
	}
	text := fmt.Sprintf("done on %d machines", done)
	if none > 0 {
		text += fmt.Sprintf("; %d have no such task", none)
	}
	if len(refused) > 0 {
		text += fmt.Sprintf("; %d refused: %s", len(refused), strings.Join(refused[:min(len(refused), 10)], "; "))
	}
	if n := len(out.Silent); n > 0 {
		text += fmt.Sprintf("; %d were silent: %s", n, strings.Join(out.Silent[:min(n, 10)], ", "))
	}
	return text
}

// wireCommand is what goes over the wire, and what the audit log says it is about.
func wireCommand(in *cluster.Command) (*wire.Command, string, error) {
	c := &wire.Command{}
	n := 0
	var what, whom string
	var err error
	many := func(name string, w *cluster.Whom) *wire.Command_Many {
		n, what = n+1, name
		if whom, err = about(name, w); err != nil || w.Task != "" {
			return nil
		}
		return &wire.Command_Many{Job: w.Job, Class: w.Class, All: w.All}
	}
	if do := in.Cap; do != nil {
		lasts, bad1 := time.ParseDuration(do.For)
		c.Do = &wire.Command_Cap_{Cap: &wire.Command_Cap{Task: do.Task, Rate: do.Rate, ForMs: lasts.Milliseconds(), Many: many("cap", &do.Whom)}}
		switch {
		case err != nil:
		case bad1 != nil || lasts < time.Second || lasts > 24*time.Hour:
			err = bad("cap.for: %.40q: want a duration from 1s to 24h", do.For)
		case !(do.Rate >= 0.001 && do.Rate <= 1024):
			err = bad("cap.rate: %g: want 0.001 to 1024 CPU-s/s", do.Rate)
		}
		whom += fmt.Sprintf(" to %g CPU-s/s for %s", do.Rate, lasts)
	}
	if do := in.Uncap; do != nil && err == nil {
		c.Do = &wire.Command_Uncap_{Uncap: &wire.Command_Uncap{Task: do.Task, Many: many("uncap", do)}}
	}
	if do := in.Protect; do != nil && err == nil {
		c.Do = &wire.Command_Protect_{Protect: &wire.Command_Protect{Task: do.Task, Many: many("protect", do)}}
	}
	if do := in.Unprotect; do != nil && err == nil {
		c.Do = &wire.Command_Protect_{Protect: &wire.Command_Protect{Task: do.Task, Off: true, Many: many("unprotect", do)}}
	}
	if do := in.Enforcement; do != nil && err == nil {
		n, what, whom = n+1, "enforcement", do.Mode
		if !slices.Contains([]string{"off", "advise", "on"}, do.Mode) {
			err = bad("enforcement.mode: %.40q: want off, advise or on", do.Mode)
		}
		c.Do = &wire.Command_Enforcement_{Enforcement: &wire.Command_Enforcement{Mode: do.Mode}}
	}
	where := in.Machine
	if in.Cluster {
		where = "all machines"
	}
	switch {
	case (in.Machine == "") != in.Cluster:
		return nil, "", bad("want machine, a name, or cluster, true")
	case err != nil:
		return nil, "", err
	case n != 1:
		return nil, "", bad("want one of cap, uncap, protect, unprotect, enforcement")
	}
	return c, strings.Join([]string{where, what, whom}, " "), nil
}

// about names whom a command is about, of which there must be one kind.
func about(what string, w *cluster.Whom) (string, error) {
	var all []string
	for prefix, value := range map[string]string{"": w.Task, "job ": w.Job, "class ": w.Class} {
		if value != "" {
			all = append(all, prefix+value)
		}
	}
	if w.All {
		all = append(all, "all tasks")
	}
	if len(all) != 1 {
		return "", bad("%s: want one of task, job, class, all", what)
	}
	if w.Class != "" {
		if _, err := sample.ParseClass(w.Class); err != nil {
			return "", bad("%s.class: %.40q: want latency-sensitive, batch or best-effort", what, w.Class)
		}
	}
	return all[0], nil
}
