package bus

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// obedient is an agent that follows decisions and says so.
type obedient struct {
	*Uplink
	decided atomic.Int64 // how often they have changed
}

// obey opens an agent's side in a directory that keeps its state.
func obey(t *testing.T, o UplinkOptions) *obedient {
	t.Helper()
	a, opened := &obedient{}, make(chan struct{})
	o.MaxBytes, o.Decided = MinSpool, func(context.Context) {
		<-opened
		a.decided.Add(1)
		a.say()
	}
	var err error
	if a.Uplink, err = OpenUplink(o); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { a.Close() }) })
	close(opened)
	a.say()
	return a
}

// say reports every decision as carried out.
func (a *obedient) say() {
	s := &wire.State{Agent: "test", Mode: "advise", From: "configuration"}
	for _, c := range a.Decisions() {
		s.Outcomes = append(s.Outcomes, &wire.Reply{Id: c.Id, Ok: true, Message: "done"})
	}
	a.Report(s)
}

// stand are the IDs of the decisions that stand for it.
func (a *obedient) stand() []string { return a.standAt(time.Now()) }

func (a *obedient) standAt(now time.Time) (all []string) {
	for _, m := range a.Decisions() {
		if d, err := wire.DecodeDecision(m); err == nil && d.Stands(sample.At(now)) {
			all = append(all, d.ID)
		}
	}
	return all
}

// has reports whether these stand for it.
func (a *obedient) has(want ...string) func() bool {
	return func() bool { return slices.Equal(a.stand(), want) }
}

// follower returns an agent's options.
func follower(t *testing.T, a *authority.Authority, url, machine string) UplinkOptions {
	return UplinkOptions{Options: Options{URL: url, Name: machine, Credentials: credentials(t, a, authority.Agent, machine, 0), pause: 20 * time.Millisecond}, Dir: t.TempDir()}
}

// deciding is a server's side that serves decisions.
type deciding struct {
	*Bus
	mu     sync.Mutex
	states map[string]*wire.State // the newest of each machine
	n      map[string]int         // states of each machine
}

func serveDecisions(t *testing.T, b *Bus) *deciding {
	t.Helper()
	d := &deciding{Bus: b, states: map[string]*wire.State{}, n: map[string]int{}}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- b.ServeDecisions(ctx, func(s *wire.State) {
			d.mu.Lock()
			defer d.mu.Unlock()
			d.states[s.Machine] = s
			d.n[s.Machine]++
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	// A server that finds no decisions for all stores that there are none. Next to one that is
	// being added, that would give the list a revision after the one that add returns.
	quelltest.Until(t, "it knows what stands for all", func() bool {
		b.commands.mu.Lock()
		defer b.commands.mu.Unlock()
		return b.commands.loaded && b.commands.current[""] != nil
	})
	return d
}

func (d *deciding) state(machine string) *wire.State {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.states[machine]
}

// add adds a decision, and returns the revision.
func (d *deciding) add(t *testing.T, machine string, one command.Decision) uint64 {
	t.Helper()
	revision, err := d.Decide(patient(t), machine, func(list []command.Decision) ([]command.Decision, error) { return command.Add(list, one), nil })
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// decision returns one that was made some time ago.
func decision(id string, ago time.Duration, c command.Command) command.Decision {
	c.Why = "r"
	return command.Decide(id, "anna", sample.At(time.Now().Add(-ago)), c)
}

func off() command.Command {
	return command.Command{Enforcement: &command.Enforcement{Mode: "off"}}
}

func capping(job string, lease time.Duration) command.Command {
	return command.Command{Cap: &command.Cap{Target: command.Target{Job: job}, Terms: command.Terms{Rate: 1, For: command.Duration(lease)}}}
}

func reset(id string) command.Decision {
	return command.Decision{Command: command.Command{Why: "r", Reset: &command.Reset{Decision: id}}}
}

// TestDecisionsReachAgents: decisions reach the machine that they are for, or all; the server
// learns who has them; and what is revoked no longer stands.
func TestDecisionsReachAgents(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := serveDecisions(t, openBus(t, a, url, 1))
	one, two := obey(t, follower(t, a, url, "one")), obey(t, follower(t, a, url, "two.example"))
	quelltest.Until(t, "both say that they have none", func() bool { return b.state("one") != nil && b.state("two.example") != nil })
	all := b.add(t, "", decision("all", 0, off()))
	own := b.add(t, "two.example", decision("own", 0, capping("web", time.Hour)))
	quelltest.Until(t, "one has them", one.has("all"))
	quelltest.Until(t, "two has them", two.has("all", "own"))
	quelltest.Until(t, "the server knows", func() bool {
		s, s2 := b.state("one"), b.state("two.example")
		return s.All == all && s.Own == 0 && len(s.Outcomes) == 1 && s2.All == all && s2.Own == own && len(s2.Outcomes) == 2
	})
	standing := b.Decisions()
	if len(standing) != 2 || standing[0].Machine != "" || standing[0].Revision != all || standing[1].List[0].ID != "own" {
		t.Errorf("%+v", standing)
	}
	b.add(t, "two.example", reset("own"))
	quelltest.Until(t, "it is revoked", two.has("all"))
	if _, err := b.Decide(t.Context(), "", func([]command.Decision) ([]command.Decision, error) {
		return make([]command.Decision, command.MaxDecisions+1), nil
	}); err == nil {
		t.Error("any number may stand")
	}
}

// TestTwoServersDecide: two servers of one bus lose none of each other's decisions, and know
// them.
func TestTwoServersDecide(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	servers := []*deciding{serveDecisions(t, openBus(t, a, url, 1)), serveDecisions(t, openBus(t, a, url, 1))}
	var all sync.WaitGroup
	for i, s := range servers {
		all.Go(func() {
			for j := range 5 {
				s.add(t, "", decision(fmt.Sprintf("%d-%d", i, j), 0, capping(fmt.Sprintf("%d-%d", i, j), time.Hour)))
			}
		})
	}
	all.Wait()
	for _, s := range servers {
		quelltest.Until(t, "it knows all", func() bool { d := s.Decisions(); return len(d) == 1 && len(d[0].List) == 10 })
	}
}

// relay passes TCP connections on until it is cut.
type relay struct {
	net.Listener
	to string

	mu  sync.Mutex
	cut bool
	all []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { r.pass(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.set(true)
		running.Wait()
	})
	return r
}

func (r *relay) pass(c net.Conn) {
	defer c.Close()
	to, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer to.Close()
	r.mu.Lock()
	if r.cut {
		r.mu.Unlock()
		return
	}
	r.all = append(r.all, c, to)
	r.mu.Unlock()
	var there sync.WaitGroup
	there.Go(func() {
		io.Copy(to, c)
		to.Close()
	})
	io.Copy(c, to)
	c.Close()
	there.Wait()
}

// set cuts the connections and lets none through, or ends that.
func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	for _, c := range r.all {
		c.Close()
	}
	r.all = nil
}

// backWithin is how soon an agent that comes back must have what it missed.
const backWithin = 5 * time.Second

// timed is for a machine with nothing else to do.
var timed = flag.Bool("timed", false, "fail if decisions are late (make test-decisions)")

// within waits for a condition. With -timed it checks how long that took since a moment.
func within(t *testing.T, since time.Time, most time.Duration, what string, ok func() bool) {
	t.Helper()
	quelltest.Until(t, what, ok)
	if took := time.Since(since); *timed && took > most {
		t.Errorf("%s: after %s, want %s", what, took, most)
	}
}

// TestDecisionsMissed: an agent that was away for ten minutes has every decision that it missed
// within 5 s of coming back, whether its connection was lost or it did not run; not one that
// has ended meanwhile, and not one that was revoked. The decisions are as old as that: nothing
// waits for ten minutes.
func TestDecisionsMissed(t *testing.T) {
	const away = 10 * time.Minute
	a := newAuthority(t)
	url := serveHere(t, a)
	b := serveDecisions(t, openBus(t, a, url, 1))
	way := newRelay(t, strings.TrimPrefix(url, "nats://"))
	connected, stopped := follower(t, a, "nats://"+way.Addr().String(), "connected"), follower(t, a, url, "stopped")
	connected.pause = 0 // as the agent's own
	m, s := obey(t, connected), obey(t, stopped)
	b.add(t, "", decision("before", away, command.Command{Protect: &command.Target{Job: "db"}}))
	b.add(t, "", decision("revoked", away, capping("revoked", time.Hour)))
	quelltest.Until(t, "both have what was before", func() bool { return m.has("before", "revoked")() && s.has("before", "revoked")() })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	way.set(true)
	quelltest.Until(t, "the connection is lost", func() bool { return m.Err() != nil })
	b.add(t, "", decision("cap", away-time.Minute, capping("web", time.Hour)))
	b.add(t, "", decision("ended", away-time.Minute, capping("batch", 5*time.Minute)))
	b.add(t, "", reset("revoked"))
	b.add(t, "", decision("mode", time.Minute, off()))
	for _, machine := range []string{"connected", "stopped"} {
		b.add(t, machine, decision("own", time.Minute, command.Command{Pardon: &command.Pardon{Job: "web"}}))
	}
	back := time.Now()
	way.set(false)
	within(t, back, backWithin, "the one that was not connected has them", m.has("before", "cap", "mode", "own"))
	back = time.Now()
	s = obey(t, stopped)
	within(t, back, backWithin, "the one that did not run has them", s.has("before", "cap", "mode", "own"))
}

// TestDecisionsOfANewMachine: one that is new to the cluster has what stands before its first
// window ends.
func TestDecisionsOfANewMachine(t *testing.T) {
	const window = 10 * time.Second // config.DefaultAgent's sampling.duration
	a := newAuthority(t)
	url := serveHere(t, a)
	b := serveDecisions(t, openBus(t, a, url, 1))
	b.add(t, "", decision("mode", time.Hour, off()))
	o := follower(t, a, url, "new")
	o.pause = 0
	begun := time.Now()
	within(t, begun, window, "it has them", obey(t, o).has("mode"))
}

// TestDecisionsWithoutTheServer: an agent that starts while the server is away has what it
// kept, as far as it has not ended, and does not go back behind it.
func TestDecisionsWithoutTheServer(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := serveDecisions(t, openBus(t, a, url, 1))
	o := follower(t, a, url, "m")
	first := obey(t, o)
	b.add(t, "", decision("ends", 10*time.Minute, capping("web", time.Hour)))
	old := b.commands.current[""].signed
	b.add(t, "", decision("stays", 0, off()))
	quelltest.Until(t, "it has both", first.has("ends", "stays"))
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	o.URL = "nats://127.0.0.1:1" // no server listens there
	second := obey(t, o)
	if now, later := second.stand(), second.standAt(time.Now().Add(50*time.Minute)); len(now) != 2 || !slices.Equal(later, []string{"stays"}) {
		t.Errorf("%q stand, and %q when one has ended", now, later)
	}
	if changed, err := second.gate.open(old, time.Now()); err == nil || changed || !strings.Contains(err.Error(), "refused") {
		t.Errorf("it goes back: %v, %v", changed, err)
	}
	for name, spoil := range map[string]func(path string) error{
		"damaged":              func(path string) error { return os.WriteFile(path, []byte("junk"), 0o600) },
		"of a renamed machine": func(path string) error { return os.Rename(path, filepath.Join(o.Dir, "decisions-machine")) },
	} {
		g := openGate("m", o.Dir, o.Credentials)
		if len(g.held) != 1 {
			t.Fatalf("%d are kept", len(g.held))
		}
		text, err := os.ReadFile(g.file(""))
		if err == nil {
			err = spoil(g.file(""))
		}
		if err != nil {
			t.Fatal(err)
		}
		if g := openGate("m", o.Dir, o.Credentials); len(g.held) != 0 {
			t.Errorf("%s: %v are held", name, g.held)
		}
		if err := os.WriteFile(g.file(""), text, 0o600); err != nil {
			t.Fatal(err)
		}
		os.Remove(g.file("m"))
	}
}

// TestServerLosesItsDecisions: a server whose bucket is gone, or is an old copy, brings the
// agents to what it has.
func TestServerLosesItsDecisions(t *testing.T) {
	a := newAuthority(t)
	s := startServer(t, a, embedded.Options{})
	b := serveDecisions(t, openBus(t, a, s.url(), 1))
	m := obey(t, follower(t, a, s.url(), "m"))
	b.add(t, "", decision("mode", 0, off()))
	b.add(t, "m", decision("own", 0, capping("web", time.Hour)))
	quelltest.Until(t, "it has them", m.has("mode", "own"))
	s.kill()
	b.Close()
	if err := os.RemoveAll(s.Options.Dir); err != nil {
		t.Fatal(err)
	}
	s.start()
	again := serveDecisions(t, openBus(t, a, s.url(), 1))
	quelltest.Until(t, "nothing stands", m.has())
	again.add(t, "", decision("new", 0, off()))
	quelltest.Until(t, "it follows what is new", m.has("new"))
}

// TestDecisionsAreSignedAgain: what was signed long ago is signed again without what has ended,
// and a machine's document in which nothing stands goes. That is no reason for a warning.
func TestDecisionsAreSignedAgain(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	server, warnings := openBus(t, a, url, 1), &warned{Handler: slog.DiscardHandler}
	server.commands.log = slog.New(warnings)
	b := serveDecisions(t, server)
	m := obey(t, follower(t, a, url, "m"))
	first := b.add(t, "", decision("mode", 0, off()))
	own := b.add(t, "m", decision("own", 0, capping("web", time.Hour)))
	quelltest.Until(t, "it has them", m.has("mode", "own"))
	if err := b.commands.refresh(patient(t), time.Now().Add(signAgain/2)); err != nil || b.Decisions()[0].Revision != first {
		t.Errorf("too soon: %+v, %v", b.Decisions(), err)
	}
	if err := b.commands.refresh(patient(t), time.Now().Add(freshFor+time.Minute)); err != nil {
		t.Fatal(err)
	}
	// When the machine then says that it has decisions of its own, it is told that there are none,
	// in a new document.
	quelltest.Until(t, "the server knows that one is signed again and one has ended", func() bool {
		got := b.Decisions()
		gone := len(got) == 1 || len(got) == 2 && got[1].Revision > own && len(got[1].List) == 0
		return gone && got[0].Revision > first && len(got[0].List) == 1
	})
	m.say() // it need not be silent for a minute
	quelltest.Until(t, "the agent has the new one", func() bool {
		s := b.state("m")
		return s != nil && s.All > first && (s.Own == 0 || len(m.stand()) == 1)
	})
	if n := warnings.n.Load(); n > 0 {
		t.Errorf("%d warnings that the bucket has lost decisions", n)
	}
}

// TestDecisionsSignedByAClockThatWasAhead: when the server's clock is set back, what it has signed is
// signed again, also that a cap was revoked: agents refuse what comes from the future.
func TestDecisionsSignedByAClockThatWasAhead(t *testing.T) {
	a := newAuthority(t)
	b := serveDecisions(t, openBus(t, a, serveHere(t, a), 1))
	b.add(t, "", decision("mode", 0, off()))
	b.add(t, "m", decision("own", 0, capping("web", time.Hour)))
	if _, err := b.Decide(patient(t), "m", func([]command.Decision) ([]command.Decision, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	before := b.Decisions()
	if err := b.commands.refresh(patient(t), time.Now().Add(-maxAhead/2)); err != nil || b.Decisions()[0].Revision != before[0].Revision {
		t.Errorf("agents accept that: %+v, %v", b.Decisions(), err)
	}
	if err := b.commands.refresh(patient(t), time.Now().Add(-2*maxAhead)); err != nil {
		t.Fatal(err)
	}
	for i, after := range b.Decisions() {
		if after.Revision <= before[i].Revision || len(after.List) != len(before[i].List) {
			t.Errorf("%+v, before %+v", after, before[i])
		}
	}
}

// TestDecisionIsStoredAndNotSent: a decision that is stored, and cannot be sent now, is made. Otherwise
// the operator is told that it has failed, and it holds all the same.
func TestDecisionIsStoredAndNotSent(t *testing.T) {
	a := newAuthority(t)
	url := serveHere(t, a)
	b := openBus(t, a, url, 1)
	b.commands.link.nc.Close()
	one := decision("mode", 0, off())
	if _, err := b.Decide(patient(t), "", func(list []command.Decision) ([]command.Decision, error) { return command.Add(list, one), nil }); err != nil {
		t.Error(err)
	}
	serveDecisions(t, openBus(t, a, url, 1))
	quelltest.Until(t, "agents have it", obey(t, follower(t, a, url, "m")).has("mode"))
}

// TestDecisionsOfANewerServer: a server of an older version, which does not know a decision, leaves it
// where it is when it changes another one.
func TestDecisionsOfANewerServer(t *testing.T) {
	a := newAuthority(t)
	b := serveDecisions(t, openBus(t, a, serveHere(t, a), 1))
	b.add(t, "m", decision("cap", 0, capping("web", time.Hour)))
	old, at, err := b.commands.stored(patient(t), wire.DecisionsKey("m"))
	if err != nil {
		t.Fatal(err)
	}
	old.List = append(old.List, &wire.Command{Id: "new", Expires: time.Now().Add(time.Hour).UnixMilli()}, &wire.Command{Id: "ended", Expires: 1})
	data, err := sign(b.commands.credentials, old.Decisions)
	if err == nil {
		_, err = b.commands.kv.Update(patient(t), wire.DecisionsKey("m"), data, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	b.add(t, "m", decision("mode", 0, off()))
	got, _, err := b.commands.stored(patient(t), wire.DecisionsKey("m"))
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, m := range got.List {
		ids = append(ids, m.Id)
	}
	if slices.Sort(ids); !slices.Equal(ids, []string{"cap", "mode", "new"}) {
		t.Errorf("%q stand", ids)
	}
	// If only these stand, the document is signed again too, and not removed.
	only := &document{Decisions: &wire.Decisions{List: []*wire.Command{{Id: "new"}}}}
	if only.empty(time.Now()) || len(only.decisions(time.Now())) != 0 {
		t.Errorf("%+v is empty", only)
	}
}

// TestBucketThatWasSetBack: a bucket that goes back to an old copy while a server runs gets again what
// stands. Otherwise the server's next start revokes it, or the next decision before that.
func TestBucketThatWasSetBack(t *testing.T) {
	a := newAuthority(t)
	b := serveDecisions(t, openBus(t, a, serveHere(t, a), 1))
	kv, ctx := b.commands.kv, patient(t)
	b.add(t, "", decision("old", 0, capping("web", time.Hour)))
	entry, err := kv.Get(ctx, wire.DecisionsKey(""))
	if err != nil {
		t.Fatal(err)
	}
	want := b.add(t, "", decision("mode", 0, off()))
	quelltest.Until(t, "the server has read its own", func() bool { d := b.Decisions(); return len(d) == 1 && d[0].Revision == want })
	if _, err := kv.Put(ctx, wire.DecisionsKey(""), entry.Value()); err != nil {
		t.Fatal(err)
	}
	if err := b.commands.refresh(ctx, time.Now()); err != nil {
		t.Fatal(err)
	}
	if d, _, err := b.commands.stored(ctx, wire.DecisionsKey("")); err != nil || d.Revision != want || len(d.List) != 2 {
		t.Errorf("%+v, %v", d, err)
	}
	if _, err := kv.Put(ctx, wire.DecisionsKey(""), entry.Value()); err != nil {
		t.Fatal(err)
	}
	b.add(t, "", decision("next", 0, capping("batch", time.Hour)))
	if d, _, err := b.commands.stored(ctx, wire.DecisionsKey("")); err != nil || len(d.List) != 3 {
		t.Errorf("after the next decision: %+v, %v", d, err)
	}
}

// BenchmarkDecisionReachesAgents reports the time from when a server decides something for all
// until the last of its agents' connections has it, and fails if that is over 10 s: stored in
// the bucket, signed, sent, read off the socket and decoded. It uses real TCP connections, as
// many as -subscribers, to a server in a separate process.
func BenchmarkDecisionReachesAgents(b *testing.B) {
	const most = 10 * time.Second
	a := newAudience(b, *subscribers, credential.Commands, wire.CommandAll, func(data []byte) error {
		d, err := readSigned(data)
		if err == nil && (d.Machine != "" || len(d.List) == 0) {
			err = fmt.Errorf("%v came", d.Decisions)
		}
		return err
	})
	var worst, sum time.Duration
	n := 0
	for b.Loop() {
		n++
		one := decision(fmt.Sprint(n), 0, capping(fmt.Sprint("job", n%50), time.Hour))
		took := a.time(b, func() error {
			_, err := a.hub.Decide(b.Context(), "", func(list []command.Decision) ([]command.Decision, error) { return command.Add(list, one), nil })
			return err
		})
		worst, sum = max(worst, took), sum+took
	}
	b.ReportMetric(float64(len(a.listeners)), "connections")
	b.ReportMetric(float64(sum.Microseconds())/1000/float64(n), "ms/decision")
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
	if worst > most {
		b.Errorf("%s until all had it, want %s", worst, most)
	}
}

// TestDecisionReachesAll: a decision reaches every agent, once.
func TestDecisionReachesAll(t *testing.T) {
	a := newAudience(t, 40, credential.Commands, wire.CommandAll, func(data []byte) error {
		_, err := readSigned(data)
		return err
	})
	for i := range 3 {
		a.time(t, func() error {
			_, err := a.hub.Decide(patient(t), "", func(list []command.Decision) ([]command.Decision, error) {
				return command.Add(list, decision(fmt.Sprint(i), 0, off())), nil
			})
			return err
		})
	}
}
