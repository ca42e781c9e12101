package main

import (
	"bufio"
	"bytes"
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

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/people/report"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// roundsEnv is the number of rounds to play on the network, instead of playing until
// one is right.
const roundsEnv = "QUELL_TEST_ROUNDS"

// netRole is the role of a child on the network: netChild.
const netRole = "QUELL_TEST_NET"

// netChild plays a role until its input ends: "sink ADDRESS" accepts all data over TCP,
// "every PAUSE SIZE ADDRESS" sends a datagram each pause, "bulk ADDRESS" sends over TCP
// from a line "on" to a line "off".
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
				// Close at once, not after everything has been sent.
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

// play starts a child with a role in a network, and in a cgroup of cgroup2, "" for this
// test's own.
func play(t testing.TB, in *quelltest.Net, cgroup, role string) *quelltest.Child {
	t.Helper()
	cmd := in.Command(os.Args[0])
	cmd.Env = []string{testMode + "=net", netRole + "=" + role, "PATH=" + os.Getenv("PATH")}
	p := quelltest.StartChild(t, cmd, cgroup)
	p.Hear()
	return p
}

// network makes a namespace with two interfaces of 20 Mbit/s each, to 10.78.0.2 and
// 10.80.0.2, and sinks there.
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

// onNetwork is the agent's configuration. Batch tasks are suspects only.
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

// A sender fills the queue of an interface through which a victim with little traffic
// sends. It is named out of three suspects; the others are an innocent that sends
// through the same interface and one that sends as much, at the same times, through
// another. The sender is limited, the victim recovers, and the limit is removed.
//
// In every round only the sender may be accused, and nothing else may ever be limited.
// That it is accused and the victim recovers is required in 1 round of netRounds: if
// other tasks use the CPUs the agent may see too little of a round and abstain. A round
// is abandoned by the agent's own count of intervals, and after a right one the
// remaining rounds are skipped. With QUELL_TEST_ROUNDS=10 all of ten rounds are played,
// and the test reports how many were right.
func TestNetwork(t *testing.T) {
	for _, rule := range []detect.Method{detect.Quell, detect.EvidenceMethod} {
		t.Run(string(rule), func(t *testing.T) { playNetwork(t, rule) })
	}
}

const (
	netRounds = 6  // one of them must be right
	netGiveUp = 40 // intervals without an accusation: eight times the outlier window
)

func playNetwork(t *testing.T, rule detect.Method) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.Cgroup2, "ip", "tc", "nsenter")
	rounds, all := netRounds, false
	if text := os.Getenv(roundsEnv); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
		all = true
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
	d := start(t, dir, "--config", file, "--set", "state_dir="+dir+"/state", "--set", "journals="+dir+"/journals", "--set", "exclusive=false", "--set", "socket="+dir+"/agent.sock", "--set", "listen=127.0.0.1:0")
	quelltest.Until(t, "there is a spec", quelltest.Paced(func() bool {
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
	}))
	n := newNetScene(t, d, top, root)
	right, played := 0, 0
	for played < rounds && (all || right == 0) {
		played++
		why := n.play(backup, elsewhere)
		if why == "" {
			right++
		} else {
			t.Logf("round %d: %s", played, why)
		}
		n.settle()
	}
	t.Logf("%d of %d rounds right", right, played)
	if right == 0 {
		t.Errorf("none of %d rounds was right", rounds)
	}
	if rule != detect.Default {
		return
	}

	// A killed agent's limits are removed with it.
	held := false
	for range rounds {
		backup.Ask("on")
		if id, _ := n.accused(); id != "" {
			d.stop() // the limit, if it is not over yet, stays
			if held = n.limits("backup") == 1; held {
				break
			}
			d.wake()
		}
		backup.Ask("off")
		n.settle()
	}
	if !held {
		t.Fatalf("in none of %d rounds was the sender limited", rounds)
	}
	d.kill()
	quelltest.Until(t, "the limit is gone with the agent", func() bool { return n.limits("backup") == 0 })
	d = start(t, dir, "--config", file, "--set", "state_dir="+dir+"/state", "--set", "journals="+dir+"/journals", "--set", "exclusive=false", "--set", "socket="+dir+"/agent.sock", "--set", "listen=127.0.0.1:0")
	if log := d.log.String(); !strings.Contains(log, "undid a cap that an earlier agent left") {
		t.Errorf("the next agent says nothing of it:\n%s", log)
	}
}

type netScene struct {
	t         *testing.T
	d         *running
	top, root string
	known     map[string]bool // incidents of earlier rounds
}

func newNetScene(t *testing.T, d *running, top, root string) *netScene {
	return &netScene{t, d, top, root, map[string]bool{}}
}

func (n *netScene) incidents(q logbook.Query) []incident.Record {
	n.t.Helper()
	found, err := n.d.Incidents(n.t.Context(), q)
	if err != nil {
		n.t.Fatal(err)
	}
	return found.Incidents
}

func (n *netScene) intervals() uint64 {
	n.t.Helper()
	s, err := n.d.Status(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return s.Intervals
}

// rounds is how many rounds an incident has, all of those that the agent has begun.
func (n *netScene) rounds(id string) int {
	n.t.Helper()
	n.intervals() // its loop answers between two iterations: then what it did is written
	inc, err := n.d.Incident(n.t.Context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return len(inc.Rounds)
}

// limits is how many programs in the kernel limit what a task sends.
func (n *netScene) limits(task string) int {
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

// accused waits until a task is accused and limited in a new incident, or for netGiveUp
// intervals. It returns the incident, "" for none, and the index of its first round
// that is not a trial.
func (n *netScene) accused() (id string, at int) {
	n.t.Helper()
	until := n.intervals() + netGiveUp
	quelltest.Until(n.t, "a task is limited, or the round is over", quelltest.Paced(func() bool {
		for _, inc := range n.incidents(logbook.Query{Open: true}) {
			i := slices.IndexFunc(inc.Rounds, func(r *incident.Round) bool { return !r.Trial })
			if i >= 0 && !n.known[inc.ID] {
				id, at = inc.ID, i
			}
		}
		return id != "" || n.intervals() >= until
	}))
	return id, at
}

// play plays a round. It returns "" if all of it was right, or what was missing; a
// result that must never happen is an error of the test.
func (n *netScene) play(backup, elsewhere *quelltest.Child) string {
	t := n.t
	t.Helper()
	backup.Ask("on")
	elsewhere.Ask("on")
	defer elsewhere.Ask("off")
	defer backup.Ask("off")
	id, at := n.accused()
	if id == "" {
		return "no task was accused"
	}
	n.known[id] = true
	for task, most := range map[string]int{"backup": 1, "web": 0, "steady": 0, "elsewhere": 0} {
		if got := n.limits(task); got > most {
			t.Errorf("%d programs limit %s, want %d", got, task, most)
		}
	}
	var inc incident.Record
	quelltest.Until(t, "the limit is over and judged", quelltest.Paced(func() bool {
		var err error
		if inc, err = n.d.Incident(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		return inc.Rounds[at].Ended != 0
	}))
	guilty := sample.TaskName(n.top + "/backup")
	first := inc.Rounds[at]
	t.Logf("%d trials; a packet waited %.3g ms on average, %.3g ms in the incident, %.3g ms under the limit; correlation %.2f, outcome %s",
		at, 1e3*inc.SpecMean, 1e3*float64(first.CostBefore), 1e3*float64(first.CostUnder), first.Correlation, first.Outcome)
	if inc.Kind != detect.Neighbour || inc.Victim.Name != sample.TaskName(n.top+"/web") || first.Suspect.Name != guilty || inc.Antagonists != 1 {
		t.Fatalf("incident %+v, round %+v", inc, first)
	}
	if first.Net != 65536 {
		t.Errorf("round %+v", first)
	}
	if got := n.limits("backup"); got != 0 && n.rounds(id) == at+1 {
		t.Errorf("%d programs limit backup at the lease's end", got)
	}
	var page bytes.Buffer
	if err := report.Incident(&page, inc, report.Style{}); err != nil || !strings.Contains(page.String(), "64 KiB/s") {
		t.Errorf("%v, the page:\n%s", err, page.String())
	}
	for _, s := range inc.Suspects {
		// Which interfaces a task uses is known of an interval in which it got the CPU to send.
		if s.Name == sample.TaskName(n.top+"/elsewhere") && s.Excluded != "shares no interface with the victim" {
			return fmt.Sprintf("suspect %+v", s)
		}
	}
	for i, r := range inc.Rounds[:at] {
		if r.Suspect.Name != guilty || r.Outcome != plan.TruePositive {
			return fmt.Sprintf("trial %d was of %s, %s", i+1, r.Suspect.Name, r.Outcome)
		}
	}
	if first.Outcome != plan.TruePositive || !(float64(first.RelativeCost) < 0.5) {
		return fmt.Sprintf("under the limit the cost was %.2f of that before, %s", float64(first.RelativeCost), first.Outcome)
	}
	return ""
}

// settle waits until the round is over for the agent, too.
func (n *netScene) settle() {
	n.t.Helper()
	quelltest.Until(n.t, "the incident is closed", quelltest.Paced(func() bool { return len(n.incidents(logbook.Query{Open: true})) == 0 }))
	for _, inc := range n.incidents(logbook.Query{}) {
		n.known[inc.ID] = true
	}
	from := n.intervals()
	// Half a window: more good intervals than bad ones of the last round.
	quelltest.Until(n.t, "10 good intervals", quelltest.Paced(func() bool { return n.intervals() >= from+10 }))
}
