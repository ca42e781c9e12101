package netq

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/counter/bpf"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const childEnv = "QUELL_NETQ_CHILD"

func TestMain(m *testing.M) {
	if address := os.Getenv(childEnv); address != "" {
		if err := child(address); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	quelltest.Main(m)
}

// child sends datagrams, as many and as large as each line of its input says, or
// where that begins with "t" so many bytes by TCP, with "l" as sendLate does, with "u" one
// to a network of that number.
func child(address string) error {
	lines := bufio.NewScanner(os.Stdin)
	if address == "sink" {
		return sink(lines)
	}
	to, err := net.ResolveUDPAddr("udp", address)
	if err != nil {
		return err
	}
	// Not connected: no receiver is needed.
	udp, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return err
	}
	defer udp.Close()
	var tcp net.Conn
	for lines.Scan() {
		var n, size int
		isTCP := strings.HasPrefix(lines.Text(), "t ")
		_, err := fmt.Sscan(strings.TrimLeft(lines.Text(), "tul "), &n, &size)
		switch {
		case err != nil:
		case strings.HasPrefix(lines.Text(), "u "):
			// to the nth of many networks
			_, err = udp.WriteToUDP(make([]byte, size), &net.UDPAddr{IP: net.IPv4(10, 80, byte(n), 2), Port: to.Port})
		case strings.HasPrefix(lines.Text(), "l "):
			err = sendLate(udp, to, n, size)
		case isTCP:
			if tcp == nil {
				tcp, err = net.Dial("tcp", address)
			}
			if err == nil {
				if _, err = tcp.Write(make([]byte, n*size)); err == nil {
					_, err = io.ReadFull(tcp, make([]byte, 1)) // that all is there
				}
			}
		default:
			for i := 0; i < n && err == nil; i++ {
				_, err = udp.WriteToUDP(make([]byte, size), to)
			}
		}
		if err != nil {
			return err
		}
		fmt.Println("done")
	}
	return nil
}

// tcpBytes is what sink takes before it answers.
const tcpBytes = 1 << 20

// sink takes what comes by TCP and answers each tcpBytes with one byte.
func sink(lines *bufio.Scanner) error {
	l, err := net.Listen("tcp", "10.78.0.2:9000")
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				for {
					if _, err := io.CopyN(io.Discard, c, tcpBytes); err != nil {
						return
					}
					_, _ = c.Write([]byte{1})
				}
			}()
		}
	}()
	fmt.Println("done")
	lines.Scan()
	return l.Close()
}

// start runs a child in a network and, "" for this test's own, a cgroup.
func start(t testing.TB, address, dir string, in *quelltest.Net) *quelltest.Child {
	t.Helper()
	cmd := in.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+address)
	return quelltest.StartChild(t, cmd, dir)
}

// shaped makes a namespace with an interface q0 (10.78.0.1) that lets through
// 20 Mbit/s to another one (10.78.0.2), and in that a sink for TCP. So 1,000
// bytes take some 0.4 ms. Behind the first there is a container, a third one
// (10.79.0.2), whose packets are routed out of q0.
func shaped(t testing.TB) (sends, container *quelltest.Net) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2, "ip", "tc", "nsenter")
	sends, container = quelltest.NewNet(t), quelltest.NewNet(t)
	far := quelltest.NewNet(t)
	sends.Link("q0", far, "q1", "10.78.0")
	far.Run("ip route add default via 10.78.0.1")
	sends.Shape("q0", "20mbit")
	sends.Link("c0", container, "eth0", "10.79.0")
	container.Run("ip route add default via 10.79.0.1")
	sends.Run("sysctl -qw net.ipv4.ip_forward=1")
	start(t, "sink", "", far).Hear()
	return sends, container
}

// open loads the programs and follows the tasks.
func open(t testing.TB, tasks ...counter.Target) (*Source, *bpf.Programs[netqDone]) {
	t.Helper()
	k, err := bpf.Load(loadPrograms)
	if err != nil {
		t.Fatal(err)
	}
	return follow(t, k, tasks...), k.counts
}

func follow(t testing.TB, k *programs, tasks ...counter.Target) *Source {
	t.Helper()
	w, err := bpf.Open[netqDone](k.counts)
	if err != nil {
		t.Fatal(err)
	}
	s := &Source{w, fallback(k.without)}
	bpftest.Follow(t, s, tasks...)
	return s
}

// sent is how many packets have left an interface's queue, and how many are in it,
// by the kernel's own account.
func sent(t testing.TB, in *quelltest.Net) (gone, waiting uint64) {
	t.Helper()
	out, err := in.Command("tc", "-s", "qdisc", "show", "dev", "q0").Output()
	if err != nil {
		t.Fatal(err)
	}
	var bytes uint64
	_, rest, _ := strings.Cut(string(out), " Sent ")
	if n, err := fmt.Sscanf(rest, "%d bytes %d pkt", &bytes, &gone); n != 2 {
		t.Fatalf("%q: %v", out, err)
	}
	_, rest, _ = strings.Cut(rest, "backlog ")
	_, rest, _ = strings.Cut(rest, "b ")
	if n, err := fmt.Sscanf(rest, "%dp", &waiting); n != 1 {
		t.Fatalf("%q: %v", out, err)
	}
	return gone, waiting
}

// allSent waits until so many packets more than before have left the queue, and
// none is in it.
func allSent(t testing.TB, in *quelltest.Net, before uint64, more int) {
	t.Helper()
	quelltest.Until(t, "all packets have left", func() bool {
		gone, waiting := sent(t, in)
		return gone >= before+uint64(more) && waiting == 0
	})
}

// played is how many windows there are to find an exact one in. A kernel that is short of CPU
// time has been seen not to count packets, for some milliseconds at a time, in one
// window of ten with two threads for each CPU; why is not known. What was not sent is
// in none of them, and an account that is wrong spoils all.
const played = 5

// exact plays windows until one returns nothing that is missing.
func exact(t *testing.T, play func() (missing []string)) {
	t.Helper()
	for n := range played {
		missing := play()
		if len(missing) == 0 {
			return
		}
		t.Logf("window %d: %s", n+1, strings.Join(missing, "; "))
	}
	t.Errorf("no window of %d is exact", played)
}

// Packets are their tasks': by either hierarchy, out of a container, by TCP,
// which sends most of its own accord and lets the kernel cut its packets up; and
// not another window's.
func TestPacketsByTask(t *testing.T) {
	sends, container := shaped(t)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	plain, boxed, bulk, idle := bpftest.Task(t, h, sample.Unified, "plain"), bpftest.Task(t, h, sample.Unified, "boxed"),
		bpftest.Task(t, h, sample.Unified, "bulk"), bpftest.Task(t, h, sample.Unified, "idle")
	inner := bpftest.Task(t, h, sample.Unified, "plain/inner") // not followed by itself
	targets := []counter.Target{plain, boxed, bulk, idle}
	v1 := h.Layout().V1["cpu"] != ""
	var old counter.Target
	if v1 {
		old = bpftest.Task(t, h, sample.V1CPU, "old")
		targets = append(targets, old)
	}
	s, _ := open(t, targets...)
	const to = "10.78.0.2:9000"
	a, in, box, tcp := start(t, to, plain.Dir, sends), start(t, to, inner.Dir, sends), start(t, to, boxed.Dir, container), start(t, to, bulk.Dir, sends)
	outside := start(t, to, "", sends)
	for _, p := range []*quelltest.Child{a, in, box, outside} {
		p.Ask(1, 100) // the kernel knows the addresses (ARP)
	}
	exact(t, func() (missing []string) {
		lacks := func(format string, args ...any) { missing = append(missing, fmt.Sprintf(format, args...)) }
		before, _ := sent(t, sends)
		bpftest.Start(t, s)
		udp := 20 + 10 + 30 + 7
		a.Ask(20, 1000)
		in.Ask(10, 1000)
		box.Ask(30, 500)
		outside.Ask(7, 1000)
		if v1 {
			o := start(t, to, old.Dir, sends)
			o.Ask(1, 1000) // where functions may not be hooked, a socket's first packet belongs to no task
			o.Ask(25, 1000)
			o.End()
			udp += 26
		}
		allSent(t, sends, before, udp)
		tcp.Ask("t", 1, tcpBytes)
		allSent(t, sends, before, udp)
		all := bpftest.Stop(t, s)
		check := func(name string, key sample.TaskKey, packets, bytes float64) {
			t.Helper()
			r, ok := all[key]
			n, b := bpftest.Count(r, sample.NetPackets), bpftest.Count(r, sample.NetBytes)
			most := packets
			if key == old.Key {
				most++
			}
			if !ok || n > most || b > (bytes/packets+60)*most { // with headers
				t.Errorf("%s: %v, %v packets of %v bytes, sent were %v of %v", name, ok, n, b, packets, bytes)
			}
			if n < packets || b < bytes {
				lacks("%s: %v packets of %v bytes, want %v of %v", name, n, b, packets, bytes)
				return
			}
			if wait := bpftest.Count(r, sample.NetWait); wait <= 0 || math.Abs(r.Cost*n-wait) > 1e-9*wait || r.Reach.Len() != 1 {
				t.Errorf("%s: waited %v s, %+v", name, wait, r)
			}
			if other := all[plain.Key]; other.Reach.Len() > 0 && !r.Reach.Intersects(other.Reach) {
				t.Errorf("%s reaches %v, plain %v: both sent through q0", name, r.Reach, other.Reach)
			}
		}
		check("plain", plain.Key, 30, 30000)
		check("boxed", boxed.Key, 30, 15000)
		if v1 {
			check("v1", old.Key, 25, 25000)
		}
		if r, ok := all[idle.Key]; !ok || !math.IsNaN(r.Cost) || bpftest.Count(r, sample.NetQueued) != 0 || r.Reach == nil || r.Reach.Len() != 0 {
			t.Errorf("idle: %v, %+v", ok, r)
		}
		// 1 MiB is 725 packets of 1,448 bytes at least once cut up; some may be sent
		// twice, on a machine that is late with answers.
		b := all[bulk.Key]
		if n := bpftest.Count(b, sample.NetPackets); n < 700 {
			lacks("bulk: %v packets left", n)
		}
		if n := bpftest.Count(b, sample.NetBytes); n < tcpBytes {
			lacks("bulk: %v bytes", n)
		} else if gone, _ := sent(t, sends); n > float64(gone-before)*1514 {
			t.Errorf("bulk: %v bytes in at most %v packets", n, gone-before)
		}
		if !(b.Cost > 0) {
			lacks("bulk: a packet waited %v s", b.Cost)
		}
		if n := bpftest.Count(s.Totals().Others, sample.NetPackets); n < 7 {
			lacks("others: %v packets", n)
		}
		return missing
	})

	// What was sent in no window is in none.
	exact(t, func() []string {
		before, _ := sent(t, sends)
		a.Ask(5, 1000)
		allSent(t, sends, before, 5)
		bpftest.Start(t, s)
		a.Ask(3, 1000)
		allSent(t, sends, before, 8)
		r := bpftest.Stop(t, s)[plain.Key]
		n := bpftest.Count(r, sample.NetPackets)
		if n > 3 {
			t.Errorf("%v packets of plain, 3 were sent in the window", n)
		}
		if n < 3 {
			return []string{fmt.Sprintf("%v packets of plain, want 3", n)}
		}
		return nil
	})
	bpftest.Start(t, s)
	if _, ok := s.Remove(plain.Key, 0); !ok {
		t.Error("removed in an open window, plain has no reading")
	}
	if got := bpftest.Stop(t, s); len(got) != len(targets)-1 {
		t.Errorf("%d readings", len(got))
	}
	if s.Totals().Lost > 0 {
		t.Errorf("%d packets were lost", s.Totals().Lost)
	}
}

// What one sends makes another wait, whose packets are few.
func TestASenderMakesAnotherWait(t *testing.T) {
	sends, _ := shaped(t)
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	victim, loud := bpftest.Task(t, h, sample.Unified, "victim"), bpftest.Task(t, h, sample.Unified, "loud")
	s, _ := open(t, victim, loud)
	const to = "10.78.0.2:9000"
	v, l := start(t, to, victim.Dir, sends), start(t, to, loud.Dir, sends)
	v.Ask(1, 100)
	// play returns what a packet of the victim's waited, and for what part of that the
	// link sent the other's.
	play := func(noise int) (cost, behind float64) {
		before, _ := sent(t, sends)
		bpftest.Start(t, s)
		for range 20 {
			if noise > 0 {
				l.Ask(noise, 1400)
			}
			v.Ask(1, 100)
		}
		allSent(t, sends, before, 20*(noise+1))
		all := bpftest.Stop(t, s)
		if got := bpftest.Count(all[loud.Key], sample.NetQueued); got > 0 && noise == 0 {
			t.Errorf("pressure %v of no packets", got)
		}
		r := all[victim.Key]
		if s.Info().Accounts && r.Served == nil {
			t.Error("served tasks are not reported")
		}
		for _, o := range r.Served {
			if o.By == loud.Key {
				behind = o.Time.Seconds() / bpftest.Count(r, sample.NetWait)
			}
		}
		return r.Cost, behind
	}
	// With the sender: behind up to 140 kB, 56 ms. On a machine that runs the sender late
	// the queue is empty in between.
	exact(t, func() []string {
		alone, none := play(0)
		beside, behind := play(5)
		t.Logf("a packet waits %.3g ms alone, %.3g ms with a sender, %.2f of it while the other's were sent", 1e3*alone, 1e3*beside, behind)
		if none > 0 || !s.Info().Accounts {
			t.Errorf("%.2f of the wait was behind one that sent nothing", none)
		}
		if !(beside > 2*alone) || behind < 0.9 {
			return []string{fmt.Sprintf("a packet waits %v s alone, %v s with a sender, %v of it behind that", alone, beside, behind)}
		}
		return nil
	})
}

func TestReading(t *testing.T) {
	var sum netqDone
	sum.Add(&netqDone{Queued: 1, Bytes: sample.PacketBytes, Sent: 1, Ns: 1e6})
	sum.Add(&netqDone{Queued: 3, Bytes: sample.PacketBytes, Sent: 2, Ns: 5e6, Resent: 1})
	r := sum.Reading()
	if r.Cost != 0.002 || bpftest.Count(r, sample.NetQueued) != 4 || bpftest.Count(r, sample.NetWait) != 0.006 || bpftest.Count(r, sample.NetPackets) != 3 ||
		bpftest.Count(r, sample.NetBytes) != 2*sample.PacketBytes || bpftest.Count(r, sample.NetRetransmits) != 1 {
		t.Errorf("%+v", r)
	}
	if r := new(netqDone).Reading(); !math.IsNaN(r.Cost) || bpftest.Count(r, sample.NetQueued) != 0 {
		t.Errorf("of nothing: %+v", r)
	}
	if _, more := (&netqDone{More: 1}).Places(); !more {
		t.Error("further interfaces are not told")
	}
}
