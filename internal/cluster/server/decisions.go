package server

import (
	"context"
	"iter"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/printable"
	"github.com/quell-dev/quell/internal/format/wire"
)

// states is what machines have said of operators' decisions since this server started.
type states struct {
	mu      sync.Mutex
	by      map[string]machineState
	waiting map[chan *wire.State]bool // who gets each new one, while there is room
}

type machineState struct {
	*wire.State
	at sample.Millis
}

// maxMachines bounds the machines that states remembers: as many as may have credentials.
const maxMachines = 1 << 20

// put records what a machine has said.
func (s *states) put(state *wire.State, now sample.Millis) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[string]machineState{}
	}
	if _, known := s.by[state.Machine]; known || len(s.by) < maxMachines {
		s.by[state.Machine] = machineState{state, now}
	}
	for c := range s.waiting {
		select {
		case c <- state:
		default: // what it missed is in by
		}
	}
}

// watch returns a channel of new states, and the function that ends it.
func (s *states) watch() (c chan *wire.State, end func()) {
	c = make(chan *wire.State, 1<<14)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting = map[chan *wire.State]bool{}
	}
	s.waiting[c] = true
	return c, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting, c)
	}
}

// all returns a copy.
func (s *states) all() map[string]machineState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.by)
}

// get returns what a machine has said last.
func (s *states) get(machine string) (machineState, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, known := s.by[machine]
	return m, known
}

// serveDecisions receives machines' states until ctx ends.
func (s *Server) serveDecisions(ctx context.Context) {
	for ctx.Err() == nil {
		err := s.Decider.ServeDecisions(ctx, func(state *wire.State) { s.states.put(state, s.now()) })
		if err == nil || ctx.Err() != nil {
			continue
		}
		s.Log.Error("receive machines' states; trying again", "reason", err)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// seen are the machines that have been heard of lately.
func (s *Server) seen() map[string]bool {
	now, seen := s.now(), map[string]bool{}
	within := func(at sample.Millis) bool { return now.Sub(at).Abs() <= lately } // a clock that was ahead says nothing
	for source, m := range s.Store.Marks() {
		if (source.Stream == samplesStream || source.Stream == recordsStream) && within(m.At) {
			seen[source.Machine] = true
		}
	}
	for machine, m := range s.states.all() {
		if within(m.at) {
			seen[machine] = true
		}
	}
	return seen
}

// knows reports whether a machine was ever heard of.
func (s *Server) knows(machine string) bool {
	if _, known := s.states.get(machine); known {
		return true
	}
	for source := range s.Store.Marks() {
		if source.Machine == machine {
			return true
		}
	}
	return false
}

// has reports whether a state has a revision of a machine's decisions, or of those for all.
func has(state *wire.State, machine string, revision uint64) bool {
	if machine == "" {
		return state.All >= revision
	}
	return state.Own >= revision
}

// outcomeOf returns what a machine has done about a decision, nil if it says nothing of it.
func outcomeOf(state *wire.State, id string) *wire.Reply {
	if i := slices.IndexFunc(state.Outcomes, func(r *wire.Reply) bool { return r.Id == id }); i >= 0 {
		return state.Outcomes[i]
	}
	return nil
}

// maxNamed bounds the machines that a decision's view names.
const maxNamed = 20

// listDecisions returns what stands and who has it.
func (s *Server) listDecisions(w http.ResponseWriter, r *request) error {
	all := []cluster.Decision{}
	if s.Decider == nil {
		return reply(w, http.StatusOK, all)
	}
	known, seen := s.states.all(), s.seen()
	for _, standing := range s.Decider.Decisions() {
		for _, d := range standing.List {
			all = append(all, s.viewOf(standing, d, known, seen))
		}
	}
	return s.withMemory(r, int64(len(all))*rowBytes, func() error { return replyList(s, w, r, slices.Values(all), false) })
}

func (s *Server) viewOf(standing command.Standing, d command.Decision, known map[string]machineState, seen map[string]bool) cluster.Decision {
	v := cluster.Decision{Machine: standing.Machine, Revision: standing.Revision, Decision: d}
	machines := slices.Sorted(maps.Keys(seen))
	if standing.Machine != "" {
		machines = []string{standing.Machine}
	}
	v.Machines = len(machines)
	for _, m := range machines {
		state, ok := known[m]
		if !ok || !has(state.State, standing.Machine, standing.Revision) {
			if len(v.Waiting) < maxNamed {
				v.Waiting = append(v.Waiting, m)
			}
			continue
		}
		v.Have++
		switch o := outcomeOf(state.State, d.ID); {
		case o == nil:
		case o.Ok:
			v.Done++
		case o.None:
			v.None++
		default:
			v.Refused++
		}
	}
	return v
}

// withStates adds to machines what they have said, and those that have sent nothing else.
func (s *Server) withStates(machines iter.Seq[*cluster.Machine]) iter.Seq[*cluster.Machine] {
	known := s.states.all()
	newest := map[string]uint64{}
	if s.Decider != nil {
		for _, standing := range s.Decider.Decisions() {
			newest[standing.Machine] = standing.Revision
		}
	}
	return func(yield func(*cluster.Machine) bool) {
		for m := range machines {
			if state, ok := known[m.Machine]; ok {
				m.State = stateOf(state, newest)
			}
			if !yield(m) {
				return
			}
		}
	}
}

// stateOf converts a state. Its texts come from the machine: each is one line.
func stateOf(m machineState, newest map[string]uint64) *cluster.State {
	return &cluster.State{At: m.at, Agent: printable.Text(m.Agent), All: m.All, Own: m.Own, Current: m.All >= newest[""] && m.Own >= newest[m.Machine],
		Mode: printable.Text(m.Mode), From: printable.Text(m.From), By: printable.Text(m.By)}
}
