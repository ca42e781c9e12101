package bus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
)

// decisionBucket is the name of the bucket of decisions. Only servers read it: they send
// agents what they lack.
const decisionBucket = "decisions"

const (
	// freshFor is how long signed decisions may be received first: what an intruder has kept
	// of older ones is no use after that, not even with an agent that has lost its state.
	freshFor = 24 * time.Hour
	// signAgain is the age at which a server signs decisions again.
	signAgain = freshFor / 4
	// reissuePause is between two new revisions that were made because a machine has a newer
	// one than the bucket.
	reissuePause = time.Minute
	// mostSent is how often in a second a machine is sent what it lacks: it may say so as often as it likes,
	// in a message that is hundreds of times smaller.
	mostSent = 5
)

// decider is the server's side of the account of commands. It signs decisions with the key in
// its credentials. The only messages that agents may publish there are their states and
// renewals, each machine on its own subjects.
type decider struct {
	link        *connection
	credentials string
	log         *slog.Logger
	kv          jetstream.KeyValue

	mu      sync.Mutex
	current map[string]*document // by machine; "": for all
	loaded  bool                 // current has what was in the bucket
	renewed map[string]time.Time // when a revision was made because of a machine's
	second  time.Time            // when it began
	sent    map[string]int       // to each machine in that second
}

// document is what stands for a machine or for all, as stored.
type document struct {
	*wire.Decisions
	signed []byte
}

// decisions returns the list of a document, without those that have ended and those of newer
// servers, which nothing here can read.
func (d *document) decisions(now time.Time) (all []command.Decision) {
	if d == nil {
		return nil
	}
	for _, m := range d.List {
		if c, err := wire.DecodeDecision(m); err == nil && c.Stands(sample.At(now)) {
			all = append(all, c)
		}
	}
	return all
}

// empty reports whether nothing stands, also of what only a newer server can read.
func (d *document) empty(now time.Time) bool {
	return !slices.ContainsFunc(d.List, func(m *wire.Command) bool {
		c, _ := wire.DecodeDecision(m) // its end is known in any case
		return c.Stands(sample.At(now))
	})
}

// sign encodes decisions with the signature of a server's credentials.
func sign(credentials string, d *wire.Decisions) ([]byte, error) {
	if credentials == "" {
		return nil, errors.New("sign decisions: the server has no credentials, and agents follow no decisions without")
	}
	f, err := credential.Load(credentials) // it may have been replaced
	if err != nil {
		return nil, err
	}
	signed := &wire.SignedDecisions{}
	if signed.Decisions, err = wire.Marshal(d); err != nil {
		return nil, err
	}
	s, err := f.Sign(signed.Decisions)
	if err != nil {
		return nil, err
	}
	signed.Signer, signed.Endorsements, signed.Signature = s.Signer, s.Endorsements, s.Bytes
	return wire.Marshal(signed)
}

// readSigned decodes what sign made, without checking the signature: for the bucket, where
// only servers publish.
func readSigned(data []byte) (*document, error) {
	var signed wire.SignedDecisions
	if err := wire.Unmarshal(data, &signed); err != nil {
		return nil, err
	}
	d := &document{&wire.Decisions{}, data}
	return d, wire.Unmarshal(signed.Decisions, d.Decisions)
}

// maxConflicts is how often a change is tried again because another server was faster.
const maxConflicts = 10

// decide changes the decisions for a machine, or for all if it is empty, as change says, and
// sends them. It returns their revision.
func (s *decider) decide(ctx context.Context, machine string, change func([]command.Decision) ([]command.Decision, error)) (uint64, error) {
	key := wire.DecisionsKey(machine)
	for range maxConflicts {
		old, at, err := s.stored(ctx, key)
		if err != nil {
			return 0, fmt.Errorf("read decisions: %w", err)
		}
		exists := old != nil
		if known := s.known(machine); known != nil && (!exists || old.Revision < known.Revision) {
			old = known // the bucket was set back (restore)
		}
		now := time.Now()
		list, err := change(old.decisions(now))
		if err != nil {
			return 0, err
		}
		// A mode is never one too many: it may end enforcement.
		others := slices.DeleteFunc(slices.Clone(list), func(d command.Decision) bool { return d.Enforcement != nil })
		if len(others) > command.MaxDecisions {
			return 0, fmt.Errorf("%d decisions stand: revoke one first", len(others)-1)
		}
		d := &wire.Decisions{Machine: machine, Revision: uint64(now.UnixNano()), Signed: now.UnixMilli(), Fresh: now.Add(freshFor).UnixMilli()}
		if old != nil {
			d.Revision = max(d.Revision, old.Revision+1)
		}
		var before []*wire.Command
		if old != nil {
			before = old.List
		}
		d.List = wire.EncodeDecisions(list, before, sample.At(now))
		data, err := sign(s.credentials, d)
		if err != nil {
			return 0, err
		}
		if exists {
			_, err = s.kv.Update(ctx, key, data, at)
		} else {
			_, err = s.kv.Create(ctx, key, data)
		}
		switch {
		case isConflict(err):
			continue
		case err != nil:
			return 0, fmt.Errorf("store decisions: %w", err)
		}
		s.note(&document{d, data})
		if err := s.publish(machine, data); err != nil { // they stand: update sends them to each machine that says what it has
			s.log.Warn("decisions are stored, and are sent when there is a connection again", "machine", machine, "reason", err)
		}
		return d.Revision, nil
	}
	return 0, errors.New("store decisions: other servers change them all the time")
}

// isConflict reports whether a key had another revision than expected. Of a stream with replicas NATS says
// that with another code, if both changes are under way.
func isConflict(err error) bool {
	var of *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) ||
		errors.As(err, &of) && of.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant
}

// stored returns what the bucket has, nil if it has nothing, and its number there.
func (s *decider) stored(ctx context.Context, key string) (*document, uint64, error) {
	entry, err := s.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	d, err := readSigned(entry.Value())
	if err != nil { // of a newer server, or damaged: it is not overwritten
		return nil, 0, err
	}
	return d, entry.Revision(), nil
}

// known returns the newest document for a machine that was seen, nil if there is none.
func (s *decider) known(machine string) *document {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current[machine]
}

// note keeps a document if it is newer than the known one.
func (s *decider) note(d *document) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.current[d.Machine]; old == nil || old.Revision < d.Revision {
		s.current[d.Machine] = d
	}
}

func (s *decider) publish(machine string, data []byte) error {
	subject := wire.CommandAll
	if machine != "" {
		subject = wire.CommandSubject(machine)
	}
	if err := s.link.nc.Publish(subject, data); err != nil {
		return fmt.Errorf("send decisions: %w", err)
	}
	return nil
}

// follow keeps current as the bucket is, which other servers change too, until ctx ends.
func (s *decider) follow(ctx context.Context) error {
	w, err := s.kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("follow decisions: %w", err)
	}
	defer func() { _ = w.Stop() }() // of a lost connection: gone with it
	for {
		select {
		case <-ctx.Done():
			return nil
		case entry, more := <-w.Updates():
			switch {
			case !more:
				return errors.New("follow decisions: the bucket's changes ended")
			case entry == nil: // all that was there has come
				s.mu.Lock()
				s.loaded = true
				s.mu.Unlock()
				if err := s.greet(ctx); err != nil && ctx.Err() == nil {
					s.log.Warn("ask machines which decisions they have", "reason", err)
				}
			case entry.Operation() != jetstream.KeyValuePut:
				s.forget(entry.Key())
			default:
				d, err := readSigned(entry.Value())
				if err != nil {
					s.log.Error("decisions cannot be read", "key", entry.Key(), "reason", err)
					continue
				}
				s.note(d)
			}
		}
	}
}

// forget drops a document that was removed from the bucket.
func (s *decider) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.current, func(machine string, _ *document) bool { return wire.DecisionsKey(machine) == key })
}

// greet sends the decisions for all, if only that there are none, so that agents which are
// connected say what they have.
func (s *decider) greet(ctx context.Context) error {
	d := s.known("")
	if d == nil {
		_, err := s.decide(ctx, "", unchanged)
		return err
	}
	return s.publish("", d.signed)
}

// serve receives machines' states until ctx ends, and sends each machine what it lacks.
func (s *decider) serve(ctx context.Context, each func(*wire.State)) error {
	states := newInbox(0)
	sub, err := s.link.nc.Subscribe(wire.AllStates, states.put)
	if err != nil {
		return fmt.Errorf("receive states: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // of a lost connection: gone with it
	dropped, said := 0, time.Time{}
	for m := states.next(ctx); m != nil; m = states.next(ctx) {
		state, err := readState(m.Msg)
		if err != nil { // its machine may send as many as it likes
			if dropped++; time.Since(said) >= time.Minute {
				s.log.Warn("states were dropped", "number", dropped, "the last on", m.Subject, "reason", err)
				dropped, said = 0, time.Now()
			}
			continue
		}
		each(state)
		if err := s.update(ctx, state); err != nil && ctx.Err() == nil {
			s.log.Warn("send a machine what it lacks", "machine", state.Machine, "reason", err)
		}
	}
	return nil
}

// inbox has each machine's newest message that is not read yet. A machine may send them faster than they are
// read, of 1 MB: they take no more memory, and no machine waits for another's.
type inbox struct {
	come  chan struct{}
	lasts time.Duration // nobody awaits the answer to what has waited longer; 0: all is read

	mu     sync.Mutex
	newest map[string]*received // by subject
	order  []string             // the subjects
}

type received struct {
	*nats.Msg
	at time.Time
}

func newInbox(lasts time.Duration) *inbox {
	return &inbox{come: make(chan struct{}, 1), lasts: lasts, newest: map[string]*received{}}
}

func (i *inbox) put(m *nats.Msg) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.newest[m.Subject] == nil {
		i.order = append(i.order, m.Subject)
	}
	i.newest[m.Subject] = &received{m, time.Now()}
	nudge(i.come)
}

// next waits for the next message; nil when ctx has ended.
func (i *inbox) next(ctx context.Context) *received {
	for ctx.Err() == nil {
		if m := i.take(); m != nil {
			return m
		}
		select {
		case <-ctx.Done():
		case <-i.come:
		}
	}
	return nil
}

// waiting is of how many machines a message waits.
func (i *inbox) waiting() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.order)
}

// take returns the message of the machine that has waited longest, nil if none waits.
func (i *inbox) take() *received {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.order) > 0 {
		subject := i.order[0]
		m := i.newest[subject]
		delete(i.newest, subject)
		i.order = i.order[1:]
		if i.lasts == 0 || time.Since(m.at) <= i.lasts {
			return m
		}
	}
	return nil
}

// update sends a machine the decisions that it lacks. If it has newer ones than the bucket,
// the bucket was lost or restored from an old copy: what the bucket has, if only nothing, gets
// a newer revision. So does what was signed too long ago to be sent.
func (s *decider) update(ctx context.Context, state *wire.State) error {
	now := time.Now()
	var send [][]byte
	again := map[string]slog.Level{}
	s.mu.Lock()
	if !s.loaded {
		s.mu.Unlock()
		return nil
	}
	if now.Sub(s.second) >= time.Second {
		s.second, s.sent = now, map[string]int{}
	}
	for machine, has := range map[string]uint64{"": state.All, state.Machine: state.Own} {
		d := s.current[machine]
		fresh := d != nil && now.UnixMilli() <= d.Fresh // else machines refuse it: this server was off for long
		switch {
		case fresh && has < d.Revision:
			if s.sent[state.Machine] < 2*mostSent {
				s.sent[state.Machine]++
				send = append(send, d.signed)
			}
		case (d == nil && has > 0 || d != nil && has != d.Revision) && has <= uint64(now.UnixNano()) && now.Sub(s.renewed[machine]) >= reissuePause:
			s.renewed[machine] = now
			again[machine] = slog.LevelInfo // usually one in which nothing stood, which refresh has removed
			if d != nil && has > d.Revision {
				again[machine] = slog.LevelWarn
			}
		}
	}
	s.mu.Unlock()
	var errs []error
	for _, data := range send {
		errs = append(errs, s.publish(state.Machine, data))
	}
	for machine, level := range again {
		s.log.Log(ctx, level, "a machine has newer decisions than the bucket, or those are too old to be received: those of the bucket are signed again", "machine", state.Machine, "for all", machine == "")
		_, err := s.decide(ctx, machine, unchanged)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func unchanged(list []command.Decision) ([]command.Decision, error) { return list, nil }

// refresh signs again what was signed long ago, or by a clock that was ahead and was set back since,
// without what has ended: agents refuse both. It removes machines' documents in which nothing has
// stood for as long as an old one could be received, and puts back those that the bucket has lost.
func (s *decider) refresh(ctx context.Context, now time.Time) error {
	ahead := func(d *document) bool { return d.Signed > now.Add(maxAhead).UnixMilli() }
	s.mu.Lock()
	all := slices.Collect(maps.Values(s.current))
	s.mu.Unlock()
	var errs []error
	var due []*document
	for _, d := range all {
		if d.Machine == "" || !d.empty(now) {
			errs = append(errs, s.restore(ctx, d))
		}
		if now.UnixMilli()-d.Signed >= signAgain.Milliseconds() || ahead(d) {
			due = append(due, d)
		}
	}
	for _, d := range due {
		if d.Machine != "" && d.empty(now) && !ahead(d) {
			if now.UnixMilli() > d.Fresh {
				errs = append(errs, s.remove(ctx, d))
			}
			continue
		}
		_, err := s.decide(ctx, d.Machine, unchanged)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// restore makes the bucket and what is known here the same again. An external NATS server may have been
// set back to an old copy, and then also says nothing of what other servers change.
func (s *decider) restore(ctx context.Context, d *document) error {
	key := wire.DecisionsKey(d.Machine)
	stored, at, err := s.stored(ctx, key)
	switch {
	case err != nil:
	case stored == nil:
		_, err = s.kv.Create(ctx, key, d.signed)
	case stored.Revision < d.Revision:
		_, err = s.kv.Update(ctx, key, d.signed, at)
	default:
		s.note(stored)
	}
	if isConflict(err) { // another server was faster
		return nil
	}
	return err
}

func (s *decider) remove(ctx context.Context, d *document) error {
	key := wire.DecisionsKey(d.Machine)
	stored, at, err := s.stored(ctx, key)
	if err != nil || stored == nil || stored.Revision != d.Revision {
		return err
	}
	return s.kv.Delete(ctx, key, jetstream.LastRevision(at)) // follow hears of it
}

// Bounds of a state, for the audit log and for people.
const (
	maxReplyText = 4096
	maxRefused   = 1000
)

// readState reads a machine's state. The bus has checked that the machine in its subject has
// sent it.
func readState(m *nats.Msg) (*wire.State, error) {
	var state wire.State
	if err := wire.Unmarshal(m.Data, &state); err != nil {
		return nil, err
	}
	if wire.StateSubject(state.Machine) != m.Subject || state.Machine == "" {
		return nil, &ForgedError{m.Subject, state.Machine}
	}
	state.Agent, state.Mode, state.From, state.By = cut(state.Agent), cut(state.Mode), cut(state.From), cut(state.By)
	// Copied: the rest of a message of 1 MB, 500,000 empty outcomes, would stay in memory with it.
	state.Outcomes = slices.Clone(state.Outcomes[:min(len(state.Outcomes), 2*command.MaxDecisions)])
	for _, r := range state.Outcomes {
		r.Id, r.Message, r.Cap = cut(r.Id), cut(r.Message), cut(r.Cap)
		r.Refused = slices.Clone(r.Refused[:min(len(r.Refused), maxRefused)])
		for i, text := range r.Refused {
			r.Refused[i] = cut(text)
		}
	}
	return &state, nil
}

// cut shortens a text.
func cut(text string) string {
	if len(text) <= maxReplyText {
		return text
	}
	return strings.ToValidUTF8(text[:maxReplyText], "") + " …"
}

// Decide changes the decisions that stand for a machine, or for all if it is empty: change
// gets those that have not ended and returns the new list. It may be called again if another
// server was faster. Decide stores and sends them, and returns their revision.
func (b *Bus) Decide(ctx context.Context, machine string, change func([]command.Decision) ([]command.Decision, error)) (revision uint64, err error) {
	return b.commands.decide(ctx, machine, change)
}

// Decisions returns what stands, for all first, then by machine.
func (b *Bus) Decisions() []command.Standing {
	now := time.Now()
	b.commands.mu.Lock()
	defer b.commands.mu.Unlock()
	all := make([]command.Standing, 0, len(b.commands.current))
	for machine, d := range b.commands.current {
		all = append(all, command.Standing{Machine: machine, Revision: d.Revision, List: d.decisions(now)})
	}
	slices.SortFunc(all, func(x, y command.Standing) int { return strings.Compare(x.Machine, y.Machine) })
	return all
}

// ServeDecisions receives machines' states and sends each machine the decisions that it
// lacks, until ctx ends.
func (b *Bus) ServeDecisions(ctx context.Context, each func(*wire.State)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	following.Go(func() {
		for ctx.Err() == nil {
			if err := b.commands.follow(ctx); err != nil && ctx.Err() == nil {
				b.log.Warn("bus", "reason", err)
				b.commands.link.wait(ctx, b.commands.link.epoch(), time.Second)
			}
		}
	})
	return b.commands.serve(ctx, each)
}

// RefreshDecisions signs again the decisions that were signed long ago, so that agents which
// are new or were away still accept them.
func (b *Bus) RefreshDecisions(ctx context.Context) error { return b.commands.refresh(ctx, time.Now()) }
