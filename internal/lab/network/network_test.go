package network

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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
	case "play-taps":
		err = holdTaps()
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
	p, err := f.Join(network, netip.MustParsePrefix(address), false)
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

// Networks with long names that begin alike have uplinks to the same network.
func TestNamesOfNetworks(t *testing.T) {
	quelltest.Need(t, "root")
	f := open(t, map[string]study.Network{"datacenter-a": {Uplink: "the core"}, "datacenter-b": {Uplink: "the core"}, "the core": {}})
	for i, name := range []string{"datacenter-a", "datacenter-b", "the core"} {
		join(t, f, name, fmt.Sprintf("10.77.%d.1/16", i))
	}
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
			if _, err := f.Join("wan", netip.MustParsePrefix("10.77.9.1/16"), false); err == nil || !strings.Contains(err.Error(), `unknown network "wan"`) {
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

// Datagrams that a program does not read in time are counted, and when a server has its port
// is seen for UDP too.
func TestDatagrams(t *testing.T) {
	quelltest.Need(t, "root")
	p := join(t, open(t, map[string]study.Network{"lan": {}}), "lan", "10.77.0.1/16")
	err := p.space.run(func() error {
		in, err := net.ListenUDP("udp4", &net.UDPAddr{Port: 5201})
		if err != nil {
			return err
		}
		defer in.Close()
		out, err := net.Dial("udp4", "127.0.0.1:5201")
		if err != nil {
			return err
		}
		defer out.Close()
		if err := in.SetReadBuffer(4096); err != nil {
			return err
		}
		for range 100 {
			if _, err := out.Write(make([]byte, 1000)); err != nil {
				return err
			}
		}
		_, err = in.Read(make([]byte, 1000))
		return errors.Join(err, p.Answers(t.Context(), 5201))
	})
	received, dropped, err2 := p.Datagrams()
	if err != nil || err2 != nil || received == 0 || dropped == 0 || received+dropped > 100 {
		t.Errorf("received %d, dropped %d, %v, %v", received, dropped, err, err2)
	}
}

// A network ends with the process that made it, however that ends.
func TestNothingIsLeft(t *testing.T) {
	quelltest.Need(t, "root")
	f, err := Open(map[string]study.Network{"lan": {}})
	can(t, err)
	p, err := f.Join("lan", netip.MustParsePrefix("10.77.0.1/16"), false)
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
	link lab.Link
}

func (m *made) Make(context.Context, *study.Part) (lab.Environment, error) { return m, nil }
func (m *made) MakeOn(_ context.Context, _ *study.Part, l lab.Link) (lab.Environment, error) {
	m.link = l
	return m, nil
}
func (m *made) Close() error { return nil }
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
	// A guest and a container are on the network themselves: their programs enter nothing.
	p.Environment.Image = "bench"
	for _, d := range []study.Driver{study.LXC, study.QEMU, study.Xen} {
		p.Environment.Driver, inner.link = d, nil
		e, err := m.Make(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Start(t.Context(), lab.Job{Argv: []string{"nginx", "-c"}}); !errors.Is(err, unix.EINTR) || strings.Join(inner.argv, " ") != "nginx -c" || inner.link == nil {
			t.Errorf("%s: %q on %v, %v", d, inner.argv, inner.link, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	p.Environment.Driver, p.Environment.Image = study.QEMU, ""
	var lack *lab.LackError
	if _, err := m.Make(t.Context(), p); !errors.As(err, &lack) || lack.Remedy == "" {
		t.Errorf("a guest of QEMU without image on a network: %v", err)
	}
}

// A guest's tap device is on the network: what the guest sends arrives, and the answer comes
// back. The namespace reaches the guest from an address of its own.
func TestGuestOnANetwork(t *testing.T) {
	quelltest.Need(t, "root")
	f := open(t, map[string]study.Network{"host": {Uplink: "lan"}, "lan": {}})
	join(t, f, "lan", "10.77.0.1/16")
	p, err := f.Join("host", netip.MustParsePrefix("10.77.1.1/16"), true)
	if err != nil {
		t.Fatal(err)
	}
	can(t, p.LimitRate(study.Bandwidth{Baseline: 16e6}))
	tap, err := p.Tap()
	can(t, err)
	// An ARP request (RFC 826), after the header of a virtio network card.
	mac, own, other := []byte{0x52, 0x54, 10, 77, 1, 1}, []byte{10, 77, 1, 1}, []byte{10, 77, 0, 1}
	const header = 10
	request := slices.Concat(make([]byte, header), bytes.Repeat([]byte{0xff}, 6), mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, mac, own, make([]byte, 6), other)
	frame := make([]byte, 4096)
	// As of any card, the kernel drops frames until it has noticed the link, some time after it
	// was set up.
	quelltest.Until(t, "the other environment answers", func() bool {
		_, err := tap.Write(request)
		if err := errors.Join(err, tap.SetReadDeadline(time.Now().Add(50*time.Millisecond))); err != nil {
			t.Fatal(err)
		}
		for {
			n, err := tap.Read(frame)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := frame[header:n]; len(got) >= 42 && bytes.Equal(got[:6], mac) && bytes.Equal(got[20:22], []byte{0, 2}) && bytes.Equal(got[28:32], other) {
				return true
			}
		}
	})
	if sent, err := p.Traffic(); err != nil || sent.Sent < 42 || sent.Received < 42 {
		t.Errorf("%+v, %v", sent, err)
	}
	if err := p.space.run(func() error {
		all, err := net.InterfaceAddrs()
		if err == nil && !slices.ContainsFunc(all, func(a net.Addr) bool { return a.String() == "10.77.129.1/16" }) {
			err = fmt.Errorf("it has the addresses %v", all)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(tap.Close(), p.Close()); err != nil {
		t.Error(err)
	}
}

// holdTaps is a lab with a guest on a network: it prints the namespaces, and waits.
func holdTaps() error {
	f, err := Open(map[string]study.Network{"lan": {}})
	if err != nil {
		return err
	}
	p, err := f.Join("lan", netip.MustParsePrefix("10.77.1.1/16"), true)
	if err != nil {
		return err
	}
	tap, err := p.Tap()
	if err != nil {
		return err
	}
	// It stands for QEMU, and like QEMU ends with the lab.
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{tap}
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	runtime.LockOSThread()
	if err := cmd.Start(); err != nil {
		return err
	}
	hub, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.hubs["lan"].file.Fd()))
	if err != nil {
		return err
	}
	space, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", p.space.file.Fd()))
	if err != nil {
		return err
	}
	fmt.Println(cmd.Process.Pid, hub, space)
	select {}
}

// After a kill -9 no process has the namespaces of guests, so the kernel has removed them.
func TestNothingIsLeftOfAKilledLab(t *testing.T) {
	quelltest.Need(t, "root")
	f, err := Open(map[string]study.Network{"lan": {}})
	can(t, err)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "play-taps")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	var hub, space string
	_, err = fmt.Fscan(out, &pid, &hub, &space)
	if err := errors.Join(err, cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	quelltest.Until(t, "no process has the namespaces", func() bool {
		held, err := filepath.Glob("/proc/[0-9]*/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		spaces, err := filepath.Glob("/proc/[0-9]*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(append(held, spaces...), func(path string) bool {
			to, err := os.Readlink(path)
			return err == nil && (to == hub || to == space || to == "/dev/net/tun" && strings.HasPrefix(path, fmt.Sprintf("/proc/%d/", pid)))
		})
	})
}
