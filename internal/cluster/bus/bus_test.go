package bus

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// fetch reads a stream until it has n messages.
func fetch(t *testing.T, c *Consumer, n int) []Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var all []Message
	for len(all) < n {
		more, err := c.Fetch(ctx, all, n-len(all))
		if err != nil {
			t.Fatal(err)
		}
		if ctx.Err() != nil {
			t.Fatalf("%d of %d messages came", len(more), n)
		}
		all = more
	}
	return all
}

// TestFromAgentToReader: a tick's samples and an incident go unchanged from the agent
// through disk, network and stream to the reader.
func TestFromAgentToReader(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	u := openUplink(t, a, url, "node-1.example.org", nil)
	want := samples("node-1.example.org", 5)
	u.Samples(2000, want)
	u.Record(3000, wire.Record_KIND_INCIDENT, "i1", []byte(`{"id":"i1"}`))

	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	m := fetch(t, c, 1)[0]
	var got wire.Batch
	if err := m.Batch(&got); err != nil {
		t.Fatal(err)
	}
	if got.Machine != "node-1.example.org" || got.N != 1 || got.Boot == "" || got.At != 2000 || !reflect.DeepEqual(got.Samples, want) {
		t.Errorf("got %+v", got)
	}
	r, err := b.Consume(t.Context(), Records)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	record, err := fetch(t, r, 1)[0].Record()
	if err != nil || record.Id != "i1" || string(record.Json) != `{"id":"i1"}` || record.Kind != wire.Record_KIND_INCIDENT {
		t.Errorf("%v, %v", record, err)
	}
	quelltest.Until(t, "both are acknowledged", func() bool { return u.Stats().Waiting == 0 })
	if err := u.Err(); err != nil {
		t.Error(err)
	}
	if err := c.Ack(t.Context(), m.Seq); err != nil {
		t.Fatal(err)
	}
	if info, err := c.stream.Info(t.Context()); err != nil || info.State.Msgs != 0 {
		t.Errorf("messages are left: %+v, %v", info, err)
	}
}

// TestReaderGoesOn: messages that a reader has stored do not come again; the others do.
func TestReaderGoesOn(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	u := openUplink(t, a, url, "m", nil)
	for range 10 {
		u.Samples(1, samples("m", 1))
	}
	first, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	all := fetch(t, first, 10)
	for _, done := range []int{0, 7} { // messages stored
		if done > 0 {
			if err := first.Ack(t.Context(), all[done-1].Seq); err != nil {
				t.Fatal(err)
			}
		}
		c, err := b.Consume(t.Context(), Samples)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.Ack(t.Context(), all[9].Seq); err == nil {
			t.Error("what it has not read is done")
		}
		rest := fetch(t, c, 10-done)
		if rest[0].Seq != all[done].Seq || rest[9-done].Seq != all[9].Seq {
			t.Errorf("%d were stored, went on with %d to %d", done, rest[0].Seq, rest[9-done].Seq)
		}
	}
}

// TestServerComesLater: an agent that starts before the server keeps its messages and
// sends them in order once the server is there.
func TestServerComesLater(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	openBus(t, a, s.url(), 1).Close() // makes the streams
	s.kill()
	u := openUplink(t, a, s.url(), "m", nil)
	for range 30 {
		u.Samples(1, samples("m", 1))
	}
	quelltest.Until(t, "all are on disk", func() bool { return u.Stats().Waiting == 30 })
	if err := u.Err(); err == nil {
		t.Error("Err does not report that the server is unreachable")
	}
	s.start()
	b := openBus(t, a, s.url(), 1)
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, m := range fetch(t, c, 30) {
		var got wire.Batch
		if err := m.Batch(&got); err != nil || got.N != uint64(i+1) {
			t.Fatalf("message %d is batch %d, %v", i, got.N, err)
		}
	}
	quelltest.Until(t, "all are acknowledged", func() bool { return u.Stats().Waiting == 0 && u.Err() == nil })
}

// TestKeptIsSentAgain: after a reconnect, all messages are sent again in order that were
// acknowledged so shortly before that a power cut may have lost them.
func TestKeptIsSentAgain(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	openBus(t, a, s.url(), 1) // makes the streams
	u := openUplink(t, a, s.url(), "m", nil)
	for range 3 {
		u.Samples(1, samples("m", 1))
	}
	quelltest.Until(t, "all are acknowledged", func() bool { return u.Stats().Sent == 3 })
	s.kill()
	s.start()
	quelltest.Until(t, "all are acknowledged again", func() bool { return u.Stats().Sent == 6 })
	b := openBus(t, a, s.url(), 1)
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var numbers []uint64
	for _, m := range fetch(t, c, 6) {
		var got wire.Batch
		if err := m.Batch(&got); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, got.N)
	}
	if !slices.Equal(numbers, []uint64{1, 2, 3, 1, 2, 3}) {
		t.Errorf("came %d", numbers)
	}
}

// TestReleased: a message that was kept long enough, and after which the same connection
// has answered again, is released. It is not sent again.
func TestReleased(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	openBus(t, a, s.url(), 1)
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: s.url(), Name: "m", Credentials: credentials(t, a, authority.Agent, "m", 0),
		pause: 20 * time.Millisecond}, Dir: t.TempDir(), MaxBytes: MinSpool, keep: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for range 3 {
		u.Samples(1, samples("m", 1))
	}
	quelltest.Until(t, "all are released", func() bool { return u.samples.spool.Released() == 4 })
	s.kill()
	s.start()
	u.Samples(1, samples("m", 1))
	quelltest.Until(t, "the fourth is released", func() bool { return u.samples.spool.Released() == 5 })
	if n := u.Stats().Sent; n != 4 {
		t.Errorf("%d were sent, want 4", n)
	}
}

// TestALateAnswerReleasesNothing: a delayed answer proves nothing about the time of its
// delay. It does not release what was acknowledged when its message was sent.
func TestALateAnswerReleasesNothing(t *testing.T) {
	const keep = 50 * time.Millisecond
	a := newAuthority(t)
	url := serveHere(t, a)
	server := connect(t, url, credentials(t, a, authority.Server, "server", 0), credential.Store)
	var u *Uplink
	opened, released := make(chan struct{}), make(chan uint64, 1)
	n := 0
	_, err := server.Subscribe(wire.SampleSubject("m"), func(m *nats.Msg) { // it accepts messages as a stream does
		<-opened
		switch n++; n {
		case 2:
			<-time.After(2 * keep)
		case 3:
			released <- u.samples.spool.Released()
		}
		if err := m.Respond([]byte(`{"stream":"samples"}`)); err != nil {
			t.Error(err)
		}
	})
	if err == nil {
		err = server.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	if u, err = OpenUplink(UplinkOptions{Options: Options{URL: url, Name: "m", Credentials: credentials(t, a, authority.Agent, "m", 0),
		pause: 20 * time.Millisecond}, Dir: t.TempDir(), MaxBytes: MinSpool, keep: keep}); err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	close(opened)
	for range 3 {
		u.Samples(1, samples("m", 1))
	}
	if got := <-released; got > 1 {
		t.Errorf("up to %d was released before anybody had asked for so long", got)
	}
	quelltest.Until(t, "all are released", func() bool { return u.samples.spool.Released() == 4 })
}

// TestFullStream: a full stream accepts no more messages and loses none, and the agents
// keep theirs until there is room.
func TestFullStream(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	o := Options{URL: url, Name: "server", Credentials: credentials(t, a, authority.Server, "server", 0), Log: testLog(t)}
	b, err := Open(ctx, o, StreamOptions{MaxBytes: 4096, share: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	u := openUplink(t, a, url, "m", nil)
	for range 50 {
		u.Samples(1, samples("m", 5))
	}
	quelltest.Until(t, "the stream refuses", func() bool {
		err := u.Err()
		return err != nil && strings.Contains(err.Error(), "maximum bytes")
	})
	c, err := b.Consume(t.Context(), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for want := uint64(1); want <= 50; want++ {
		m := fetch(t, c, 1)[0]
		var got wire.Batch
		if err := m.Batch(&got); err != nil || got.N != want {
			t.Fatalf("batch %d, %v; want %d", got.N, err, want)
		}
		if err := c.Ack(t.Context(), m.Seq); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSpecsReachAgents: agents receive the specs of the jobs that they follow: stored
// ones at once, changes when they are announced, and changes made during a lost
// connection after the reconnect. They receive no specs of other jobs.
func TestSpecsReachAgents(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	b := openBus(t, a, s.url(), 1)
	put := func(job sample.JobName, revision uint64, mean float64) {
		t.Helper()
		key := spec.Key{Job: job, Platform: "p", Signal: sample.CPI, Variant: "ref-cycles"}
		m := wire.SpecsOf(job, "p", revision, []spec.Spec{{Key: key, State: spec.Ready, Mean: mean}})
		if err := b.PutSpecs(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	put("web.front", 1, 1)
	put("other", 1, 9)
	u := openUplink(t, a, s.url(), "m", nil)
	if got := u.Specs(); got != nil {
		t.Errorf("specs of no job: %v", got)
	}
	u.WatchSpecs("p", []sample.JobName{"web.front", "new"})
	var got []spec.Spec
	await := func(what string, job sample.JobName, mean float64) {
		t.Helper()
		quelltest.Until(t, what, func() bool {
			got = append(got, u.Specs()...)
			return slices.ContainsFunc(got, func(s spec.Spec) bool { return s.Job == job && s.Mean == mean })
		})
	}
	await("the kept one came", "web.front", 1)
	put("web.front", 2, 2)
	await("the change came", "web.front", 2)
	put("new", 1, 5)
	await("a new job's came", "new", 5)
	s.kill()
	s.start()
	b.Close()
	b = openBus(t, a, s.url(), 1)
	put("web.front", 3, 3)
	await("the change after a restart came", "web.front", 3)
	for _, s := range got {
		if s.Job == "other" || s.State != spec.Ready || s.Own {
			t.Errorf("got %+v", s)
		}
	}
	kept, err := storedSpecs(t.Context(), b, "web.front", "p")
	if err != nil || kept.Revision != 3 {
		t.Errorf("kept %v, %v", kept, err)
	}
	if none, err := storedSpecs(t.Context(), b, "nobody", "p"); none != nil || err != nil {
		t.Errorf("kept %v, %v", none, err)
	}
}

// Specs of jobs that no longer run expire from the bucket.
func TestSpecsThatDoNotChangeEnd(t *testing.T) {
	a := newAuthority(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b, err := Open(ctx, Options{URL: serveHere(t, a), Name: "server", Credentials: credentials(t, a, authority.Server, "server", 0), Log: testLog(t)},
		StreamOptions{MaxBytes: 1 << 20, KeepSpecs: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.PutSpecs(ctx, wire.SpecsOf("web", "p", 1, nil)); err != nil {
		t.Fatal(err)
	}
	if m, err := storedSpecs(ctx, b, "web", "p"); err != nil || m == nil {
		t.Errorf("kept %v, %v", m, err)
	}
	quelltest.Until(t, "nothing is kept of it", func() bool {
		m, err := storedSpecs(ctx, b, "web", "p")
		return m == nil && err == nil
	})
}

// An announcement in flight when its job's last task left is not treated as known when
// the job comes back.
func TestSpecsOfAJobThatLeavesAndComesBack(t *testing.T) {
	u := openUplink(t, newAuthority(t), "nats://127.0.0.1:1", "m", nil) // no server listens there
	announced := func() int {
		t.Helper()
		key := spec.Key{Job: "web", Platform: "p", Signal: sample.CPI, Variant: "ref-cycles"}
		data, err := wire.Marshal(wire.SpecsOf("web", "p", 1, []spec.Spec{{Key: key, State: spec.Ready, Mean: 1}}))
		if err != nil {
			t.Fatal(err)
		}
		u.specs.announced(wire.SpecKey("web", "p"), data)
		return len(u.Specs())
	}
	if n := announced(); n != 0 {
		t.Errorf("%d specs of a job that does not run here", n)
	}
	u.WatchSpecs("p", []sample.JobName{"web"})
	if n := announced(); n != 1 {
		t.Errorf("%d specs of the job that has come back, want 1", n)
	}
}

// storedSpecs returns the specs of a job on a platform in the bucket, nil if there are none.
func storedSpecs(ctx context.Context, b *Bus, job, platform string) (*wire.Specs, error) {
	entry, err := b.kv.Get(ctx, wire.SpecKey(job, platform))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var m wire.Specs
	return &m, wire.Unmarshal(entry.Value(), &m)
}
