package server

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
)

// rollOutEvery is how often roll-outs are looked at.
const rollOutEvery = 15 * time.Second

// enough is the share of a step's machines that must have the decision, and be heard of lately,
// before the next step.
const enough = 0.9

// rollOut moves each roll-out of a mode to its next step when it is time, and stops it when
// outcomes of caps turn bad.
func (s *Server) rollOut(ctx context.Context) error {
	for _, standing := range s.Decider.Decisions() {
		if standing.Machine != "" {
			continue
		}
		for _, d := range standing.List {
			if d.Rollout == nil || d.Rollout.Stopped != "" || !d.Stands(s.now()) {
				continue
			}
			if err := s.step(ctx, &standing, d); err != nil {
				return fmt.Errorf("roll out %s: %w", d.Command.String(), err)
			}
		}
	}
	return nil
}

// step looks at one roll-out.
func (s *Server) step(ctx context.Context, standing *command.Standing, d command.Decision) error {
	tally, err := s.outcomes(ctx, &d)
	if err != nil {
		return err
	}
	now := s.now()
	next, did := d, ""
	switch why := tally.Bad(); {
	case why != "":
		r := *d.Rollout
		r.Stopped = why
		next.Rollout, did = &r, "stopped: "+why
	case now.Sub(d.Rollout.Since) < time.Duration(d.Rollout.Every) || !s.arrived(standing, &d):
		return nil
	default:
		next = d.Begin(d.Rollout.Step+1, slices.Collect(maps.Keys(s.seen())), d.Rollout.Every, now)
		if did = "all machines"; next.Rollout != nil {
			did = next.Rollout.Text()
		}
	}
	changed := false
	_, err = s.Decider.Decide(ctx, "", func(list []command.Decision) ([]command.Decision, error) {
		changed = slices.ContainsFunc(list, func(old command.Decision) bool {
			return old.ID == d.ID && old.Rollout != nil && *old.Rollout == *d.Rollout
		})
		if !changed { // it was revoked meanwhile, or another server that leads now has moved or stopped it
			return list, nil
		}
		return command.Add(list, next), nil
	})
	if err != nil || !changed {
		return err
	}
	s.Log.Warn("roll-out", "what", d.Command.String(), "now", did, "helped", tally.Helped, "failed", tally.Failed)
	s.record(store.Audit{Who: "quell-server", What: "roll-out", Target: d.Command.String(), Why: d.Why,
		Outcome: fmt.Sprintf("%s; %d caps helped, %d did not or failed", did, tally.Helped, tally.Failed)})
	return s.Store.Flush()
}

// arrived reports whether enough machines of the step have the decision: of those that had been heard
// of when it began or later, also before this server was started.
func (s *Server) arrived(standing *command.Standing, d *command.Decision) bool {
	now, all, have := s.now(), 0, 0
	states, machines := s.states.all(), map[string]bool{}
	since := func(at sample.Millis) bool { // a clock that was ahead says nothing
		return at >= d.Rollout.Since.Add(-lately) && at <= now.Add(lately)
	}
	for machine, state := range states {
		if since(state.at) {
			machines[machine] = true
		}
	}
	for source, m := range s.Store.Marks() {
		if (source.Stream == samplesStream || source.Stream == recordsStream) && since(m.At) {
			machines[source.Machine] = true
		}
	}
	for machine := range machines {
		if !d.Rollout.Includes(d.ID, machine) {
			continue
		}
		all++
		if state, known := states[machine]; known && now.Sub(state.at) <= lately && has(state.State, "", standing.Revision) {
			have++
		}
	}
	return all > 0 && float64(have) >= enough*float64(all)
}

// outcomesSQL counts the outcomes of caps since a roll-out began, by machine and whether they helped: those of one as
// ten at most, in the same proportion, so that one that lies does not outweigh what the caps of others do.
const outcomesSQL = `SELECT machine, if(outcome = '%[1]s', outcome, '') AS result,
10e0 * count(*) / greatest(10, sum(count(*)) OVER (PARTITION BY machine))
FROM incidents WHERE outcome IN ('%[1]s', '%[2]s', '%[3]s', '%[4]s') AND epoch_ms(opened) >= %[5]d GROUP BY machine, result`

// outcomes tallies the caps on the machines that a roll-out has reached.
func (s *Server) outcomes(ctx context.Context, d *command.Decision) (t command.Tally, err error) {
	from, now := d.At, s.now()
	sn := s.Store.Snapshot(from, now)
	defer sn.Close()
	a, err := s.askAll(ctx, sn, duck.Job{SQL: fmt.Sprintf(outcomesSQL, plan.TruePositive, plan.FalsePositive, plan.Noise, plan.CapFailed, from), From: from, To: now})
	if err != nil {
		return t, fmt.Errorf("read outcomes: %w", err)
	}
	helped, failed := 0.0, 0.0
	for _, row := range a.Rows {
		var machine, outcome string
		var n float64
		if err := json.Unmarshal(row, &[]any{&machine, &outcome, &n}); err != nil {
			return t, fmt.Errorf("read outcomes: %w", err)
		}
		switch {
		case !d.Rollout.Includes(d.ID, machine):
		case plan.Outcome(outcome) == plan.TruePositive:
			helped += n
		default:
			failed += n
		}
	}
	t = command.Tally{Helped: int(helped + 1e-6), Failed: int(failed + 1e-6)} // sums of shares are not exact
	if t.Helped == t.Failed && helped > failed+1e-6 {
		t.Helped++
	}
	return t, nil
}
