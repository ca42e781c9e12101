package bus

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// TestOneHoldsALease: one of several servers holds a lease. When it ends, or dies
// silently, another takes over, and never do two hold it at once.
func TestOneHoldsALease(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	var holding, most, turns atomic.Int64
	last := make([]atomic.Int64, 3) // sequence number of the start of each one's last term
	stop := make([]context.CancelFunc, 3)
	hubs := make([]*Bus, 3)
	done := make(chan error, 3)
	for i := range hubs {
		hubs[i] = openBus(t, a, url, 1)
		// The holder may be kept from renewing it by several stalls of half a second.
		hubs[i].leaseTime = 5 * time.Second
		ctx, cancel := context.WithCancel(t.Context())
		stop[i] = cancel
		go func() {
			done <- hubs[i].RunWithLease(ctx, "ingest", fmt.Sprint(i), func(ctx context.Context) {
				most.Store(max(most.Load(), holding.Add(1)))
				last[i].Store(turns.Add(1))
				<-ctx.Done()
				holding.Add(-1)
			})
		}()
	}
	holder := func() int {
		for i := range last {
			if n := last[i].Load(); n > 0 && n == turns.Load() {
				return i
			}
		}
		return -1
	}
	// A machine that stalls for longer than the lease may lose it to another by itself.
	quelltest.Until(t, "one holds it", func() bool { return holder() >= 0 })
	first := holder()
	stop[first]() // it releases the lease
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ended := turns.Load()
	second := -1
	quelltest.Until(t, "another holds it", func() bool {
		second = holder()
		return second >= 0 && second != first
	})
	if last[first].Load() > ended {
		t.Fatal("it has ended and holds it again")
	}
	hubs[second].Close() // it is disconnected: it must stop by itself, and the third takes over
	quelltest.Until(t, "the third holds it", func() bool { n := holder(); return n >= 0 && n != second && n != first })
	for _, f := range stop {
		f()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d held it at once", most.Load())
	}
}

// TestWhoCannotLeadMakesRoom: a holder that cannot do the lease's work, such as a server
// without its storage, leaves the lease to another.
func TestWhoCannotLeadMakesRoom(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	const lease = time.Second
	var failed atomic.Int64
	led := make(chan struct{})
	begun := time.Now()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 2)
	hold := func(do func(context.Context)) {
		b := openBus(t, a, url, 1)
		b.leaseTime = lease
		go func() { done <- b.RunWithLease(ctx, "lead", "a server", do) }()
	}
	hold(func(context.Context) { failed.Add(1) })
	quelltest.Until(t, "the first has failed", func() bool { return failed.Load() > 0 })
	var once sync.Once
	hold(func(ctx context.Context) { once.Do(func() { close(led) }); <-ctx.Done() })
	select {
	case <-led:
	case <-time.After(4 * time.Minute):
		t.Errorf("no other server leads, while one has failed %d times", failed.Load())
	}
	stop()
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	n := failed.Load()
	if took := time.Since(begun); n > 1+int64(took/(lease/5)) { // it waits after each
		t.Errorf("it has tried %d times within %s", n, took)
	}
}

// TestRenewal: a server goes on if the answer to an earlier renewal was lost, and knows at once that another
// one has the lease, or that none has it.
func TestRenewal(t *testing.T) {
	a := newAuthority(t)
	b, ctx := openBus(t, a, serveHere(t, a), 1), patient(t)
	kv, err := b.makeBucket(ctx, jetstream.KeyValueConfig{Bucket: leases})
	if err != nil {
		t.Fatal(err)
	}
	own := []byte("a server 1")
	first, err := kv.Create(ctx, "lead", own)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Update(ctx, "lead", own, first); err != nil {
		t.Fatal(err)
	}
	last, err := renew(ctx, kv, "lead", own, first)
	if err != nil || last <= first {
		t.Errorf("after a lost answer: %d, %v", last, err)
	}
	if _, err := kv.Update(ctx, "lead", []byte("a server 2"), last); err != nil {
		t.Fatal(err)
	}
	if _, err := renew(ctx, kv, "lead", own, last); !errors.Is(err, errTaken) {
		t.Errorf("another server has it: %v", err)
	}
	if err := kv.Delete(ctx, "lead"); err != nil {
		t.Fatal(err)
	}
	if _, err := renew(ctx, kv, "lead", own, last); !errors.Is(err, errTaken) {
		t.Errorf("it has expired: %v", err)
	}
}

// TestConflicts: what NATS says when a key was changed meanwhile, also with replicas.
func TestConflicts(t *testing.T) {
	for err, want := range map[error]bool{
		&jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequence}:                    true,
		&jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequenceConstant}:            true,
		fmt.Errorf("%w: %w", &jetstream.APIError{ErrorCode: 10164}, jetstream.ErrKeyRevisionMismatch): true,
		&jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamNotFound}:                             false,
		context.DeadlineExceeded: false,
	} {
		if got := isConflict(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
