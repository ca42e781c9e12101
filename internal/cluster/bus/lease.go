package bus

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// leases is the bucket of leases for work that only one server may do at a time.
const leases = "leases"

// leaseTime is the life of a lease. The holder renews it three times before it expires,
// and stops in time if renewal fails, at once if another server has it. A store's commits are safe in any case.
const leaseTime = 15 * time.Second

// errTaken means that this server does not have the lease.
var errTaken = errors.New("another server has it")

// RunWithLease waits for the lease of a name and calls do while it is held, again after each loss
// and new acquisition, until ctx ends. The context of do ends when the lease is lost; do
// must then return soon. If do returns earlier, this server cannot do the work, and
// another may try first. holder identifies this server in the bucket.
func (b *Bus) RunWithLease(ctx context.Context, name, holder string, do func(context.Context)) error {
	ttl := cmp.Or(b.leaseTime, leaseTime)
	kv, err := b.makeBucket(ctx, jetstream.KeyValueConfig{Bucket: leases, TTL: ttl, Description: "leases of work that only one server at a time does"})
	if err != nil {
		return err
	}
	said := ""
	value := []byte(holder + " " + rand.Text()) // of this server alone: two may have one name
	for ctx.Err() == nil {
		revision, err := kv.Create(ctx, name, value)
		if err == nil {
			b.log.Info("this server has the lease", "of", name)
			b.renewLease(ctx, kv, name, value, revision, ttl, do)
			said = ""
		} else {
			reason := errTaken.Error()
			if !errors.Is(err, jetstream.ErrKeyExists) {
				reason = err.Error()
			}
			if reason != said && ctx.Err() == nil {
				b.log.Info("waiting for the lease", "of", name, "reason", reason)
				said = reason
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(ttl / 5):
		}
	}
	return nil
}

// renewLease calls do and renews the lease in parallel.
func (b *Bus) renewLease(ctx context.Context, kv jetstream.KeyValue, name string, value []byte, revision uint64, ttl time.Duration, do func(context.Context)) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(ctx)
	}()
	good := time.Now() // when this server last certainly held the lease
	tick := time.NewTicker(ttl / 4)
	defer tick.Stop()
	for alive := true; alive; {
		select {
		case <-done:
			alive = false
		case <-ctx.Done():
			alive = false
		case <-tick.C:
			asked := time.Now()
			ask, stop := context.WithTimeout(ctx, ttl/4)
			next, err := renew(ask, kv, name, value, revision)
			stop()
			switch {
			case err == nil:
				revision, good = next, asked
			case errors.Is(err, errTaken) || time.Since(good) > ttl/2:
				b.log.Warn("this server has lost the lease", "of", name, "reason", err)
				alive = false
			}
		}
	}
	cancel()
	<-done
	// Lets another server take over at once; no effect if another holds it already.
	bye, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer stop()
	_ = kv.Delete(bye, name, jetstream.LastRevision(revision))
}

// renew renews a lease that had a revision. With errTaken this server certainly does not have it.
func renew(ctx context.Context, kv jetstream.KeyValue, name string, value []byte, revision uint64) (uint64, error) {
	next, err := kv.Update(ctx, name, value, revision)
	if !isConflict(err) {
		return next, err
	}
	entry, err := kv.Get(ctx, name)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound): // it has expired
		return 0, errTaken
	case err != nil:
		return 0, err
	case !bytes.Equal(entry.Value(), value):
		return 0, errTaken
	}
	// An earlier renewal was carried out, and its answer lost.
	return kv.Update(ctx, name, value, entry.Revision())
}
