package bus

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/format/wire"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

var (
	kills = flag.Int("kills", 1, "how often to kill each: server, agent, node of a cluster")
	seed  = flag.Uint64("seed", 0, "of the moments to kill at; 0: any")
)

// agentOptions are passed to an agent's process.
type agentOptions struct{ URL, Machine, Credentials, Dir string }

// play is an agent's process: it sends a batch every few milliseconds, and reports how many of
// this life are on disk, until it is killed or stdin ends.
func play(text string) {
	var o agentOptions
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		panic(err)
	}
	u, err := OpenUplink(UplinkOptions{Options: Options{URL: o.URL, Name: o.Machine, Credentials: o.Credentials, pause: 20 * time.Millisecond},
		Dir: o.Dir, MaxBytes: 64 << 20, wait: 2 * time.Second})
	if err != nil {
		panic(err)
	}
	ended := make(chan struct{})
	go func() { io.Copy(io.Discard, os.Stdin); close(ended) }()
	all := samples(o.Machine, 5)
	tick := time.NewTicker(4 * time.Millisecond)
	for n := 0; ; n++ {
		select {
		case <-ended:
			if err := u.Close(); err != nil {
				panic(err)
			}
			report(u)
			return
		case <-tick.C:
		}
		// The rate is limited so that the disk keeps up: what waits in memory is not
		// guaranteed.
		if len(u.samples.incoming) < maxWaiting/2 && u.Stats().Waiting < 300 {
			u.Samples(1, all)
		}
		report(u)
	}
}

func report(u *Uplink) {
	s := u.samples.spool.Stats()
	trouble := ""
	if err := u.Err(); err != nil {
		trouble = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	fmt.Printf("%s %d %d %s\n", u.boot, s.Appended, u.Stats().Lost+s.Dropped+s.Damaged, trouble)
}

// fleet is servers, agents and a storing reader, with the reports of each.
type fleet struct {
	t       *testing.T
	rng     *rand.Rand
	servers []*process
	url     string
	keys    *authority.Authority
	agents  []*player
	stop    context.CancelFunc
	reading sync.WaitGroup

	mu      sync.Mutex
	onDisk  map[wire.Key]uint64 // by life: how many batches are on the agent's disk
	lost    uint64
	highest map[wire.Key]uint64 // by life: highest stored number
	newest  map[string]string   // by machine: the agent's last report
	stored  int
	twice   int // dropped because they were already stored
	reads   error
	wrong   []string
}

type player struct {
	options agentOptions
	cmd     *exec.Cmd
	stdin   io.Closer
	said    sync.WaitGroup
}

func newFleet(t *testing.T, nodes, agents int) *fleet {
	t.Helper()
	from := *seed
	if from == 0 {
		from = rand.Uint64()
	}
	t.Logf("-seed %d", from)
	f := &fleet{t: t, rng: rand.New(rand.NewPCG(from, 1)), keys: newAuthority(t),
		onDisk: map[wire.Key]uint64{}, highest: map[wire.Key]uint64{}, newest: map[string]string{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%d stored, %d again; the reader: %v; agents: %q", f.stored, f.twice, f.reads, f.newest)
		}
	})
	f.startServers(nodes)
	b := openBus(t, f.keys, f.url, nodes)
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	f.reading.Go(func() { f.read(ctx, b) })
	t.Cleanup(func() { stop(); f.reading.Wait() })
	for i := range agents {
		machine := fmt.Sprintf("node-%d", i)
		p := &player{options: agentOptions{f.url, machine, credentials(t, f.keys, authority.Agent, machine, 0), t.TempDir()}}
		f.agents = append(f.agents, p)
		f.startAgent(p)
		t.Cleanup(func() { p.kill() })
	}
	return f
}

func (f *fleet) startServers(n int) {
	if n == 1 {
		s := startServer(f.t, f.keys, embedded.Options{})
		f.servers, f.url = []*process{s}, s.url()
		return
	}
	trust, err := f.keys.Trust()
	if err != nil {
		f.t.Fatal(err)
	}
	var peers, urls []string
	for range n {
		peers = append(peers, quelltest.FreeAddress(f.t))
	}
	for i := range n {
		p := &process{t: f.t, Options: serverOptions{Dir: f.t.TempDir(), Listen: quelltest.FreeAddress(f.t), Name: fmt.Sprint("n", i),
			Peer: peers[i], Peers: peers, Trust: trust}}
		f.t.Cleanup(p.kill)
		f.servers, urls = append(f.servers, p), append(urls, p.url())
	}
	var wait []func()
	for _, p := range f.servers {
		wait = append(wait, p.begin())
	}
	for _, ready := range wait {
		ready()
	}
	f.url = strings.Join(urls, ",")
}

func (f *fleet) startAgent(p *player) {
	f.t.Helper()
	text, err := json.Marshal(p.options)
	if err != nil {
		f.t.Fatal(err)
	}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), child+"=agent "+string(text))
	p.cmd.Stderr = os.Stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		f.t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	p.said.Go(func() {
		for in := bufio.NewScanner(out); in.Scan(); {
			var boot string
			var n, lost uint64
			if _, err := fmt.Sscan(in.Text(), &boot, &n, &lost); err != nil {
				continue // cut off by the kill
			}
			f.mu.Lock()
			f.newest[p.options.Machine] = in.Text()
			f.onDisk[wire.Key{Machine: p.options.Machine, Boot: boot}] = n
			f.lost = max(f.lost, lost)
			f.mu.Unlock()
		}
	})
}

// kill is kill -9; output written before it is read.
func (p *player) kill() {
	if p.cmd == nil {
		return
	}
	p.cmd.Process.Kill()
	p.said.Wait()
	p.stdin.Close()
	p.cmd.Wait()
	p.cmd = nil
}

// read is a store in memory that is never killed. It stores a batch if its number is
// higher than any of that life, and acknowledges what is stored, now and then later.
func (f *fleet) read(ctx context.Context, b *Bus) {
	for ctx.Err() == nil {
		if err := f.readOn(ctx, b); err != nil && ctx.Err() == nil {
			f.mu.Lock()
			f.reads = err
			f.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
}

func (f *fleet) readOn(ctx context.Context, b *Bus) error {
	c, err := b.Consume(ctx, Samples)
	if err != nil {
		return err
	}
	defer c.Close()
	for last, late := uint64(0), false; ; {
		fetching, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		all, err := c.Fetch(fetching, nil, 500)
		cancel()
		for i := range all {
			f.take(&all[i])
			last, late = all[i].Seq, f.some(4) == 0
		}
		// What came is acknowledged at once, or with what comes next, or when nothing comes.
		if len(all) == 0 || !late {
			c.Ack(last)
		}
		if err != nil || ctx.Err() != nil || f.some(200) == 0 { // another reader
			return err
		}
	}
}

func (f *fleet) take(m *Message) {
	var b wire.Batch
	err := m.Batch(&b)
	f.mu.Lock()
	defer f.mu.Unlock()
	life := wire.Key{Machine: b.Machine, Boot: b.Boot}
	switch last := f.highest[life]; {
	case err != nil:
		f.wrong = append(f.wrong, err.Error())
	case b.N <= last:
		f.twice++
	case b.N != last+1:
		f.wrong = append(f.wrong, fmt.Sprintf("%s/%s: %d came after %d", b.Machine, b.Boot, b.N, last))
		fallthrough
	default:
		f.highest[life] = b.N
		f.stored++
	}
}

// some returns a random number from 0 to below n.
func (f *fleet) some(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

// more waits until n more batches are stored.
func (f *fleet) more(n int) {
	f.t.Helper()
	f.mu.Lock()
	want := f.stored + n
	f.mu.Unlock()
	quelltest.Until(f.t, fmt.Sprintf("%d more batches are stored", n), func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.stored >= want
	})
}

// end stops the agents, lets their successors send the rest, and checks the result.
func (f *fleet) end() {
	f.t.Helper()
	for _, p := range f.agents {
		p.stdin.Close()
		p.said.Wait()
		if err := p.cmd.Wait(); err != nil {
			f.t.Error(err)
		}
		p.cmd = nil
		u, err := OpenUplink(UplinkOptions{Options: Options{URL: f.url, Name: p.options.Machine, Credentials: p.options.Credentials,
			pause: 20 * time.Millisecond}, Dir: p.options.Dir, MaxBytes: 64 << 20, wait: 2 * time.Second})
		if err != nil {
			f.t.Fatal(err)
		}
		quelltest.Until(f.t, p.options.Machine+"'s batches are all acknowledged", func() bool { return u.Stats().Waiting == 0 })
		if err := u.Close(); err != nil {
			f.t.Error(err)
		}
	}
	missing := func() (all []string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for life, n := range f.onDisk {
			if f.highest[life] < n {
				all = append(all, fmt.Sprintf("%s/%s: %d of %d", life.Machine, life.Boot, f.highest[life], n))
			}
		}
		slices.Sort(all)
		return all
	}
	defer func() {
		if f.t.Failed() {
			f.t.Logf("missing: %q", missing())
		}
	}()
	quelltest.Until(f.t, "the reader has all that was on agents' disks", func() bool { return len(missing()) == 0 })
	f.stop()
	f.reading.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.wrong {
		f.t.Error(w)
	}
	if f.lost > 0 {
		f.t.Errorf("an agent lost %d messages before they were on disk", f.lost)
	}
	f.t.Logf("%d lives, %d batches stored once, %d came again and were dropped", len(f.onDisk), f.stored, f.twice)
}

// TestKills kills the server and agents alternately at random points under load. Every
// batch that was on an agent's disk is stored, in order, once.
func TestKills(t *testing.T) {
	f := newFleet(t, 1, 2)
	for range *kills {
		f.more(1 + f.some(200))
		f.servers[0].kill()
		f.servers[0].start()
		f.more(1 + f.some(200))
		p := f.agents[f.some(len(f.agents))]
		p.kill()
		f.startAgent(p)
	}
	f.more(100)
	f.end()
}

// TestClusterKills repeatedly kills one of three nodes that hold the same buckets, each
// time when the others have all that it had.
func TestClusterKills(t *testing.T) {
	f := newFleet(t, 3, 2)
	watch := openBus(t, f.keys, f.url, 3)
	for range *kills {
		f.more(1 + f.some(200))
		quelltest.Until(t, "all three have everything", quelltest.Paced(func() bool { return watch.whole(t) }))
		n := f.servers[f.some(3)]
		n.kill()
		f.more(1 + f.some(50)) // the other two continue without it
		n.start()
	}
	f.more(100)
	f.end()
}

// whole reports whether every replica of the bucket of specs is there and has what the leader has.
func (b *Bus) whole(t *testing.T) bool {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	stream, err := b.js.Stream(ctx, "KV_"+bucket)
	if err != nil {
		return false
	}
	info := stream.CachedInfo()
	if info.Cluster == nil || info.Cluster.Leader == "" || len(info.Cluster.Replicas) != 2 {
		return false
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline {
			return false
		}
	}
	return true
}
