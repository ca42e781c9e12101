package bus

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/cluster/bus/authority"
	"github.com/quell-dev/quell/internal/cluster/bus/credential"
	"github.com/quell-dev/quell/internal/cluster/bus/embedded"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/wire"
)

var subscribers = flag.Int("subscribers", 500, "connections of BenchmarkSpecReachesAgents")

// listener is an agent's connection that follows a job's specs, or decisions. It implements only the
// NATS protocol over TCP with its own credentials, so that ten thousand fit into one
// process and the server's work is what is measured.
type listener struct {
	conn net.Conn
	in   *bufio.Reader
}

// listen connects with credentials and subscribes to a subject. The server has the
// subscription when it returns.
func listen(address string, creds []byte, account credential.Account, subject string) (*listener, error) {
	user, err := credential.Parse(creds)
	if err != nil {
		return nil, err
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	l := &listener{conn, bufio.NewReaderSize(conn, 1024)}
	if err := l.introduce(user, account, subject); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return l, nil
}

// introduce performs the start of the NATS client protocol.
func (l *listener) introduce(user *credential.File, account credential.Account, subject string) error {
	line, err := l.in.ReadString('\n')
	text, ok := strings.CutPrefix(line, "INFO ")
	if err != nil || !ok {
		return fmt.Errorf("the server said %.40q, %w", line, err)
	}
	var info struct{ Nonce string }
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return err
	}
	signature, err := user.Answer([]byte(info.Nonce))
	if err != nil {
		return err
	}
	token, err := user.Token(account)
	if err != nil {
		return err
	}
	hello, err := json.Marshal(map[string]any{"jwt": token, "sig": base64.RawURLEncoding.EncodeToString(signature), "name": "node",
		"verbose": false, "pedantic": false, "lang": "go", "version": "1", "protocol": 1})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(l.conn, "CONNECT %s\r\nSUB %s 1\r\nPING\r\n", hello, subject); err != nil {
		return err
	}
	for {
		switch line, err := l.in.ReadString('\n'); {
		case err != nil:
			return err
		case strings.HasPrefix(line, "PONG"):
			return nil
		case strings.HasPrefix(line, "-ERR"):
			return errors.New(strings.TrimSpace(line))
		}
	}
}

// next waits for a message and returns its body.
func (l *listener) next() ([]byte, error) {
	for {
		line, err := l.in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "PING":
			if _, err := io.WriteString(l.conn, "PONG\r\n"); err != nil {
				return nil, err
			}
		case words[0] == "-ERR":
			return nil, errors.New(strings.TrimSpace(line))
		case words[0] == "MSG" && len(words) >= 4:
			n, err := strconv.Atoi(words[len(words)-1])
			if err != nil {
				return nil, err
			}
			body := make([]byte, n+2) // and the line end
			_, err = io.ReadFull(l.in, body)
			return body[:n], err
		}
	}
}

// audience is a set of agents that run one job, or follow decisions.
type audience struct {
	hub       *Bus
	listeners []*listener
	heard     chan error // one value per listener and change of the spec
	revision  uint64
}

func newAudience(t testing.TB, n int, account credential.Account, subject string, check func(data []byte) error) *audience {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if room := int(min(limit.Cur, 1<<30)) - 500; n > room { // the server is in a separate process and has as many
		t.Logf("%d descriptors are allowed: %d connections, not %d", limit.Cur, room, n)
		n = room
	}
	keys := newAuthority(t)
	s := startServer(t, keys, embedded.Options{})
	a := &audience{hub: openBus(t, keys, s.url(), 1), listeners: make([]*listener, n), heard: make(chan error, n)}
	// Each connection is authenticated separately, so that some may have the same credentials: as many as one
	// agent may have connections (embedded.Shed).
	const each = 32
	var creds [][]byte
	for i := range (n + each - 1) / each {
		f, err := keys.Issue(authority.Agent, fmt.Sprint("node", i), 0)
		if err != nil {
			t.Fatal(err)
		}
		creds = append(creds, f)
	}
	machines := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range machines {
				var err error
				if a.listeners[i], err = listen(s.Options.Listen, creds[i/each], account, subject); err != nil {
					t.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
	for i := range n {
		machines <- i
	}
	close(machines)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, l := range a.listeners {
		wg.Go(func() {
			for {
				data, err := l.next()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err == nil {
					err = check(data)
				}
				a.heard <- err
				if err != nil {
					return
				}
			}
		})
	}
	t.Cleanup(func() {
		for _, l := range a.listeners {
			l.conn.Close()
		}
		wg.Wait()
	})
	return a
}

// followSpecs returns agents that run job web.
func followSpecs(t testing.TB, n int) *audience {
	return newAudience(t, n, credential.Specs, wire.SpecSubject("web", "p"), func(data []byte) error {
		var m wire.Specs
		if err := wire.Unmarshal(data, &m); err != nil || m.Job != "web" {
			return fmt.Errorf("the specs of %q came: %w", m.Job, err)
		}
		return nil
	})
}

// announce stores and announces a change of the spec, and returns when every listener has
// it.
func (a *audience) announce(t testing.TB) time.Duration {
	t.Helper()
	a.revision++
	m := wire.SpecsOf("web", "p", a.revision, []spec.Spec{{Key: spec.Key{Job: "web", Platform: "p", Signal: sample.RunQ, Variant: "bpf"},
		State: spec.Ready, Samples: 100_000, Tasks: 1000, Mean: float64(a.revision), StdDev: 1}})
	return a.time(t, func() error { return a.hub.PutSpecs(patient(t), m) })
}

// time does something that sends each listener a message, and returns how long it took until
// all had it.
func (a *audience) time(t testing.TB, do func() error) time.Duration {
	t.Helper()
	begun := time.Now()
	if err := do(); err != nil {
		t.Fatal(err)
	}
	late := time.NewTimer(time.Minute)
	defer late.Stop()
	for i := range a.listeners {
		select {
		case err := <-a.heard:
			if err != nil {
				t.Fatal(err)
			}
		case <-late.C:
			t.Fatalf("a minute later %d of %d have it", i, len(a.listeners))
		}
	}
	return time.Since(begun)
}

// TestSpecReachesAll: a change of a spec reaches every agent that follows the job, once.
func TestSpecReachesAll(t *testing.T) {
	a := followSpecs(t, 40)
	for range 3 {
		a.announce(t)
	}
}

// BenchmarkSpecReachesAgents reports the time from when a spec is given to the server
// until the last of its agents' connections has it: stored in the bucket, announced, read
// off the socket and decoded. It uses real TCP connections, as many as -subscribers, to a
// server in a separate process.
func BenchmarkSpecReachesAgents(b *testing.B) {
	a := followSpecs(b, *subscribers)
	var worst, sum time.Duration
	n := 0
	for b.Loop() {
		took := a.announce(b)
		worst, sum, n = max(worst, took), sum+took, n+1
	}
	b.ReportMetric(float64(len(a.listeners)), "connections")
	b.ReportMetric(float64(sum.Microseconds())/1000/float64(n), "ms/spec")
	b.ReportMetric(float64(worst.Microseconds())/1000, "worst-ms")
}
