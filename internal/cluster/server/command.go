package server

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/format/wire"
)

// commandTime is the time limit for the machines' replies.
const commandTime = 10 * time.Second

// lately is the age of a machine's last message up to which it is expected to answer a
// command to all.
const lately = 5 * time.Minute

// grace is how long to wait for further machines after all expected ones have answered.
const grace = 300 * time.Millisecond

func (s *Server) command(w http.ResponseWriter, r *request) error {
	var in cluster.Command
	if err := body(r, &in); err != nil {
		return err
	}
	if err := in.Validate(); err != nil {
		return bad("%v", err)
	}
	c := wire.EncodeCommand(&in.Command)
	var out cluster.Replies
	outcome := func() string { return summary(&in, &out) }
	err := s.runAudited(r, cluster.PathCommands, in.String(), in.Why, outcome, func() (err error) {
		if s.Commander == nil {
			return &httpError{http.StatusServiceUnavailable, "the server has no connection to machines", "set bus.listen or bus.url"}
		}
		now := s.Now()
		c.Who, c.Id, c.Expires = r.caller.name, fmt.Sprintf("%s-%d", r.caller.name, now.UnixNano()), now.Add(commandTime).UnixMilli()
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

// commandOne sends a command to a machine; a refusal by the machine is an error.
func (s *Server) commandOne(ctx context.Context, machine string, c *wire.Command) (out cluster.Replies, err error) {
	answer, err := s.Commander.Command(ctx, machine, c)
	if err != nil {
		return out, &httpError{http.StatusBadGateway, err.Error(), "see `quell machines`: its agent may be down or disconnected"}
	}
	if !answer.Ok {
		return out, &httpError{http.StatusConflict, printable.Text(answer.Message), ""}
	}
	return cluster.Replies{Replies: []cluster.Reply{replyOf(answer)}, Silent: []string{}}, nil
}

// commandAll sends a command to all machines and waits for those that have sent messages
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
	err := s.Commander.CommandAll(ctx, c, func(r *wire.Reply) {
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
		return out, &httpError{http.StatusBadGateway, "no machine has answered", "see `quell machines`: agents may be down or disconnected"}
	}
	return out, nil
}

// replyOf converts a reply. Its texts come from the machine: each is one line.
func replyOf(r *wire.Reply) cluster.Reply {
	out := cluster.Reply{Machine: r.Machine, OK: r.Ok, NoMatch: r.None, Message: printable.Text(r.Message), Cap: printable.Text(r.Cap), Tasks: int(r.Tasks)}
	for _, why := range r.Refused {
		out.Refused = append(out.Refused, printable.Text(why))
	}
	return out
}

// summary is the outcome of a command for the audit log. The outcome on each machine is
// in the table actions.
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
		text += fmt.Sprintf("; %d did not answer: %s", n, strings.Join(out.Silent[:min(n, 10)], ", "))
	}
	return text
}
