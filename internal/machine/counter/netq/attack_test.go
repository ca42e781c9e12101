package netq

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/bpftest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const far = "10.78.0.2:9000"

func machine(t testing.TB) *host.Host {
	t.Helper()
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// Packets that a task sends from cgroups that it makes in an open window are the task's.
func TestAttackNewCgroups(t *testing.T) {
	sends, _ := shaped(t)
	h := machine(t)
	bpftest.EachHierarchy(t, func(t *testing.T, hier sample.Hierarchy) {
		task := bpftest.Task(t, h, hier, "task")
		s, _ := open(t, task)
		c, dir, made := start(t, far, task.Dir, sends), task.Dir, 0
		exact(t, func() []string {
			before, _ := sent(t, sends)
			bpftest.Start(t, s)
			made++
			dir = bpftest.Moved(t, dir, fmt.Sprint("made", made), c)
			c.Ask(20, 500)
			allSent(t, sends, before, 20)
			if n := bpftest.Count(bpftest.Stop(t, s)[task.Key], sample.NetPackets); n < 20 {
				return []string{fmt.Sprintf("%v packets of 20", n)}
			}
			return nil
		})
	})
}

// sendLate sends pieces of one large datagram, which the kernel cuts up, and says that they should have
// been sent 50 s ago.
func sendLate(udp *net.UDPConn, to *net.UDPAddr, pieces, size int) error {
	raw, err := udp.SyscallConn()
	if err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	text := make([]byte, 2*unix.CmsgSpace(8))
	put := func(b []byte, level, kind int32, data []byte) {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		h.Level, h.Type = level, kind
		h.SetLen(unix.CmsgLen(len(data)))
		copy(b[unix.CmsgLen(0):], data)
	}
	put(text, unix.SOL_SOCKET, unix.SCM_TXTIME, binary.LittleEndian.AppendUint64(nil, uint64(now.Nano()-50e9)))
	put(text[unix.CmsgSpace(8):], unix.SOL_UDP, unix.UDP_SEGMENT, binary.LittleEndian.AppendUint16(nil, uint16(size)))
	var failed error
	err = raw.Control(func(fd uintptr) {
		// struct sock_txtime: the clock, which needs no privilege, and flags
		failed = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_TXTIME, string([]byte{unix.CLOCK_MONOTONIC, 0, 0, 0, 0, 0, 0, 0}))
		if failed == nil {
			failed = unix.Sendmsg(int(fd), make([]byte, pieces*size), text[:unix.CmsgSpace(8)+unix.CmsgSpace(2)],
				&unix.SockaddrInet4{Port: to.Port, Addr: [4]byte(to.IP.To4())}, 0)
		}
	})
	if err != nil {
		return err
	}
	return failed
}

// A packet has waited since it was handed over in this window, whatever its task says of when it was to
// be sent.
func TestAttackPacketsOfLongAgo(t *testing.T) {
	sends, _ := shaped(t)
	task := bpftest.Task(t, machine(t), sample.Unified, "task")
	s, _ := open(t, task)
	c := start(t, far, task.Dir, sends)
	c.Ask(1, 100)
	for n := range 3 {
		before, _ := sent(t, sends)
		if n < 2 {
			bpftest.Start(t, s)
		}
		c.Ask("l", 100, 400)
		if n == 2 { // handed over before the window
			bpftest.Start(t, s)
		}
		allSent(t, sends, before, 100)
		r := bpftest.Stop(t, s)[task.Key]
		if packets, wait := bpftest.Count(r, sample.NetPackets), bpftest.Count(r, sample.NetWait); wait > 10+packets {
			t.Errorf("%v packets waited %v s", packets, wait)
		}
	}
}

// Nor is what a full queue dropped in an earlier window taken for a packet that is at the same place in
// the kernel's memory now.
func TestAttackPacketsThatWereDropped(t *testing.T) {
	sends, _ := shaped(t)
	task := bpftest.Task(t, machine(t), sample.Unified, "task")
	s, _ := open(t, task)
	c, d := start(t, far, task.Dir, sends), start(t, far, task.Dir, sends)
	c.Ask(1, 100)
	before, _ := sent(t, sends)
	bpftest.Start(t, s)
	c.Ask(85, 1400)
	d.Ask(85, 1400)
	c.Ask(85, 1400)
	d.Ask(85, 1400)
	bpftest.Stop(t, s)
	allSent(t, sends, before, 100)
	for range 30 { // some 2 s
		before, _ = sent(t, sends)
		c.Ask(80, 1400)
		allSent(t, sends, before, 80)
	}
	before, _ = sent(t, sends)
	c.Ask(80, 1400)
	bpftest.Start(t, s)
	allSent(t, sends, before, 80)
	r := bpftest.Stop(t, s)[task.Key]
	if packets, wait := bpftest.Count(r, sample.NetPackets), bpftest.Count(r, sample.NetWait); wait > packets {
		t.Errorf("%v packets waited %v s", packets, wait)
	}
}

// What waits at the end of a window is the task's in the next one, if that begins at once.
func TestPacketsThatWaitThroughTheEndOfAWindow(t *testing.T) {
	sends, _ := shaped(t)
	task := bpftest.Task(t, machine(t), sample.Unified, "task")
	s, _ := open(t, task)
	c := start(t, far, task.Dir, sends)
	exact(t, func() []string {
		before, _ := sent(t, sends)
		bpftest.Start(t, s)
		c.Ask(85, 1400)
		bpftest.Stop(t, s)
		bpftest.Start(t, s)
		_, waiting := sent(t, sends)
		allSent(t, sends, before, 85)
		r := bpftest.Stop(t, s)[task.Key]
		if n := bpftest.Count(r, sample.NetPackets); waiting == 0 || n < float64(waiting) {
			return []string{fmt.Sprintf("%v packets, %v had waited", n, waiting)}
		}
		return nil
	})
}

// A container that gives its own interface a queue is found at the host's.
func TestAttackAQueueOfItsOwn(t *testing.T) {
	sends, container := shaped(t)
	container.Run("tc qdisc add dev eth0 root pfifo")
	task := bpftest.Task(t, machine(t), sample.Unified, "task")
	s, _ := open(t, task)
	c := start(t, far, task.Dir, container)
	c.Ask(1, 100)
	exact(t, func() []string {
		before, _ := sent(t, sends)
		bpftest.Start(t, s)
		c.Ask(30, 500)
		allSent(t, sends, before, 30)
		r := bpftest.Stop(t, s)[task.Key]
		if n, at := bpftest.Count(r, sample.NetPackets), r.Reach.Len(); n < 60 || at != 2 {
			return []string{fmt.Sprintf("%v packets of 30 left two queues, at %d interfaces", n, at)}
		}
		return nil
	})
}

// Interfaces that a tenant makes in a user namespace of its own do not take the places in which it is
// noted who was served at others.
func TestAttackManyInterfaces(t *testing.T) {
	sends, _ := shaped(t)
	quelltest.Need(t, "unshare", "tc", "ip")
	const interfaces = 200
	h := machine(t)
	victim, loud, tenant := bpftest.Task(t, h, sample.Unified, "victim"), bpftest.Task(t, h, sample.Unified, "loud"), bpftest.Task(t, h, sample.Unified, "tenant")
	s, _ := open(t, victim, loud, tenant)
	if !s.Info().Accounts {
		quelltest.Skip(t, "bpf-loop", fmt.Errorf("this kernel cannot report served tasks"))
	}
	var links, queues strings.Builder
	for i := range interfaces {
		fmt.Fprintf(&links, "link add v%d type veth peer name w%d\naddr add 10.80.%d.1/24 dev v%d\nlink set v%d up\nlink set w%d up\n"+
			"neigh add 10.80.%d.2 lladdr 02:00:00:00:00:01 dev v%d\n", i, i, i, i, i, i, i, i)
		fmt.Fprintf(&queues, "qdisc add dev v%d root pfifo\n", i)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"links": links.String(), "queues": queues.String()} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("unshare", "-Urn", "sh", "-c", "ip -batch "+dir+"/links && tc -batch "+dir+"/queues && exec "+os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+far)
	x := quelltest.StartChild(t, cmd, tenant.Dir)
	x.Ask("u", 0, 100)
	v, l := start(t, far, victim.Dir, sends), start(t, far, loud.Dir, sends)
	v.Ask(1, 100)
	exact(t, func() []string {
		before, _ := sent(t, sends)
		bpftest.Start(t, s)
		for i := range interfaces {
			x.Ask("u", i, 100)
		}
		for range 20 {
			l.Ask(5, 1400)
			v.Ask(1, 100)
		}
		allSent(t, sends, before, 20*6)
		r := bpftest.Stop(t, s)[victim.Key]
		for _, o := range r.Served {
			if o.By == loud.Key && o.Time.Seconds() > 0.9*bpftest.Count(r, sample.NetWait) {
				return nil
			}
		}
		return []string{fmt.Sprintf("the victim waited %v s, served were %v", bpftest.Count(r, sample.NetWait), r.Served)}
	})
}
