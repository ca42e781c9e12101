package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// bucket is the name of the bucket of specs. Only servers read it: NATS bounds neither how often a
// client reads one, nor the answers that wait for it, and sends them to any subject that a client names.
const bucket = "specs"

// Specs are asked for again at every connection, and periodically in case an announcement
// was lost: core subjects guarantee no delivery.
const (
	askAllEvery = time.Hour
	askAgain    = 5 * time.Second // after a failure
	answerWait  = 5 * time.Second
	// askPause is between an agent's questions. The server answers a machine twice as often.
	askPause = 200 * time.Millisecond
	// mostAsked is how many jobs' specs are asked for together, and answerBytes how many bytes an answer has
	// before the last of them: what is left out is asked for again. A machine may have hundreds of copies of
	// an answer sent to itself.
	mostAsked   = 128
	answerBytes = 64 << 10
)

// specs is what an uplink knows about the jobs that it follows.
type specs struct {
	machine string
	link    *connection // on which they are announced
	asks    *connection // on which they are asked for, and answered
	change  chan struct{}
	come    chan struct{} // an answer with specs that were asked for
	asked   time.Time     // when they were last; of run

	mu        sync.Mutex
	wanted    map[string]*wire.Specs // by key: the question
	got       map[string]bool        // keys that were answered in this epoch
	revisions map[string]revision    // by key, of the specs that were accepted
	arrived   []spec.Spec            // since take

	stale  atomic.Bool // all must be asked for again
	failed problem     // of the last question
}

// revision is the revision of specs and the epoch of the connection that delivered it.
type revision struct{ number, epoch uint64 }

func newSpecs(machine string, link, asks *connection) *specs {
	return &specs{machine: machine, link: link, asks: asks, change: make(chan struct{}, 1), come: make(chan struct{}, 1),
		got: map[string]bool{}, revisions: map[string]revision{}}
}

func (s *specs) want(platform sample.Platform, jobs []sample.JobName) {
	wanted := make(map[string]*wire.Specs, len(jobs))
	for _, j := range jobs {
		wanted[wire.SpecKey(string(j), string(platform))] = &wire.Specs{Job: string(j), Platform: string(platform)}
	}
	s.mu.Lock()
	s.wanted = wanted
	s.mu.Unlock()
	nudge(s.change)
}

// missed records that announcements were lost.
func (s *specs) missed() {
	s.stale.Store(true)
	nudge(s.change)
}

func (s *specs) drain() []spec.Spec {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.arrived
	s.arrived = nil
	return all
}

// run keeps the subscriptions as wanted and asks for what they may have missed.
func (s *specs) run(ctx context.Context) {
	subscribed := map[string]*nats.Subscription{}
	var epoch uint64
	for ctx.Err() == nil {
		now := s.link.epoch()
		if stale := s.stale.Swap(false); stale || now != epoch {
			epoch = now
			s.forget()
		}
		// Before it is looked whether there are connections: one may be made meanwhile.
		made, asksMade := s.link.changed(epoch), s.asks.changed(s.asks.epoch())
		missing, failed := s.reconcile(subscribed)
		pause := askAllEvery
		if failed == nil && len(missing) > 0 && s.link.nc.IsConnected() && s.asks.nc.IsConnected() {
			failed = s.ask(ctx, missing)
			pause = 0 // ask keeps its own
		}
		if s.failed.set(failed); failed != nil {
			pause = askAgain
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-s.change:
		case <-made:
		case <-asksMade:
		case <-timer.C:
			if pause == askAllEvery {
				s.forget()
			}
		}
		timer.Stop()
	}
}

// forget makes run ask for all again.
func (s *specs) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.got)
}

// reconcile subscribes, and returns the questions that are not answered. What there is no room to subscribe to
// is only asked for. NATS's client may be connecting, for seconds: neither Specs nor WatchSpecs waits for that.
func (s *specs) reconcile(subscribed map[string]*nats.Subscription) (missing []*wire.Specs, err error) {
	s.mu.Lock()
	wanted := s.wanted
	maps.DeleteFunc(s.got, func(key string, _ bool) bool { return wanted[key] == nil })
	maps.DeleteFunc(s.revisions, func(key string, _ revision) bool { return wanted[key] == nil })
	s.mu.Unlock()
	for key, sub := range subscribed {
		if wanted[key] == nil {
			_ = sub.Unsubscribe() // of a lost connection: gone with it
			delete(subscribed, key)
		}
	}
	for key := range wanted {
		if subscribed[key] == nil && len(subscribed) < credential.MostSpecs {
			sub, err := s.link.nc.Subscribe("spec."+key, func(m *nats.Msg) { s.announced(m.Data) })
			if err != nil {
				return nil, fmt.Errorf("subscribe to specs: %w", err)
			}
			subscribed[key] = sub
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, question := range wanted {
		if !s.got[key] {
			missing = append(missing, question)
		}
	}
	return missing, nil
}

// ask asks a server for specs, and returns when it has answered for some of them. It asks when NATS has the
// subscriptions, so that no change is missed in between.
func (s *specs) ask(ctx context.Context, missing []*wire.Specs) error {
	var questions [][]byte
	for _, m := range missing[:min(len(missing), mostAsked)] {
		data, err := wire.Marshal(m)
		if err != nil {
			return err
		}
		questions = append(questions, data)
	}
	s.asks.wait(ctx, s.asks.epoch(), time.Until(s.asked.Add(askPause)))
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	select {
	case <-s.come: // late, for an earlier question
	default:
	}
	err := s.link.nc.FlushWithContext(ctx)
	if err == nil {
		err = s.asks.nc.Publish(wire.QuestionSubject(s.machine), wire.Pack(questions...))
	}
	if err != nil {
		return fmt.Errorf("ask for specs: %w", err)
	}
	defer func() { s.asked = time.Now() }()
	select {
	case <-s.come:
		return nil
	case <-ctx.Done():
		return errors.New("ask for specs: no server answers")
	}
}

// answered accepts an answer, also one that comes late.
func (s *specs) answered(m *nats.Msg) {
	some := false
	for data := range wire.Unpack(m.Data) {
		some = s.accept(data, true) || some
	}
	if some {
		nudge(s.come)
	}
}

func (s *specs) announced(data []byte) { s.accept(data, false) }

// accept accepts specs that are newer than the known ones, and reports whether they were asked for. An
// announcement, or an answer from the bucket, can be late. If a new connection finds an older revision in the
// bucket, the server has started over, and that revision is accepted.
func (s *specs) accept(data []byte, bucket bool) (wanted bool) {
	var m wire.Specs
	if wire.Unmarshal(data, &m) != nil { // of a newer server
		return false
	}
	key, now := wire.SpecKey(m.Job, m.Platform), revision{m.Revision, s.link.epoch()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wanted[key] == nil { // no longer wanted: it was in flight
		return false
	}
	if bucket {
		wanted, s.got[key] = !s.got[key], true
	}
	known := s.revisions[key]
	if now.number == 0 || now.number == known.number || now.number < known.number && (!bucket || now.epoch == known.epoch) {
		return wanted
	}
	s.revisions[key] = now
	s.arrived = append(s.arrived, m.List()...)
	return wanted
}

// maxKey is the longest key of which there may be specs, bytes: NATS ends a connection on which a subject has 4 KB.
// An agent's names of jobs have 1,024 bytes at most, each of which may take three.
const maxKey = 3<<10 + 512

// ServeSpecs answers machines' questions for specs until ctx ends, one machine's ten in a second. An answer has
// what the bucket has of those jobs, and revision 0 for those of which it has nothing.
func (b *Bus) ServeSpecs(ctx context.Context) error {
	questions := newInbox(0)
	sub, err := b.commands.link.nc.QueueSubscribe(wire.AllQuestions, "servers", questions.put)
	if err != nil {
		return fmt.Errorf("answer questions for specs: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // of a lost connection: gone with it
	answered := map[string]time.Time{}       // by subject: as many as there are machines with credentials
	var said time.Time
	for m := questions.next(ctx); m != nil; m = questions.next(ctx) {
		// All machines ask at once after a restart, and many for the same jobs.
		all := []*received{m}
		for range questions.waiting() {
			all = append(all, questions.take())
		}
		read := map[string][]byte{} // after all these have come, so that none misses a change
		for _, m := range all {
			now := time.Now()
			if now.Sub(answered[m.Subject]) < askPause/2 {
				continue
			}
			answered[m.Subject] = now
			err := b.answerSpecs(ctx, m.Msg, read)
			if err != nil && ctx.Err() == nil && now.Sub(said) >= time.Minute {
				said = now
				b.log.Warn("a machine has no answer to its question for specs, and asks again", "subject", m.Subject, "reason", err)
			}
		}
	}
	return nil
}

// answerSpecs answers a question. What it reads for that is added to read, by key.
func (b *Bus) answerSpecs(ctx context.Context, m *nats.Msg, read map[string][]byte) error {
	var found [][]byte
	size := 0
	for question := range wire.Unpack(m.Data) {
		if len(found) == mostAsked || size > answerBytes {
			break
		}
		var q wire.Specs
		if wire.Unmarshal(question, &q) != nil {
			continue
		}
		key := wire.SpecKey(q.Job, q.Platform)
		if read[key] == nil {
			data, err := b.readSpecs(ctx, key, &q)
			if err != nil {
				return err
			}
			read[key] = data
		}
		data := read[key]
		found, size = append(found, data), size+len(data)
	}
	if len(found) == 0 {
		return nil
	}
	machine := strings.Split(m.Subject, ".")[1] // as in all subjects
	if err := b.commands.link.nc.Publish(wire.Answers+machine, wire.Pack(found...)); err != nil {
		return fmt.Errorf("answer a question for specs: %w", err)
	}
	return nil
}

// readSpecs returns what the bucket has under a key, as it is stored; if that is nothing, the answer to q.
func (b *Bus) readSpecs(ctx context.Context, key string, q *wire.Specs) ([]byte, error) {
	if len(key) <= maxKey {
		stored, err := b.kv.Get(ctx, key)
		if err == nil {
			return stored.Value(), nil
		}
		if !errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil, fmt.Errorf("read specs: %w", err)
		}
	}
	return wire.Marshal(&wire.Specs{Job: q.Job, Platform: q.Platform})
}
