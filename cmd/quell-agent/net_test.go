package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/quell-dev/quell/internal/detect"
	"github.com/quell-dev/quell/internal/logbook"
	"github.com/quell-dev/quell/internal/plan"
	"github.com/quell-dev/quell/internal/quelltest"
	"github.com/quell-dev/quell/internal/report"
	"github.com/quell-dev/quell/internal/sample"
	"github.com/quell-dev/quell/internal/spec"
)

// roundsEnv is how often the scene on the network is played.
const roundsEnv = "QUELL_TEST_ROUNDS"

// netRole is what a child on the network does: netChild.
const netRole = "QUELL_TEST_NET"

// netChild plays a role until its input ends: "sink ADDRESS" takes whatever comes
// by TCP, "every PAUSE SIZE ADDRESS" sends a datagram each pause, "bulk ADDRESS"
// sends by TCP from a line "on" to a line "off".
func netChild() {
	words := strings.Fields(os.Getenv(netRole))
	if err := playNet(words[0], words[1:], bufio.NewScanner(os.Stdin)); err != nil {
		fmt.Fprintln(os.Stderr, words, err)
		os.Exit(1)
	}
}

func playNet(role string, args []string, in *bufio.Scanner) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	switch role {
	case "sink":
		l, err := net.Listen("tcp", args[0])
		if err != nil {
			return err
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { _, _ = io.Copy(io.Discard, c); c.Close() }()
			}
		}()
		fmt.Println("ready")
		in.Scan()
		return l.Close()
	case "every":
		pause, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		size, err := strconv.Atoi(args[1])
		if err != nil {
			return err
		}
		to, err := net.ResolveUDPAddr("udp", args[2])
		if err != nil {
			return err
		}
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		fmt.Println("ready")
		go func() { in.Scan(); cancel() }()
		for t := time.NewTicker(pause); ; {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
				_, _ = conn.WriteToUDP(make([]byte, size), to) // a full queue may refuse it
			}
		}
	case "bulk":
		fmt.Println("ready")
		var conn net.Conn
		for in.Scan() {
			if conn != nil {
				conn.Close()
				conn = nil
			}
			if in.Text() == "on" {
				var err error
				if conn, err = net.Dial("tcp", args[0]); err != nil {
					return err
				}
				// At once, when it is closed, and not when all is sent.
				_ = conn.(*net.TCPConn).SetLinger(0)
				go func(c net.Conn) {
					for data := make([]byte, 64<<10); ; {
						if _, err := c.Write(data); err != nil {
							return
						}
					}
				}(conn)
			}
			fmt.Println("ready")
		}
	}
	return nil
}

// play starts a child with a role in a network, and in a cgroup of cgroup2, "" for
// this test's own.
func play(t testing.TB, in *quelltest.Net, cgroup, role string) *quelltest.Child {
	t.Helper()
	cmd := in.Command(os.Args[0])
	cmd.Env = []string{testMode + "=net", netRole + "=" + role, "PATH=" + os.Getenv("PATH")}
	p := quelltest.StartChild(t, cmd, cgroup)
	p.Hear()
	return p
}

// network makes a namespace with two interfaces of 20 Mbit/s each, to 10.78.0.2
// and 10.80.0.2, and sinks there.
func network(t testing.TB) *quelltest.Net {
	t.Helper()
	here, far := quelltest.NewNet(t), quelltest.NewNet(t)
	for i, subnet := range []string{"10.78.0", "10.80.0"} {
		q := fmt.Sprintf("q%d", i)
		here.Link(q, far, fmt.Sprintf("f%d", i), subnet)
		here.Shape(q, "20mbit")
		play(t, far, "", "sink "+subnet+".2:9000")
	}
	return here
}

// onNetwork is the agent's configuration. Who is batch is a suspect only.
const onNetwork = `
signals: [net]
tick: 125ms
sampling: {duration: 250ms, period: 250ms}
spec: {min_samples: 16}
detect: {rule: %[2]s, outlier_window: 1250ms, window: 5s, pace: 0s}
enforce: {mode: on, for: 3s, calm: 1250ms, net_bytes: 65536}
rules:
  - {match: "%[1]s/web", job: web, class: latency-sensitive}
  - {match: "%[1]s/*", job: $1, class: batch, signals: [cpi]}
`

// A sender fills the queue of an interface that another sends through, who has
// little to send. It is named of three suspects, an innocent who sends through
// the same interface and one who sends as much, at the same times, through
// another; it is limited, the victim recovers, and the limit goes again. With
// QUELL_TEST_ROUNDS=10 that is played ten times.
func TestNetwork(t *testing.T) {
	for _, rule := range []detect.Rule{detect.Quell, detect.Evident} {
		t.Run(string(rule), func(t *testing.T) { playNetwork(t, rule) })
	}
}

func playNetwork(t *testing.T, rule detect.Rule) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2, "ip", "tc", "nsenter")
	rounds, err := strconv.Atoi(cmp.Or(os.Getenv(roundsEnv), "1"))
	if err != nil {
		t.Fatal(err)
	}
	top := fmt.Sprintf("/quell-test-net-%s-%d", rule, os.Getpid())
	root := quelltest.CgroupMount(t, "") + top
	name := func(task string) string { return filepath.Join(root, task) }
	for _, dir := range []string{root, name("web"), name("steady"), name("backup"), name("elsewhere")} {
		quelltest.MakeCgroup(t, dir)
	}
	here := network(t)
	play(t, here, name("web"), "every 4ms 100 10.78.0.2:9001")
	play(t, here, name("steady"), "every 8ms 900 10.78.0.2:9001")
	backup := play(t, here, name("backup"), "bulk 10.78.0.2:9000")
	elsewhere := play(t, here, name("elsewhere"), "bulk 10.80.0.2:9000")

	dir := state(t)
	file := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, onNetwork, top, rule), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, dir, "--config", file, "--set", "state_dir="+dir+"/state", "--set", "socket="+dir+"/agent.sock", "--set", "listen=127.0.0.1:0")
	quelltest.Until(t, "there is a spec", func() bool {
		tasks, err := d.Tasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			if string(task.Name) == top+"/web" && len(task.Costs) == 1 && task.Costs[0].Spec.State == spec.Ready {
				return true
			}
		}
		return false
	})
	n := newNetRounds(t, d, top, root)
	right := 0
	for i := range rounds {
		ok := t.Run(fmt.Sprintf("round %d", i+1), func(t *testing.T) { n.play(t, backup, elsewhere) })
		if ok {
			right++
		}
		n.settle()
	}
	t.Logf("%d of %d right", right, rounds)

	// An agent that is killed takes its limits along.
	backup.Say("on")
	quelltest.Until(t, "somebody is limited", func() bool { return n.limits("backup") == 1 })
	d.kill()
	quelltest.Until(t, "the limit is gone with the agent", func() bool { return n.limits("backup") == 0 })
	d = start(t, dir, "--config", file, "--set", "state_dir="+dir+"/state", "--set", "socket="+dir+"/agent.sock", "--set", "listen=127.0.0.1:0")
	if log := d.log.String(); !strings.Contains(log, "undid a cap that an earlier agent left") {
		t.Errorf("the next agent says nothing of it:\n%s", log)
	}
}

type netRounds struct {
	t         *testing.T
	d         *running
	top, root string
	known     map[string]bool // incidents of earlier rounds
}

func newNetRounds(t *testing.T, d *running, top, root string) *netRounds {
	return &netRounds{t, d, top, root, map[string]bool{}}
}

func (n *netRounds) incidents(q logbook.Query) []plan.Incident {
	n.t.Helper()
	found, err := n.d.Incidents(n.t.Context(), q)
	if err != nil {
		n.t.Fatal(err)
	}
	return found.Incidents
}

// limits is how many programs limit what a task sends, by the kernel's account.
func (n *netRounds) limits(task string) int {
	n.t.Helper()
	dir, err := os.Open(filepath.Join(n.root, task))
	if err != nil {
		n.t.Fatal(err)
	}
	defer dir.Close()
	res, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInetEgress})
	if err != nil {
		n.t.Fatal(err)
	}
	return len(res.Programs)
}

func (n *netRounds) play(t *testing.T, backup, elsewhere *quelltest.Child) {
	backup.Say("on")
	elsewhere.Say("on")
	defer elsewhere.Say("off")
	defer backup.Say("off")
	var id string
	at := 0 // the first round that is no trial
	quelltest.Until(t, "somebody is accused and limited", func() bool {
		for _, inc := range n.incidents(logbook.Query{Open: true}) {
			i := slices.IndexFunc(inc.Rounds, func(r *plan.Round) bool { return !r.Trial })
			if i >= 0 && !n.known[inc.ID] {
				id, at = inc.ID, i
			}
		}
		return id != ""
	})
	n.known[id] = true
	for task, want := range map[string]int{"backup": 1, "web": 0, "steady": 0, "elsewhere": 0} {
		if got := n.limits(task); got != want {
			t.Errorf("%d programs limit %s, want %d", got, task, want)
		}
	}
	var inc plan.Incident
	quelltest.Until(t, "the limit is over and judged", func() bool {
		var err error
		if inc, err = n.d.Incident(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return inc.Rounds[at].Ended != 0
	})
	for i, r := range inc.Rounds[:at] {
		if r.Suspect.Name != sample.TaskName(n.top+"/backup") || r.Outcome != plan.TruePositive {
			t.Errorf("trial %d: %+v", i+1, r)
		}
	}
	first := inc.Rounds[at]
	t.Logf("%d trials; a packet waited %.3g ms on average, %.3g ms in the incident, %.3g ms under the limit; correlation %.2f, outcome %s",
		at, 1e3*inc.SpecMean, 1e3*float64(first.CostBefore), 1e3*float64(first.CostUnder), first.Correlation, first.Outcome)
	if inc.Kind != detect.Neighbour || inc.Victim.Name != sample.TaskName(n.top+"/web") ||
		first.Suspect.Name != sample.TaskName(n.top+"/backup") || inc.Antagonists != 1 {
		t.Fatalf("incident %+v, round %+v", inc, first)
	}
	for _, s := range inc.Suspects {
		if s.Name == sample.TaskName(n.top+"/elsewhere") && s.Excluded != "shares no interface with the victim" {
			t.Errorf("suspect %+v", s)
		}
	}
	if first.Outcome != plan.TruePositive || !(float64(first.RelativeCost) < 0.5) || first.Net != 65536 {
		t.Errorf("round %+v", first)
	}
	if got := n.limits("backup"); got != 0 {
		t.Errorf("%d programs limit backup at the lease's end", got)
	}
	var page bytes.Buffer
	if err := report.Incident(&page, inc, report.Style{}); err != nil || !strings.Contains(page.String(), "64 KiB/s") {
		t.Errorf("%v, the page:\n%s", err, page.String())
	}
}

// settle waits until the round is over for the agent too.
func (n *netRounds) settle() {
	n.t.Helper()
	quelltest.Until(n.t, "the incident is closed", func() bool { return len(n.incidents(logbook.Query{Open: true})) == 0 })
	for _, inc := range n.incidents(logbook.Query{}) {
		n.known[inc.ID] = true
	}
	from, err := n.d.Status(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	// Half a window: more good intervals than bad ones of the last round.
	quelltest.Until(n.t, "10 good intervals", func() bool {
		now, err := n.d.Status(n.t.Context())
		return err == nil && now.Intervals >= from.Intervals+10
	})
}
