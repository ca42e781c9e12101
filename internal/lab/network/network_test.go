package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The networks also run the test binary.
func TestMain(m *testing.M) {
	var err error
	switch arg(1) {
	case "play-enter":
		err = Enter(arg(2), os.Args[3:])
	case "play-sink":
		err = sink()
	case "play-send":
		err = send(arg(2))
	default:
		quelltest.Main(m)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func arg(n int) string {
	if len(os.Args) > n {
		return os.Args[n]
	}
	return ""
}

// sink accepts one connection and prints how many bytes arrived, when all have, and how
// long that took.
func sink() error {
	l, err := net.Listen("tcp", ":7000")
	if err != nil {
		return err
	}
	fmt.Println("listening")
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	began := time.Now()
	n, err := io.Copy(io.Discard, c)
	fmt.Println(n, time.Since(began).Seconds())
	return err
}

func send(to string) error {
	c, err := net.Dial("tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(make([]byte, 2<<20))
	return err
}

func play(t *testing.T, p *Port, words ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), os.Args[0], append([]string{"play-enter", p.Path(), os.Args[0]}, words...)...)
}

func join(t *testing.T, f *Fabric, network, address string) *Port {
	t.Helper()
	p, err := f.Join(network, netip.MustParsePrefix(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// can skips a test if the machine permits no networks.
func can(t *testing.T, err error) {
	t.Helper()
	var lack *lab.LackError
	if errors.As(err, &lack) {
		quelltest.Skip(t, "namespaces", err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// open opens networks until the test's end.
func open(t *testing.T, networks map[string]study.Network) *Fabric {
	t.Helper()
	f, err := Open(networks)
	can(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// Data sent over an uplink arrives, at the uplink's rate. Within a network there is no
// limit: of five transfers, on a machine that may be slow itself, at least one is
// faster than an uplink would permit.
func TestFabric(t *testing.T) {
	quelltest.Need(t, "root")
	for _, shaper := range []string{"tbf", "htb"} {
		t.Run(shaper, func(t *testing.T) {
			const bits = 16e6
			f := open(t, map[string]study.Network{"host": {Uplink: "lan", Rate: bits, Shaper: shaper}, "lan": {}})
			for i, from := range []string{"host", "lan"} {
				source := join(t, f, from, fmt.Sprintf("10.77.%d.1/16", 2*i))
				target := join(t, f, "lan", fmt.Sprintf("10.77.%d.1/16", 2*i+1))
				address := fmt.Sprintf("10.77.%d.1:7000", 2*i+1)
				most, least := transfer(t, source, target, address)
				sent, err := source.Traffic()
				// Sent again counts, and a busy machine sends much again; not eight times all.
				if err != nil || sent.Sent < 2<<20 || sent.Sent > 8<<20 || sent.Packets == 0 {
					t.Errorf("sent %+v, %v", sent, err)
				}
				received, err := target.Traffic()
				if err != nil || received.Received < 2<<20 {
					t.Errorf("received %+v, %v", received, err)
				}
				// The bucket's own content passes at once. 1.75 MiB are left: 0.92 s at
				// 16 Mbit/s, with a twentieth more of headers. A busy machine is
				// slower, never faster.
				const bound = 0.9 * (2<<20 - 256<<10) * 8 / bits
				if from == "host" {
					if most <= bound {
						t.Errorf("%s to lan took %.3f s, with a bound it is %.3f s at least", from, most, bound)
					}
					continue
				}
				for range 4 {
					if least > bound {
						_, least = transfer(t, source, target, address)
					}
				}
				if least > bound {
					t.Errorf("none of 5 transfers from %s to lan took less than %.3f s", from, bound)
				}
			}
			if _, err := f.Join("wan", netip.MustParsePrefix("10.77.9.1/16")); err == nil || !strings.Contains(err.Error(), `unknown network "wan"`) {
				t.Error(err)
			}
		})
	}
}

// transfer sends 2 MiB. It returns upper and lower bounds of the time that took: from
// before the start of the sender until all had arrived, and by the sink's own clock; a
// sink that begins late finds data that has already arrived.
func transfer(t *testing.T, source, target *Port, address string) (most, least float64) {
	t.Helper()
	in := play(t, target, "play-sink")
	in.Stderr = os.Stderr
	out, err := in.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(out)
	if text, err := lines.ReadString('\n'); err != nil || text != "listening\n" {
		t.Fatal(text, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := target.Answers(ctx, 7001); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a port without a listener: %v", err)
	}
	began := time.Now()
	from := play(t, source, "play-send", address)
	from.Stderr = os.Stderr
	if err := from.Start(); err != nil {
		t.Fatal(err)
	}
	var n int
	if _, err := fmt.Fscan(lines, &n, &least); err != nil || n != 2<<20 {
		t.Errorf("%d bytes, %v", n, err)
	}
	most = time.Since(began).Seconds()
	if err := errors.Join(from.Wait(), in.Wait()); err != nil {
		t.Error(err)
	}
	return most, least
}

// A network ends with the process that made it, however that ends.
func TestNothingIsLeft(t *testing.T) {
	quelltest.Need(t, "root")
	f, err := Open(map[string]study.Network{"lan": {}})
	can(t, err)
	p, err := f.Join("lan", netip.MustParsePrefix("10.77.0.1/16"))
	if err != nil {
		t.Fatal(err)
	}
	path := p.Path()
	if err := errors.Join(p.Close(), f.Close()); err != nil {
		t.Error(err)
	}
	if out, err := exec.CommandContext(t.Context(), os.Args[0], "play-enter", path, "true").CombinedOutput(); err == nil {
		t.Errorf("it is still there: %s", out)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Name == bridge || strings.HasPrefix(l.Name, "port") {
			t.Errorf("%s is on the machine itself", l.Name)
		}
	}
}

// made is a maker whose environments record the command that they are to run.
type made struct {
	lab.Maker
	lab.Environment
	argv []string
}

func (m *made) Make(context.Context, *study.Part) (lab.Environment, error) { return m, nil }
func (m *made) Close() error                                               { return nil }
func (m *made) Start(_ context.Context, j lab.Job) (lab.Process, error) {
	m.argv = j.Argv
	return nil, unix.EINTR
}

func TestMaker(t *testing.T) {
	quelltest.Need(t, "root")
	inner := &made{}
	m := With(inner, map[string]study.Network{"lan": {}}, []string{"quell", "lab-net"})
	defer m.Close()
	p := &study.Part{Role: "vm", Address: "10.77.0.1/16", Environment: study.Environment{Driver: study.Cgroup}}
	if e, err := m.Make(t.Context(), p); err != nil || e != lab.Environment(inner) {
		t.Errorf("without a network: %v, %v", e, err)
	}
	p.Environment.Network = "lan"
	e, err := m.Make(t.Context(), p)
	can(t, err)
	if _, err := e.Start(t.Context(), lab.Job{Argv: []string{"nginx", "-c"}}); !errors.Is(err, unix.EINTR) {
		t.Error(err)
	}
	if n := len(inner.argv); n != 5 || !strings.HasPrefix(inner.argv[2], "/proc/") || strings.Join(inner.argv[3:], " ") != "nginx -c" || inner.argv[1] != "lab-net" {
		t.Errorf("%q", inner.argv)
	}
	if on, ok := e.(interface {
		Traffic() (lab.Traffic, error)
	}); !ok {
		t.Error("it says nothing of its traffic")
	} else if _, err := on.Traffic(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	p.Environment.Driver = study.LXC
	var lack *lab.LackError
	if _, err := m.Make(t.Context(), p); !errors.As(err, &lack) {
		t.Errorf("a container on a network: %v", err)
	}
}
