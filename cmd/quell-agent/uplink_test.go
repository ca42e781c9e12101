package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus"
	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// server is a NATS server with an authority; it can be stopped and restarted.
type server struct {
	t      *testing.T
	dir    string
	keys   *authority.Authority
	listen string
	nats   *embedded.Server
	state  atomic.Pointer[wire.State] // the newest of any machine
	end    func()
	*bus.Bus
}

func newServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, dir: state(t), listen: quelltest.FreeAddress(t)}
	var err error
	if s.keys, err = authority.Load(filepath.Join(s.dir, "keys")); err != nil {
		t.Fatal(err)
	}
	s.start()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *server) start() {
	s.t.Helper()
	trust, err := s.keys.Trust()
	if err != nil {
		s.t.Fatal(err)
	}
	if s.nats, err = embedded.Start(embedded.Options{Dir: filepath.Join(s.dir, "bus"), Listen: s.listen}, trust); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 4*time.Minute)
	defer cancel()
	s.Bus, err = bus.Open(ctx, bus.Options{Name: "server", Credentials: s.credentials(authority.Server, "server"), InProcess: s.nats,
		Log: slog.New(slog.DiscardHandler)}, bus.Settings{Waiting: bus.MinWaiting})
	if err != nil {
		s.t.Fatal(err)
	}
	s.serve()
}

// serve serves decisions and specs until the server stops.
func (s *server) serve() {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.ServeDecisions(ctx, func(state *wire.State) { s.state.Store(state) }); err != nil {
			s.t.Error(err)
		}
	})
	running.Go(func() {
		if err := s.ServeSpecs(ctx); err != nil {
			s.t.Error(err)
		}
	})
	s.end = func() { stop(); running.Wait() }
}

// decide decides something for all, and returns what the machine says of it.
func (s *server) decide(id string, c command.Command) func() *wire.Reply {
	s.t.Helper()
	if _, err := s.Decide(s.t.Context(), "", func(list []command.Decision) ([]command.Decision, error) {
		return command.Add(list, command.Decide(id, "anna", sample.At(time.Now()), c)), nil
	}); err != nil {
		s.t.Fatal(err)
	}
	return func() *wire.Reply {
		if state := s.state.Load(); state != nil && len(state.Outcomes) == 1 && state.Outcomes[0].Id == id {
			return state.Outcomes[0]
		}
		return nil
	}
}

// revoke takes a decision back.
func (s *server) revoke(id string) {
	s.t.Helper()
	reset := command.Decision{Command: command.Command{Why: "r", Reset: &command.Reset{Decision: id}}}
	if _, err := s.Decide(s.t.Context(), "", func(list []command.Decision) ([]command.Decision, error) { return command.Add(list, reset), nil }); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) stop() {
	if s.nats != nil {
		s.end()
		s.Close()
		s.nats.Close()
		s.nats = nil
	}
}

func (s *server) credentials(role authority.Role, name string) string {
	s.t.Helper()
	path := filepath.Join(s.dir, name+".creds")
	text, err := s.keys.Issue(role, name, 0)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return path
}

// An agent and a server: samples arrive; an operator's decision over the bus
// caps a task and is answered and audited. While the server is down the agent continues, and
// is killed; its next run undoes the cap and, since the decision stands, sets it again. When the server is back, the data of both runs of the agent
// arrives, in order and without duplicates.
func TestServer(t *testing.T) {
	t.Parallel()
	task := newLimited(t, "server", "-1", "burn")
	s := newServer(t)
	dir := state(t)
	args := append(settings(dir, "machine=node-1.test", "server.url=nats://"+s.listen, "server.credentials="+s.credentials(authority.Agent, "node-1.test"),
		"tick=20ms", "sampling.duration=100ms", "sampling.period=200ms"), "--config", configFile(t, dir, task.path))
	d := startRaced(t, dir, args...)
	reader := &reader{t: t, server: s, highest: map[string]uint64{}}
	reader.until("a sample of the task arrives", func() bool { return reader.tasks[task.path] > 0 })

	decided := s.decide("c1", command.CapTask(task.path, 0.1, time.Hour, "a test"))
	quelltest.Until(t, "the agent says that it has carried it out", func() bool {
		r := decided()
		return r != nil && r.Ok && r.Cap != ""
	})
	if got := task.quota(); got != "10000 100000" {
		t.Errorf("capped, the quota is %s", got)
	}
	reader.until("the audit entry arrives", func() bool { return strings.Contains(reader.records, `"who":"anna (server)"`) })

	s.stop()
	window := func(d *running, more uint64) {
		t.Helper()
		st, err := d.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := st.Intervals + more
		quelltest.Until(t, "the agent goes on", quelltest.Paced(func() bool {
			st, err = d.Status(t.Context())
			return err == nil && st.Intervals >= want
		}))
	}
	window(d, 5)
	quelltest.Until(t, "the agent says that the server is gone", quelltest.Paced(func() bool {
		st, err := d.Status(t.Context())
		return err == nil && strings.Contains(strings.Join(st.Degraded, "\n"), "server: ")
	}))
	d.kill()
	d = startRaced(t, dir, args...)
	window(d, 5)
	caps, err := d.Status(t.Context())
	if got := task.quota(); err != nil || got != "10000 100000" || len(caps.Caps) != 1 || caps.Caps[0].From < caps.Started {
		t.Errorf("after the restart the quota is %s: %+v, %v", got, caps.Caps, err)
	}
	s.start()
	s.revoke("c1")
	quelltest.Until(t, "the cap is revoked", func() bool { return task.quota() == "-1 100000" })
	reader.until("all batches of the time without a server arrive, and it says that it works again", func() bool {
		st, err := d.Status(t.Context())
		return err == nil && len(st.Degraded) == 0 && len(reader.highest) == 2 && reader.stored >= 10
	})
	if reader.missing > 0 {
		t.Errorf("of %d batches %d are missing", reader.stored+int(reader.missing), reader.missing)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-d.ended
}

// reader takes batches once by their numbers.
type reader struct {
	t         *testing.T
	server    *server
	bus       *bus.Bus // of the consumers
	consumers map[bus.Stream]*bus.Consumer
	highest   map[string]uint64 // by run of the agent
	stored    int
	missing   uint64
	tasks     map[string]int
	records   string
}

// until reads new messages until cond holds.
func (r *reader) until(what string, cond func() bool) {
	r.t.Helper()
	quelltest.Until(r.t, what, func() bool {
		r.read(bus.Samples)
		r.read(bus.Records)
		return cond()
	})
}

func (r *reader) read(stream bus.Stream) {
	r.t.Helper()
	if r.bus != r.server.Bus { // it has been started again
		r.bus, r.consumers = r.server.Bus, map[bus.Stream]*bus.Consumer{}
	}
	c := r.consumers[stream]
	if c == nil {
		var err error
		if c, err = r.bus.Consume(r.t.Context(), stream); err != nil {
			r.t.Fatal(err)
		}
		r.consumers[stream] = c
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), 50*time.Millisecond)
	defer cancel()
	all, err := c.Fetch(ctx, nil, 1000)
	if err != nil {
		r.t.Fatal(err)
	}
	if len(all) > 0 {
		defer c.Ack(all[len(all)-1].Seq)
	}
	for i := range all {
		if stream == bus.Records {
			rec, err := all[i].Record()
			if err != nil {
				r.t.Fatal(err)
			}
			if !strings.Contains(r.records, string(rec.Json)) {
				r.records += string(rec.Json) + "\n"
			}
			continue
		}
		var b wire.Batch
		if err := all[i].Batch(&b); err != nil {
			r.t.Fatal(err)
		}
		last := r.highest[b.Boot]
		if b.N <= last {
			continue
		}
		r.missing += b.N - last - 1
		r.highest[b.Boot] = b.N
		r.stored++
		if r.tasks == nil {
			r.tasks = map[string]int{}
		}
		for j := range b.Samples {
			r.tasks[string(b.Samples[j].Task)]++
		}
	}
}
