package server

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"

	"github.com/quell-dev/quell/internal/cluster/api"
	"github.com/quell-dev/quell/internal/cluster/store"
	"github.com/quell-dev/quell/internal/cluster/store/dialect"
	"github.com/quell-dev/quell/internal/cluster/store/duck"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
)

// revocationsSQL selects the newest decision about each machine and job.
const revocationsSQL = `SELECT machine, job, epoch_ms(since), epoch_ms(until) FROM revocations
QUALIFY row_number() OVER (PARTITION BY machine, job ORDER BY "at" DESC) = 1`

// revocations reads what is revoked. They are read for each computation: another server of the
// store may have taken the request.
func (s *Server) revocations(ctx context.Context) (all []spec.Revocation, err error) {
	sn := s.Store.Snapshot(0, 0)
	defer sn.Close()
	a, err := s.askAll(ctx, sn, duck.Job{SQL: revocationsSQL})
	if err != nil {
		return nil, fmt.Errorf("read revocations: %w", err)
	}
	for _, row := range a.Rows {
		var r spec.Revocation
		var until *sample.Millis
		into := []any{&r.Machine, &r.Job, &r.From, &until}
		if err := json.Unmarshal(row, &into); err != nil {
			return nil, fmt.Errorf("read revocations: %w", err)
		}
		r.To = math.MaxInt64
		if until != nil {
			r.To = *until
		}
		if r.To >= r.From { // else it is lifted
			all = append(all, r)
		}
	}
	return all, nil
}

// newestSQL selects when the newest decision about a machine and job was made.
const newestSQL = `SELECT epoch_ms(max("at")) FROM revocations WHERE machine = %s AND job = %s`

// newest returns when a decision is made that comes after those that there are: a clock that was ahead may
// have dated one.
func (s *Server) newest(ctx context.Context, machine, job string, now sample.Millis) (sample.Millis, error) {
	sn := s.Store.Snapshot(0, 0)
	defer sn.Close()
	d := dialect.DuckDB()
	a, err := s.askAll(ctx, sn, duck.Job{SQL: fmt.Sprintf(newestSQL, d.Quote(machine), d.Quote(job))})
	if err != nil {
		return 0, fmt.Errorf("read revocations: %w", err)
	}
	for _, row := range a.Rows {
		var at *sample.Millis
		if err := json.Unmarshal(row, &[]any{&at}); err != nil {
			return 0, fmt.Errorf("read revocations: %w", err)
		}
		if at != nil {
			now = max(now, *at+1)
		}
	}
	return now, nil
}

// revokeSpecs takes back what was learnt from a machine, about a job, or both, and computes all
// specs again without it.
func (s *Server) revokeSpecs(w http.ResponseWriter, r *request) error {
	var in cluster.Revocation
	if err := body(r, &in); err != nil {
		return err
	}
	if err := in.Validate(); err != nil {
		return bad("%v", err)
	}
	now := s.now()
	since, until, err := span(in.Since, in.Until, now)
	if err != nil {
		return err
	}
	row := store.Revocation{Machine: in.Machine, Job: in.Job, Since: int64(since), By: r.caller.name, Why: in.Why}
	switch last := int64(until); {
	case in.Lift:
		last = row.Since - 1
		row.Until = &last
	case until > 0:
		row.Until = &last
	}
	changed := func() string {
		s.specs.mu.Lock()
		defer s.specs.mu.Unlock()
		return fmt.Sprintf("%s; %d specs changed", &in, s.specs.changed)
	}
	ctx, cancel := s.lasting(r.Context())
	defer cancel()
	err = s.runAudited(r, cluster.PathRevoke, in.String(), in.Why, changed, func() error {
		at, err := s.newest(ctx, row.Machine, row.Job, now)
		if err != nil {
			return err
		}
		row.At = int64(at)
		s.Store.Add(&store.Batch{Revocations: []store.Revocation{row}})
		if err := s.Store.Flush(); err != nil {
			return fmt.Errorf("store the revocation: %w", err)
		}
		return s.learn(ctx)
	})
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, cluster.Done{Message: changed()})
}
