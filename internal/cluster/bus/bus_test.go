package bus

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
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

// fetch receives n messages, of which no agent waits for the answer before it sends more.
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
// through disk and network to the reader, and are acknowledged when it has stored them.
func TestFromAgentToReader(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	u := openUplink(t, a, url, "node-1.example.org", nil)
	want := samples("node-1.example.org", 5)
	u.Samples(2000, want)
	u.Record(3000, wire.Record_KIND_INCIDENT, "i1", []byte(`{"id":"i1"}`))

	c, err := b.Consume(patient(t), Samples)
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
	r, err := b.Consume(patient(t), Records)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	stored := fetch(t, r, 1)[0]
	record, err := stored.Record()
	if err != nil || record.Id != "i1" || string(record.Json) != `{"id":"i1"}` || record.Kind != wire.Record_KIND_INCIDENT {
		t.Errorf("%v, %v", record, err)
	}
	if st := u.Stats(); st.Waiting != 2 || st.Sent != 0 {
		t.Errorf("before anything is stored: %+v", st)
	}
	c.Ack(m.Seq)
	r.Ack(stored.Seq)
	// Its connection for specs may be made later than that for samples.
	quelltest.Until(t, "both are acknowledged, and all works", func() bool { return u.Stats().Waiting == 0 && u.Err() == nil })
}

// numbersOf are the numbers of the batches in messages.
func numbersOf(t *testing.T, all []Message) (numbers []uint64) {
	t.Helper()
	for i := range all {
		var b wire.Batch
		if err := all[i].Batch(&b); err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, b.N)
	}
	return numbers
}

// TestWhatIsNotStoredComesAgain: a reader that ends is followed by another, which gets what was
// not acknowledged, at once. After the first acknowledgement an agent sends all that waits
// together, and it is acknowledged together.
func TestWhatIsNotStoredComesAgain(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	u := openUplink(t, a, url, "m", nil)
	for range 10 {
		u.Samples(1, samples("m", 1))
	}
	quelltest.Until(t, "all are on disk", func() bool { return u.Stats().Waiting == 10 })
	consume := func() *Consumer {
		t.Helper()
		c, err := b.Consume(patient(t), Samples)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	rest := []uint64{2, 3, 4, 5, 6, 7, 8, 9, 10}
	c := consume()
	if got := numbersOf(t, fetch(t, c, 1)); !slices.Equal(got, []uint64{1}) {
		t.Errorf("first came %d", got)
	}
	c.Close()
	c = consume()
	again := fetch(t, c, 1)
	if got := numbersOf(t, again); !slices.Equal(got, []uint64{1}) {
		t.Errorf("then came %d", got)
	}
	c.Ack(again[0].Seq)
	together := fetch(t, c, 9)
	if got := numbersOf(t, together); !slices.Equal(got, rest) {
		t.Errorf("together came %d", got)
	}
	c.Ack(together[7].Seq) // all but the last
	if st := u.Stats(); st.Waiting != 9 {
		t.Errorf("a part of a delivery is acknowledged: %+v", st)
	}
	c.Close()
	k, _ := keep(t, b)
	quelltest.Until(t, "all are acknowledged", func() bool { return u.Stats().Waiting == 0 && u.Err() == nil })
	if got := k.of("m"); !slices.Equal(got, rest) {
		t.Errorf("the third reader got %d", got)
	}
}

// TestABusSaysWhatItLost: a server's health is told at once which connection is missing, and why, without a question to
// NATS's client, which holds its lock for each attempt to connect.
func TestABusSaysWhatItLost(t *testing.T) {
	b := &Bus{connection: newLink(credential.Store), samples: newLink(credential.Samples), commands: &decider{link: newLink(credential.Commands)}}
	for _, l := range b.connections() {
		l.up.Store(true)
	}
	if err := b.Err(); err != nil {
		t.Error(err)
	}
	lost := errors.New("reset by peer")
	b.samples.up.Store(false)
	b.samples.reason.set(lost)
	if err := b.Err(); !errors.Is(err, lost) || !strings.Contains(err.Error(), string(credential.Samples)) {
		t.Error(err)
	}
}

// A server that is not there at first, and has no TLS then: the second is the reason.
func TestTheReasonIsThatOfTheLastAttempt(t *testing.T) {
	address := quelltest.FreeAddress(t)
	l := newLink(credential.Samples)
	err := l.connect(&Options{URL: "nats://" + address, Name: "m", TLS: &tls.Config{MinVersion: tls.VersionTLS12}, pause: 10 * time.Millisecond},
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { l.reason.set(err) }))
	if err != nil {
		t.Fatal(err)
	}
	defer l.nc.Close()
	quelltest.Until(t, "there is no server", func() bool { return l.reason.get() != nil })
	server, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer server.Close()
	all.Go(func() {
		for c, err := server.Accept(); err == nil; c, err = server.Accept() {
			io.WriteString(c, "INFO {}\r\n")
			c.Close()
		}
	})
	quelltest.Until(t, "it has no TLS", func() bool { return errors.Is(l.err(), nats.ErrSecureConnWanted) })
}

// TestServerComesLater: an agent that starts before the server keeps its messages and
// sends them in order once the server is there.
func TestServerComesLater(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
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
	quelltest.Until(t, "it says that no server receives", func() bool {
		err := u.Err()
		return err != nil && strings.Contains(err.Error(), "no quell-server receives")
	})
	k, _ := keep(t, b)
	quelltest.Until(t, "all are acknowledged", func() bool { return u.Stats().Waiting == 0 && u.Err() == nil })
	got := k.of("m")
	for i := range 30 {
		if len(got) != 30 || got[i] != uint64(i+1) {
			t.Fatalf("came %d", got)
		}
	}
}

// TestAnswerThatIsLost: NATS is killed between a delivery and its answer. The delivery comes
// again; what was acknowledged does not.
func TestAnswerThatIsLost(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	b := openBus(t, a, s.url(), 1)
	c, err := b.Consume(patient(t), Samples)
	if err != nil {
		t.Fatal(err)
	}
	u := openUplink(t, a, s.url(), "m", nil)
	for range 3 {
		u.Samples(1, samples("m", 1))
	}
	quelltest.Until(t, "all are on disk", func() bool { return u.Stats().Waiting == 3 })
	c.Ack(fetch(t, c, 1)[0].Seq)
	second := fetch(t, c, 2)
	s.kill()
	c.Ack(second[1].Seq)
	s.start()
	// One message at a time, until the server says again what it has room for.
	if got := numbersOf(t, append(second, fetch(t, c, 1)...)); !slices.Equal(got, []uint64{2, 3, 2}) {
		t.Errorf("around the kill came %d", got)
	}
	c.Close()
	quelltest.Until(t, "each connection of the server is made again", func() bool {
		return !slices.ContainsFunc(b.connections(), func(l *connection) bool { return l.epoch() == 0 || !l.nc.IsConnected() })
	})
	k, _ := keep(t, b)
	quelltest.Until(t, "all are acknowledged", func() bool { return u.Stats().Waiting == 0 })
	if got := k.of("m"); !slices.Equal(got, []uint64{2, 3}) {
		t.Errorf("after it came %d", got)
	}
}

// TestStreamsOfAnEarlierVersion: what agents have handed over to NATS's streams is acknowledged. It
// is read before what agents send now, and a stream is removed when it is stored.
func TestStreamsOfAnEarlierVersion(t *testing.T) {
	a := newAuthority(t)
	b := openBus(t, a, serveHere(t, a), 1)
	ctx := patient(t)
	old := func() (messages uint64, err error) {
		s, err := b.js.Stream(ctx, string(Samples))
		if err != nil {
			return 0, err
		}
		return s.CachedInfo().State.Msgs, nil
	}
	if _, err := b.js.CreateStream(ctx, jetstream.StreamConfig{Name: string(Samples), Subjects: []string{wire.AllSamples}, Storage: jetstream.FileStorage}); err != nil {
		t.Fatal(err)
	}
	batch := func(n uint64) []byte {
		m := wire.Batch{Key: wire.Key{Machine: "m", Boot: "b", N: n}, Samples: samples("m", 1)}
		data, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for n := range uint64(5) {
		if _, err := b.js.Publish(ctx, wire.SampleSubject("m"), batch(n+1)); err != nil {
			t.Fatal(err)
		}
	}
	c, err := b.Consume(ctx, Samples)
	if err != nil {
		t.Fatal(err)
	}
	all := fetch(t, c, 4)
	if got := numbersOf(t, all); !slices.Equal(got, []uint64{1, 2, 3, 4}) {
		t.Errorf("first came %d", got)
	}
	c.Ack(all[3].Seq)
	c.Close()
	if n, err := old(); n != 5 || err != nil {
		t.Errorf("with one that is not stored: %d, %v", n, err)
	}
	if c, err = b.Consume(ctx, Samples); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all = fetch(t, c, 5)
	if got := numbersOf(t, all); !slices.Equal(got, []uint64{1, 2, 3, 4, 5}) {
		t.Errorf("then came %d", got)
	}
	// What agents send comes after it.
	g := connect(t, b.nc.ConnectedUrl(), credentials(t, a, authority.Agent, "m", 0), credential.Samples)
	if err := g.Publish(wire.SampleSubject("m"), batch(6)); err != nil {
		t.Fatal(err)
	}
	if got := numbersOf(t, fetch(t, c, 1)); !slices.Equal(got, []uint64{6}) {
		t.Errorf("at last came %d", got)
	}
	c.Ack(all[4].Seq)
	if _, err := old(); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("after all is stored: %v", err)
	}
}

// TestFullServer: a server that does not read holds a bounded number of bytes, and says that it
// has no room. Agents keep the rest, and all of it comes in order when the server reads.
func TestFullServer(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	c, err := b.Consume(patient(t), Samples)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	free := func() int { b := c.Backlog(); return int(b.Most - b.Bytes) }
	hogs := 0
	for ; free() > maxMessage; hogs++ {
		flood(t, a, url, fmt.Sprint("hog", hogs), maxMessage-1024, 5)
	}
	flood(t, a, url, "hog", free()-deliveryBytes, 2)
	full := c.Backlog()
	if full.Bytes != full.Most || full.Refused < uint64(hogs) || hogs < 2*share || full.Oldest <= 0 {
		t.Errorf("the server holds %+v", full)
	}
	u := openUplink(t, a, url, "m", nil)
	const batches = 50
	for range batches {
		u.Samples(1, samples("m", 300))
	}
	quelltest.Until(t, "the agent is told to wait", func() bool {
		err := u.Err()
		return err != nil && strings.Contains(err.Error(), "no room") && u.Stats().Waiting == batches
	})
	if now := c.Backlog(); now.Bytes != full.Bytes {
		t.Errorf("the server holds %+v, and held %+v", now, full)
	}
	var got []uint64
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	for len(got) < batches && ctx.Err() == nil {
		all, err := c.Fetch(ctx, nil, 10)
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			if all[i].Subject == wire.SampleSubject("m") {
				got = append(got, numbersOf(t, all[i:i+1])...)
			}
		}
		c.Ack(all[len(all)-1].Seq)
	}
	for i := range got {
		if got[i] != uint64(i+1) {
			t.Fatalf("came %d", got)
		}
	}
	quelltest.Until(t, "all are acknowledged", func() bool { return u.Stats().Waiting == 0 && u.Err() == nil })
	if st := u.Stats(); st.Lost+st.Dropped > 0 {
		t.Errorf("the agent has lost some: %+v", st)
	}
	if left := c.Backlog(); left.Bytes != 0 || left.Oldest != 0 {
		t.Errorf("the server holds %+v", left)
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
		if err := b.PutSpecs(patient(t), m); err != nil {
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
	kept, err := storedSpecs(patient(t), b, "web.front", "p")
	if err != nil || kept.Revision != 3 {
		t.Errorf("kept %v, %v", kept, err)
	}
	if none, err := storedSpecs(patient(t), b, "nobody", "p"); none != nil || err != nil {
		t.Errorf("kept %v, %v", none, err)
	}
}

// TestSpecsOfManyJobs: an agent that follows more jobs than it may subscribe to has the specs of all, and is
// refused no subscription: after a reconnect that could be any.
func TestSpecsOfManyJobs(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	key := spec.Key{Job: "last", Platform: "p", Signal: sample.CPI, Variant: "ref-cycles"}
	if err := b.PutSpecs(patient(t), wire.SpecsOf("last", "p", 1, []spec.Spec{{Key: key, State: spec.Ready, Mean: 1}})); err != nil {
		t.Fatal(err)
	}
	u := openUplink(t, a, url, "m", nil)
	var jobs []sample.JobName
	for i := range credential.MostSpecs + 3 {
		jobs = append(jobs, sample.JobName(fmt.Sprint("job-", i)))
	}
	u.WatchSpecs("p", jobs)
	subscribed := u.specs.link.nc.NumSubscriptions
	quelltest.Until(t, "it has subscribed", func() bool { return subscribed() >= credential.MostSpecs })
	u.WatchSpecs("p", append(jobs, "last"))
	quelltest.Until(t, "the last one's came", func() bool { return len(u.Specs()) == 1 })
	if n := subscribed(); n > credential.MostSpecs {
		t.Errorf("%d subscriptions", n)
	}
}

// Specs of jobs that no longer run expire from the bucket.
func TestSpecsThatDoNotChangeEnd(t *testing.T) {
	a := newAuthority(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b, err := Open(ctx, Options{URL: serveHere(t, a), Name: "server", Credentials: credentials(t, a, authority.Server, "server", 0), Log: testLog(t)},
		Settings{Waiting: MinWaiting, KeepSpecs: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.PutSpecs(ctx, wire.SpecsOf("web", "p", 1, nil)); err != nil {
		t.Fatal(err)
	}
	// The number of what was stored last remains when that has expired, which may be now.
	s, err := b.js.Stream(ctx, "KV_"+bucket)
	if err != nil {
		t.Fatal(err)
	}
	if n := s.CachedInfo().State.LastSeq; n != 1 {
		t.Errorf("%d specs were stored, want 1", n)
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
		u.specs.announced(data)
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
