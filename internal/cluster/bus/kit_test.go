package bus

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// child is the environment variable that selects the role of a process started by a test.
const child = "QUELL_TEST_BUS"

func TestMain(m *testing.M) {
	switch text := os.Getenv(child); {
	case strings.HasPrefix(text, "server "):
		serve(strings.TrimPrefix(text, "server "))
	case strings.HasPrefix(text, "agent "):
		play(strings.TrimPrefix(text, "agent "))
	default:
		quelltest.Main(m)
	}
}

// process is a NATS server in a separate process, which can be killed.
type process struct {
	t       testing.TB
	Options serverOptions
	cmd     *exec.Cmd
	stdin   io.Closer
}

// serverOptions are the fields of embedded.Options that are passed to another process.
type serverOptions struct {
	Dir, Listen, Name string
	Peer              string   // its address for other nodes; empty: single node
	Peers             []string // the other nodes' addresses
	Trust             authority.Trust
}

// startServer starts a server on a port that it keeps, also after a kill.
func startServer(t testing.TB, a *authority.Authority, o embedded.Options) *process {
	t.Helper()
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	if o.Dir == "" {
		o.Dir = t.TempDir()
	}
	if o.Listen == "" {
		o.Listen = quelltest.FreeAddress(t)
	}
	n := &process{t: t, Options: serverOptions{Dir: o.Dir, Listen: o.Listen, Trust: trust}}
	t.Cleanup(n.kill)
	n.start()
	return n
}

// serveHere starts a server in this process, for tests that do not kill it: a separate
// process takes a second to start.
func serveHere(t testing.TB, a *authority.Authority) (url string) {
	t.Helper()
	trust, err := a.Trust()
	if err != nil {
		t.Fatal(err)
	}
	s, err := embedded.Start(embedded.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}, trust)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s.URL()
}

func (n *process) url() string { return "nats://" + n.Options.Listen }

// start returns when the server takes connections.
func (n *process) start() {
	n.t.Helper()
	n.begin()()
}

// begin starts the process and returns a function that waits until it is ready.
func (n *process) begin() (wait func()) {
	n.t.Helper()
	text, err := json.Marshal(n.Options)
	if err != nil {
		n.t.Fatal(err)
	}
	n.cmd = exec.Command(os.Args[0])
	n.cmd.Env = append(os.Environ(), child+"=server "+string(text))
	n.cmd.Stderr = os.Stderr
	in, err := n.cmd.StdinPipe() // the child ends with this process
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := n.cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.stdin = in
	return func() {
		n.t.Helper()
		if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			n.t.Fatalf("the server said %q, %v", line, err)
		}
	}
}

// kill is kill -9.
func (n *process) kill() {
	if n.cmd == nil {
		return
	}
	n.cmd.Process.Kill()
	n.stdin.Close()
	n.cmd.Wait()
	n.cmd = nil
}

// serve is the server's process.
func serve(text string) {
	var o serverOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	if o.Peer != "" {
		s := startNode(o)
		fmt.Println(s.ClientURL())
		io.Copy(io.Discard, os.Stdin)
		s.Shutdown()
		s.WaitForShutdown()
		return
	}
	s, err := embedded.Start(embedded.Options{Dir: o.Dir, Listen: o.Listen,
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))}, o.Trust)
	if err != nil {
		panic(err)
	}
	fmt.Println(s.URL())
	io.Copy(io.Discard, os.Stdin)
	s.Close()
}

// startNode starts one of several NATS servers that hold the same streams, with the
// authority's trust: what users with such a cluster run, which is never the embedded one.
func startNode(o serverOptions) *server.Server {
	operator, err := jwt.DecodeOperatorClaims(o.Trust.Operator)
	resolver := &server.MemAccResolver{}
	for key, token := range o.Trust.JWTs {
		err = errors.Join(err, resolver.Store(key, token))
	}
	opts := &server.Options{ServerName: o.Name, JetStream: true, StoreDir: o.Dir, SyncInterval: time.Second, NoSigs: true, MaxPayload: 1 << 20,
		TrustedOperators: []*jwt.OperatorClaims{operator}, SystemAccount: o.Trust.System, AccountResolver: resolver,
		Cluster: server.ClusterOpts{Name: "test", Username: "quell", Password: "secret"}}
	listen := func(address string, host *string, port *int) {
		h, p, e := net.SplitHostPort(address)
		n, e2 := strconv.Atoi(p)
		*host, *port, err = h, n, errors.Join(err, e, e2)
	}
	listen(o.Listen, &opts.Host, &opts.Port)
	listen(o.Peer, &opts.Cluster.Host, &opts.Cluster.Port)
	for _, peer := range o.Peers {
		opts.Routes = append(opts.Routes, &url.URL{Scheme: "nats-route", User: url.UserPassword("quell", "secret"), Host: peer})
	}
	if err != nil {
		panic(err)
	}
	s, err := server.NewServer(opts)
	if err != nil {
		panic(err)
	}
	s.Start()
	if !s.ReadyForConnections(time.Minute) {
		_, client := net.Listen("tcp", o.Listen)
		_, peer := net.Listen("tcp", o.Peer)
		panic(fmt.Sprintf("a node is not ready after a minute; its addresses: %v, %v", client, peer))
	}
	return s
}

// patient is a context whose end only guards against a hang: without an end, JetStream's client
// waits 5 s for an answer.
func patient(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func newAuthority(t testing.TB) *authority.Authority {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := authority.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// credentials writes a credentials file and returns its path.
func credentials(t testing.TB, a *authority.Authority, role authority.Role, name string, ttl time.Duration) string {
	t.Helper()
	text, err := a.Issue(role, name, ttl)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), name+".creds")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openBus opens a server's side with the buckets that a server creates, which answers for specs.
func openBus(t testing.TB, a *authority.Authority, url string, replicas int) *Bus {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b, err := Open(ctx, Options{URL: url, Name: "server", Credentials: credentials(t, a, authority.Server, "server", 0),
		Log: slog.New(slog.DiscardHandler), pause: 20 * time.Millisecond}, Settings{Replicas: replicas, Waiting: MinWaiting})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	serve, stop := context.WithCancel(context.Background())
	before := b.commands.link.nc.NumSubscriptions()
	var running sync.WaitGroup
	running.Go(func() {
		if err := b.ServeSpecs(serve); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); running.Wait() })
	quelltest.Until(t, "the server listens", func() bool {
		return b.commands.link.nc.NumSubscriptions() > before && b.commands.link.ask(ctx) == nil
	})
	return b
}

// openUplink opens an agent's side that retries soon.
func openUplink(t testing.TB, a *authority.Authority, url, machine string, decided func(context.Context)) *Uplink {
	t.Helper()
	u, err := OpenUplink(UplinkOptions{
		Options: Options{URL: url, Name: machine, Credentials: credentials(t, a, authority.Agent, machine, 0), pause: 20 * time.Millisecond},
		Dir:     t.TempDir(), MaxBytes: MinSpool, Decided: decided})
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	t.Cleanup(func() { once.Do(func() { u.Close() }) })
	return u
}

// keeper is a server that stores samples in memory: it answers what it has, and counts what comes
// again.
type keeper struct {
	*Consumer
	t testing.TB

	mu      sync.Mutex
	numbers map[string][]uint64 // of each machine's batches, as stored
	highest map[wire.Key]uint64 // by run
	again   int
	wrong   []error // messages that are no batch of their sender
}

// keep stores what comes until the test ends, or it is stopped.
func keep(t testing.TB, b *Bus) (k *keeper, stop func()) {
	t.Helper()
	c, err := b.Consume(patient(t), Samples)
	if err != nil {
		t.Fatal(err)
	}
	k = &keeper{Consumer: c, t: t, numbers: map[string][]uint64{}, highest: map[wire.Key]uint64{}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			all, err := c.Fetch(ctx, nil, 64)
			for i := range all {
				k.take(&all[i])
			}
			if len(all) > 0 {
				c.Ack(all[len(all)-1].Seq)
			}
			if err != nil {
				return
			}
		}
	})
	stop = sync.OnceFunc(func() { cancel(); running.Wait(); c.Close() })
	t.Cleanup(stop)
	return k, stop
}

func (k *keeper) take(m *Message) {
	var b wire.Batch
	err := m.Batch(&b)
	k.mu.Lock()
	defer k.mu.Unlock()
	run := wire.Key{Machine: b.Machine, Boot: b.Boot}
	switch {
	case err != nil:
		k.wrong = append(k.wrong, err)
	case b.N <= k.highest[run]:
		k.again++
	default:
		k.highest[run] = b.N
		k.numbers[b.Machine] = append(k.numbers[b.Machine], b.N)
	}
}

// of returns the numbers of a machine's batches.
func (k *keeper) of(machine string) []uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.numbers[machine])
}

func samples(machine string, n int) []sample.Sample {
	all := make([]sample.Sample, n)
	for i := range all {
		all[i] = sample.Sample{TS: 1000, Machine: machine, Job: "web", Task: sample.TaskName(fmt.Sprintf("/web/%d", i)), Platform: "p",
			Signal: sample.CPI, Variant: "ref-cycles", Class: sample.Batch, CPU: 1, Cost: 1.5, Coverage: 1}
	}
	return all
}

func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelError}))
}

// warned counts warnings of decisions that the bucket has lost.
type warned struct {
	slog.Handler
	n atomic.Int64
}

func (*warned) Enabled(context.Context, slog.Level) bool { return true }

func (w *warned) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn && strings.Contains(r.Message, "newer decisions than the bucket") {
		w.n.Add(1)
	}
	return nil
}
