package bus

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

// bucket is the name of the bucket of specs. Agents read it by direct get: a watch would
// need a consumer for each agent, which costs the server memory, and a stream has at most
// 1,000 consumers by default.
const bucket = "specs"

func directGet(key string) string {
	return "$JS.API.DIRECT.GET.KV_" + bucket + ".$KV." + bucket + "." + key
}

// Specs are fetched again at every connection, and periodically in case an announcement
// was lost: core subjects guarantee no delivery.
const (
	getEvery = time.Hour
	getAgain = 5 * time.Second // after a failure
	getWait  = 5 * time.Second
)

// specs is what an uplink knows about the jobs that it follows.
type specs struct {
	link   *connection
	change chan struct{}

	mu        sync.Mutex
	wanted    map[string]bool     // keys
	revisions map[string]revision // by key, of the specs that were accepted
	arrived   []spec.Spec         // since take

	stale  atomic.Bool // all must be fetched again
	failed problem     // of the last get
}

// revision is the revision of specs and the epoch of the connection that delivered it.
type revision struct{ number, epoch uint64 }

func newSpecs(l *connection) *specs {
	return &specs{link: l, change: make(chan struct{}, 1), revisions: map[string]revision{}}
}

func (s *specs) want(platform sample.Platform, jobs []sample.JobName) {
	wanted := make(map[string]bool, len(jobs))
	for _, j := range jobs {
		wanted[wire.SpecKey(string(j), string(platform))] = true
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

// run keeps the subscriptions as wanted and fetches what they may have missed.
func (s *specs) run(ctx context.Context) {
	subscribed := map[string]*nats.Subscription{}
	got := map[string]bool{} // in this epoch
	var epoch uint64
	for ctx.Err() == nil {
		now := s.link.epoch()
		if stale := s.stale.Swap(false); stale || now != epoch {
			epoch = now
			clear(got)
		}
		s.mu.Lock()
		wanted := s.wanted
		s.mu.Unlock()
		again := getEvery
		failed := s.reconcile(ctx, wanted, subscribed, got)
		if failed != nil {
			again = getAgain
		}
		s.failed.set(failed)
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-s.change:
		case <-s.link.changed(epoch):
		case <-timer.C:
			if again == getEvery {
				clear(got)
			}
		}
		timer.Stop()
	}
}

// reconcile subscribes before it fetches, so that no change is missed in between. What there is no room to
// subscribe to is only fetched: after a reconnect NATS may refuse any of too many, also that to all answers.
func (s *specs) reconcile(ctx context.Context, wanted map[string]bool, subscribed map[string]*nats.Subscription, got map[string]bool) error {
	for key, sub := range subscribed {
		if !wanted[key] {
			_ = sub.Unsubscribe() // of a lost connection: gone with it
			delete(subscribed, key)
			delete(got, key)
			s.mu.Lock()
			delete(s.revisions, key)
			s.mu.Unlock()
		}
	}
	var failed error
	for key := range wanted {
		if subscribed[key] == nil && len(subscribed) < credential.MostSpecs-1 {
			sub, err := s.link.nc.Subscribe("spec."+key, func(m *nats.Msg) { s.announced(key, m.Data) })
			if err != nil {
				return fmt.Errorf("subscribe to specs: %w", err)
			}
			subscribed[key] = sub
		}
		if !got[key] && s.link.nc.IsConnected() {
			if err := s.get(ctx, key); err != nil {
				failed = err
				continue
			}
			got[key] = true
		}
	}
	return failed
}

// get reads a key of the bucket. A missing key is no error.
func (s *specs) get(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, getWait)
	defer cancel()
	m, err := s.link.nc.RequestWithContext(ctx, directGet(key), nil)
	if err != nil {
		return fmt.Errorf("get specs: %w", err)
	}
	if m.Header.Get("Status") != "" || m.Header.Get("KV-Operation") != "" { // none, or deleted
		return nil
	}
	return s.accept(key, m.Data, true)
}

func (s *specs) announced(key string, data []byte) {
	// What is no message of the server's says nothing about the specs. A machine can have
	// NATS's answers sent here.
	_ = s.accept(key, data, false)
}

// accept accepts specs that are newer than the known ones. An announcement, or the
// bucket's answer, can be late. If a new connection finds an older revision in the
// bucket, the server has started over, and that revision is accepted.
func (s *specs) accept(key string, data []byte, bucket bool) error {
	var m wire.Specs
	if err := wire.Unmarshal(data, &m); err != nil {
		return err
	}
	if wire.SpecKey(m.Job, m.Platform) != key {
		return fmt.Errorf("received the specs of %s on %s instead of those of %s", m.Job, m.Platform, key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted[key] { // no longer wanted: it was in flight
		return nil
	}
	now := revision{m.Revision, s.link.epoch()}
	known := s.revisions[key]
	if now.number == known.number || now.number < known.number && (!bucket || now.epoch == known.epoch) {
		return nil
	}
	s.revisions[key] = now
	s.arrived = append(s.arrived, m.List()...)
	return nil
}
