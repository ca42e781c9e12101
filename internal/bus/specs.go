package bus

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
	"github.com/quell-dev/quell/internal/wire"
)

// bucket is the name of the bucket of specs. Agents read it by direct get: a
// watch would be a consumer for each of them, which the server pays for in
// memory, and a stream has 1,000 at most by default.
const bucket = "specs"

func directGet(key string) string {
	return "$JS.API.DIRECT.GET.KV_" + bucket + ".$KV." + bucket + "." + key
}

// Specs are got anew at every connection, and now and then in case an
// announcement was lost on the way: core subjects promise nothing.
const (
	getEvery = time.Hour
	getAgain = 5 * time.Second // after a failure
	getWait  = 5 * time.Second
)

// specs is what an uplink knows of the jobs that are followed.
type specs struct {
	link   *link
	change chan struct{}

	mu        sync.Mutex
	wanted    map[string]bool     // keys
	revisions map[string]revision // by key, of what was taken in
	stale     bool                // all are to be got anew
	arrived   []spec.Spec         // since take
	failed    error               // why the last get failed
}

// revision is one of specs, and of the connection that it came over.
type revision struct{ number, epoch uint64 }

func newSpecs(l *link) *specs {
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
	s.nudge()
}

func (s *specs) nudge() {
	select {
	case s.change <- struct{}{}:
	default:
	}
}

// missed says that announcements were lost.
func (s *specs) missed() {
	s.mu.Lock()
	s.stale = true
	s.mu.Unlock()
	s.nudge()
}

func (s *specs) take() []spec.Spec {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.arrived
	s.arrived = nil
	return all
}

func (s *specs) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// follow keeps subscriptions as wanted and gets what they may have missed.
func (s *specs) follow(ctx context.Context) {
	subscribed := map[string]*nats.Subscription{}
	got := map[string]bool{} // in this epoch
	var epoch uint64
	for ctx.Err() == nil {
		now := s.link.epoch()
		s.mu.Lock()
		if now != epoch || s.stale {
			epoch, s.stale = now, false
			clear(got)
		}
		wanted := s.wanted
		s.mu.Unlock()
		again := getEvery
		failed := s.reconcile(ctx, wanted, subscribed, got)
		if failed != nil {
			again = getAgain
		}
		s.mu.Lock()
		s.failed = failed
		s.mu.Unlock()
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

// reconcile subscribes before it gets, so that no change falls between.
func (s *specs) reconcile(ctx context.Context, wanted map[string]bool, subscribed map[string]*nats.Subscription, got map[string]bool) error {
	for key, sub := range subscribed {
		if !wanted[key] {
			_ = sub.Unsubscribe() // of a connection that is gone: gone with it
			delete(subscribed, key)
			delete(got, key)
			s.mu.Lock()
			delete(s.revisions, key)
			s.mu.Unlock()
		}
	}
	var failed error
	for key := range wanted {
		if subscribed[key] == nil {
			sub, err := s.link.conn().Subscribe("spec."+key, func(m *nats.Msg) { s.announced(key, m.Data) })
			if err != nil {
				return fmt.Errorf("subscribe to specs: %w", err)
			}
			subscribed[key] = sub
		}
		if !got[key] && s.link.conn().IsConnected() {
			if err := s.get(ctx, key); err != nil {
				failed = err
				continue
			}
			got[key] = true
		}
	}
	return failed
}

// get reads a key of the bucket. That there is none is no error.
func (s *specs) get(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, getWait)
	defer cancel()
	m, err := s.link.conn().RequestWithContext(ctx, directGet(key), nil)
	if err != nil {
		return fmt.Errorf("get specs: %w", err)
	}
	if m.Header.Get("Status") != "" || m.Header.Get("KV-Operation") != "" { // none, or deleted
		return nil
	}
	return s.learn(key, m.Data, true)
}

func (s *specs) announced(key string, data []byte) {
	if err := s.learn(key, data, false); err != nil {
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
}

// learn takes specs in if they are newer than what is known. An announcement, or
// the bucket's answer, can be late; but where a new connection finds an older
// revision in the bucket, the server has begun anew.
func (s *specs) learn(key string, data []byte, bucket bool) error {
	var m wire.Specs
	if err := wire.Unmarshal(data, &m); err != nil {
		return err
	}
	if wire.SpecKey(m.Job, m.Platform) != key {
		return fmt.Errorf("the specs of %s on %s came where those of %s are wanted", m.Job, m.Platform, key)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wanted[key] { // no more: it was on the way
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
