package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// Fabric is the networks of a study. It is safe for use by several goroutines.
type Fabric struct {
	mu    sync.Mutex
	hubs  map[string]*namespace
	ports int // made so far, for names
}

// namespace is a network namespace that is held open.
type namespace struct {
	file *os.File
	link *netlink.Handle
}

// bridge is the name of the bridge in a network's namespace, port that of the interface
// in an environment's namespace.
const (
	bridge = "br0"
	port   = "eth0"
)

// Open makes the networks and their uplinks. If the kernel has no namespaces, bridges
// or shapers, or does not permit them to this process, the error is a *lab.LackError.
func Open(nets map[string]study.Network) (*Fabric, error) {
	f := &Fabric{hubs: map[string]*namespace{}}
	err := f.open(nets)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make networks: %w", lacking(err)), f.Close())
	}
	return f, nil
}

func lacking(err error) error {
	for _, e := range []error{unix.EPERM, unix.EACCES, unix.EOPNOTSUPP, unix.ENOSYS, unix.ENOENT} {
		if errors.Is(err, e) {
			return &lab.LackError{What: err.Error(), Remedy: "run it as root on a kernel with network namespaces, veth, bridge, tbf and htb"}
		}
	}
	return err
}

func (f *Fabric) open(nets map[string]study.Network) error {
	for name := range nets {
		s, err := newSpace()
		if err != nil {
			return err
		}
		f.hubs[name] = s
		if err := s.bridge(); err != nil {
			return err
		}
	}
	links := 0
	for name, n := range nets {
		if n.Uplink == "" {
			continue
		}
		here, there := f.hubs[name], f.hubs[n.Uplink]
		if there == nil {
			return fmt.Errorf("uplink of %s: unknown network %q", name, n.Uplink)
		}
		// Numbers: a network's name may be too long for that of an interface, or have what that cannot.
		links++
		near, far := "up", fmt.Sprintf("down%d", links)
		if err := here.pair(near, there, far); err != nil {
			return err
		}
		for _, end := range []struct {
			s    *namespace
			name string
		}{{here, near}, {there, far}} {
			if err := end.s.attach(end.name); err != nil {
				return err
			}
			if err := end.s.shape(end.name, n); err != nil {
				return fmt.Errorf("limit the uplink of %s: %w", name, err)
			}
		}
	}
	return nil
}

// Join makes the namespace of one environment on a network. It has the address and
// reaches all networks, which are one subnet. A guest has the address itself: its
// namespace connects a tap device to the network.
func (f *Fabric) Join(network string, address netip.Prefix, guest bool) (*Port, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	hub := f.hubs[network]
	if hub == nil {
		return nil, fmt.Errorf("join network: unknown network %q", network)
	}
	s, err := newSpace()
	if err != nil {
		return nil, fmt.Errorf("join network %s: %w", network, lacking(err))
	}
	f.ports++
	p := &Port{hub: hub, space: s, outer: fmt.Sprintf("port%d", f.ports), address: address.Addr(), guest: guest}
	if err := p.open(address); err != nil {
		return nil, errors.Join(fmt.Errorf("join network %s: %w", network, lacking(err)), p.Close())
	}
	return p, nil
}

// Close closes the networks' namespaces, which removes the networks.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, s := range f.hubs {
		errs = append(errs, s.close())
	}
	f.hubs = nil
	return errors.Join(errs...)
}

// Port is the connection of one environment to a network.
type Port struct {
	hub   *namespace
	space *namespace
	outer string // the end in the network's namespace

	address netip.Addr
	guest   bool // the address is a guest's
}

func (p *Port) open(address netip.Prefix) error {
	if err := p.hub.pair(p.outer, p.space, port); err != nil {
		return err
	}
	if err := p.hub.attach(p.outer); err != nil {
		return err
	}
	holder := port
	if p.guest {
		holder, address = bridge, asker(address)
		if err := p.space.bridge(); err != nil {
			return err
		}
		if err := p.space.attach(port); err != nil {
			return err
		}
	}
	inner, err := p.space.link.LinkByName(holder)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address.String())
	if err != nil {
		return err
	}
	if err := p.space.link.AddrAdd(inner, a); err != nil {
		return fmt.Errorf("add address %s: %w", address, err)
	}
	return errors.Join(p.space.up(holder), p.space.up("lo"))
}

// asker is the address from which Answers asks a guest with the given one: 10.77.129.1
// for 10.77.1.1. A study has fewer than 128 roles.
func asker(guest netip.Prefix) netip.Prefix {
	a := guest.Addr().As4()
	a[2] ^= 128
	return netip.PrefixFrom(netip.AddrFrom4(a), guest.Bits())
}

// Tap implements lab.Link. The device has no name outside its namespace and is not
// persistent (Documentation/networking/tuntap.rst): nothing is left when QEMU has ended.
func (p *Port) Tap() (file *os.File, err error) {
	const name = "tap0"
	err = p.space.run(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		r, err := unix.NewIfreq(name)
		if err == nil {
			// With headers, by which the guest leaves checksums and segmentation to the host.
			r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
			err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
		}
		// Not before: the runtime's poller takes no file without a device.
		file = os.NewFile(uintptr(fd), "/dev/net/tun")
		return err
	})
	if err == nil {
		err = p.space.attach(name)
	}
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return nil, fmt.Errorf("make a tap device: %w", lacking(err))
	}
	return file, nil
}

// Adopt implements lab.Link.
func (p *Port) Adopt(name string) error {
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetNsFd(l, int(p.space.file.Fd()))
	}
	if err == nil {
		err = p.space.attach(name)
	}
	if err != nil {
		return fmt.Errorf("take %s to its network: %w", name, err)
	}
	return nil
}

// Path is the file by which another process of this machine enters the namespace, while
// the port is open.
func (p *Port) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), p.space.file.Fd()) }

// Answers waits until a server has the port. It looks for the socket, since a connection or
// a datagram that a tool does not know would disturb it; in a guest it makes a connection.
func (p *Port) Answers(ctx context.Context, port int) error {
	return p.space.run(func() error {
		if !p.guest {
			return lab.Listens(ctx, port)
		}
		return answers(ctx, netip.AddrPortFrom(p.address, uint16(port)).String())
	})
}

// Datagrams is how many datagrams programs on the port have received, and how many of
// those that arrived were dropped because a program did not read them in time.
func (p *Port) Datagrams() (received, dropped uint64, err error) {
	var text []byte
	err = p.space.run(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read what datagrams were dropped: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		// Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors … (net/ipv4/proc.c); the line
		// before it has these names.
		var other uint64
		if n, _ := fmt.Sscanf(line, "Udp: %d %d %d %d %d", &received, &other, &other, &other, &dropped); n == 5 {
			return received, dropped, nil
		}
	}
	return 0, 0, errors.New("read what datagrams were dropped: no counts of UDP in /proc/net/snmp")
}

// run calls a function on a thread in the namespace: sockets and devices belong to that of
// the thread that makes them.
func (s *namespace) run(do func() error) error {
	done := make(chan error)
	host.OwnThread(func() {
		err := unix.Setns(int(s.file.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			err = do()
		}
		done <- err
	})
	return <-done
}

// Traffic returns what the environment has sent and received.
func (p *Port) Traffic() (t lab.Traffic, err error) {
	l, err := p.hub.link.LinkByName(p.outer)
	if err != nil {
		return t, fmt.Errorf("read traffic of %s: %w", p.outer, err)
	}
	s := l.Attrs().Statistics
	if s == nil {
		return t, fmt.Errorf("read traffic of %s: the kernel reports no statistics", p.outer)
	}
	// Received by the network's end: sent by the environment.
	return lab.Traffic{Sent: s.RxBytes, Received: s.TxBytes, Packets: s.RxPackets + s.TxPackets}, nil
}

// Close takes the environment off the network.
func (p *Port) Close() error {
	var errs []error
	// At once: the namespace may stay while a process runs in it.
	if l, err := p.hub.link.LinkByName(p.outer); err == nil {
		errs = append(errs, p.hub.link.LinkDel(l))
	}
	return errors.Join(append(errs, p.space.close())...)
}

func answers(ctx context.Context, address string) error {
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err == nil {
			return c.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("connect to %s: %w", address, errors.Join(ctx.Err(), err))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// newSpace makes a namespace on a thread of its own, which ends with the goroutine.
func newSpace() (*namespace, error) {
	type answer struct {
		s   *namespace
		err error
	}
	made := make(chan answer)
	host.OwnThread(func() {
		var a answer
		a.s, a.err = hereSpace()
		made <- a
	})
	a := <-made
	if a.err != nil {
		return nil, fmt.Errorf("make network namespace: %w", a.err)
	}
	return a.s, nil
}

func hereSpace() (*namespace, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, err
	}
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, err
	}
	link, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &namespace{file, link}, nil
}

func (s *namespace) close() error {
	s.link.Close()
	return s.file.Close()
}

func attrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func (s *namespace) up(name string) error {
	l, err := s.link.LinkByName(name)
	if err == nil {
		err = s.link.LinkSetUp(l)
	}
	if err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// bridge adds a bridge.
func (s *namespace) bridge() error {
	if err := s.link.LinkAdd(&netlink.Bridge{LinkAttrs: attrs(bridge)}); err != nil {
		return fmt.Errorf("add bridge: %w", err)
	}
	return s.up(bridge)
}

// pair makes a link with one end in s and one in there.
func (s *namespace) pair(here string, there *namespace, peer string) error {
	v := &netlink.Veth{LinkAttrs: attrs(here), PeerName: peer, PeerNamespace: netlink.NsFd(int(there.file.Fd()))}
	if err := s.link.LinkAdd(v); err != nil {
		return fmt.Errorf("add link %s to %s: %w", here, peer, err)
	}
	return nil
}

// attach puts an interface on the bridge and sets it up.
func (s *namespace) attach(name string) error {
	hub, err := s.link.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge: %w", err)
	}
	l, err := s.link.LinkByName(name)
	if err == nil {
		err = s.link.LinkSetMaster(l, hub)
	}
	if err != nil {
		return fmt.Errorf("put %s on the bridge: %w", name, err)
	}
	return s.up(name)
}

// usualQueue is the longest wait of a packet at a limited link if the study does not
// set it: the buffer of some switch.
const usualQueue = 50 * time.Millisecond

// shape limits what an interface sends.
func (s *namespace) shape(name string, n study.Network) error {
	if n.Rate <= 0 {
		return nil
	}
	l, err := s.link.LinkByName(name)
	if err != nil {
		return err
	}
	queue := n.Queue
	if queue == 0 {
		queue = usualQueue
	}
	bytes := float64(n.Rate) / 8 // per second
	// A burst of 2 ms, and at least one whole packet of segmentation offload.
	burst := max(bytes*0.002, 64<<10)
	root := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT}
	if n.Shaper == "htb" {
		q := netlink.NewHtb(root)
		q.Defcls = 1
		if err := s.link.QdiscAdd(q); err != nil {
			return fmt.Errorf("htb: %w", err)
		}
		class := netlink.NewHtbClass(netlink.ClassAttrs{LinkIndex: l.Attrs().Index, Parent: root.Handle, Handle: netlink.MakeHandle(1, 1)},
			netlink.HtbClassAttrs{Rate: uint64(n.Rate), Ceil: uint64(n.Rate)})
		if err := s.link.ClassAdd(class); err != nil {
			return fmt.Errorf("htb: %w", err)
		}
		return nil
	}
	// Times are in the scheduler's ticks (tc-tbf(8); netlink.TickInUsec is from
	// /proc/net/psched).
	ticks := burst / bytes * 1e6 * netlink.TickInUsec()
	tbf := &netlink.Tbf{QdiscAttrs: root, Rate: uint64(bytes), Limit: uint32(bytes*queue.Seconds() + burst), Buffer: uint32(ticks)}
	if err := s.link.QdiscAdd(tbf); err != nil {
		return fmt.Errorf("tbf: %w", err)
	}
	return nil
}

// Enter takes this process into the namespace of Port.Path and executes the program. It
// returns only with an error.
func Enter(path string, argv []string) error {
	if len(argv) == 0 {
		return errors.New("enter network: no program given")
	}
	runtime.LockOSThread() // a namespace belongs to the thread, and exec(2) keeps this one's
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("enter network %s: %w", path, err)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network %s: %w", path, err)
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return fmt.Errorf("enter network: %w", err)
	}
	return fmt.Errorf("enter network: run %s: %w", program, unix.Exec(program, argv, os.Environ()))
}
