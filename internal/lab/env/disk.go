package env

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/guest"
	"github.com/quell-dev/quell/internal/lab/image"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/study"
)

// A guest from a disk image boots what clouds have: a disk, of which it gets a copy on
// write, and a seed for cloud-init. It is reached by SSH through QEMU's own network, and
// quell's program is copied there and does what the agent does as PID 1 of a guest
// without an image.

const (
	// patienceToLogin is the time limit for a guest from an image to let the lab in, if the
	// run's time limit is not shorter. An emulated one needs 60 to 80 s of CPU time.
	patienceToLogin = 30 * time.Minute
	// patienceWithKey is how long the guest's SSH may present another key than the seed's:
	// cloud-init comes before SSH in all distributions.
	patienceWithKey = 30 * time.Second
	// leaseOfGuest is twice the silence after which a guest is lost. It is long because the
	// lab freezes guests, and because emulated ones are slow.
	leaseOfGuest = 4 * time.Minute
)

// keys are the SSH keys of one guest. Neither is used again.
type keys struct{ login, host pair }

type pair struct{ private, public string }

func newPair() (pair, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return pair{}, err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return pair{}, err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return pair{}, err
	}
	return pair{string(pem.EncodeToMemory(block)), strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key)))}, nil
}

// controlCard is the hardware address of the network card through which the lab reaches a
// guest that has another one too.
const controlCard = "52:54:00:00:00:01"

// linkCard is the hardware address of a guest's card on its study's network, where no other
// guest has the part's address.
func linkCard(a netip.Addr) string {
	ip := a.As4()
	return net.HardwareAddr{0x52, 0x54, ip[0], ip[1], ip[2], ip[3]}.String()
}

// seed writes what cloud-init's data source NoCloud reads (its documentation,
// reference/datasources/nocloud) into a folder, which QEMU shows the guest as a disk. on is
// the guest's address on its study's network; not valid: it has none.
func seed(dir, name string, k *keys, on netip.Prefix) error {
	user := map[string]any{
		"disable_root": false, "ssh_pwauth": false, "ssh_authorized_keys": []string{k.login.public},
		"users":    []any{map[string]any{"name": "root", "ssh_authorized_keys": []string{k.login.public}}},
		"ssh_keys": map[string]string{"ed25519_private": k.host.private, "ed25519_public": k.host.public},
		// What a guest of some minutes does not need, and what would disturb its runs.
		"package_update": false, "package_upgrade": false, "ssh": map[string]any{"emit_keys_to_console": false},
	}
	files := map[string]any{"user-data": user, "meta-data": map[string]string{"instance-id": name, "local-hostname": "quell"}}
	if on.IsValid() {
		card := func(name, mac string) map[string]any {
			// Without set-name cloud-init matches a card by the entry's own name.
			return map[string]any{"match": map[string]string{"macaddress": mac}, "set-name": name}
		}
		control, link := card("control", controlCard), card("study", linkCard(on.Addr()))
		control["dhcp4"], link["addresses"] = true, []string{on.String()}
		files["network-config"] = map[string]any{"version": 2, "ethernets": map[string]any{"control": control, "study": link}}
	}
	for file, content := range files {
		text, err := json.Marshal(content) // JSON is YAML
		if err == nil {
			if file == "user-data" {
				text = append([]byte("#cloud-config\n"), text...)
			}
			err = os.WriteFile(filepath.Join(dir, file), append(text, '\n'), 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// prepareDisk writes a guest's seed and returns QEMU's configuration.
func (m *Maker) prepareDisk(p *study.Part, accel, dir string, k *keys, linked bool) (guest.Machine, error) {
	i, err := image.Find(p.Environment.Image, p.Environment.Kernel)
	if err != nil {
		return guest.Machine{}, err
	}
	var on netip.Prefix
	if linked {
		if on, err = netip.ParsePrefix(p.Address); err != nil {
			return guest.Machine{}, fmt.Errorf("address on network %s: %w", p.Environment.Network, err)
		}
	}
	for _, one := range []*pair{&k.login, &k.host} {
		if *one, err = newPair(); err != nil {
			return guest.Machine{}, fmt.Errorf("make the guest's keys: %w", err)
		}
	}
	folder := filepath.Join(dir, "seed")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return guest.Machine{}, err
	}
	if err := seed(folder, filepath.Base(dir), k, on); err != nil {
		return guest.Machine{}, fmt.Errorf("write the guest's seed: %w", err)
	}
	return diskSpec(&p.Environment, i, accel, dir, folder, on), nil
}

// tapFile is the number of the tap device's file in QEMU: the first after the standard ones.
const tapFile = "3"

// diskSpec returns QEMU's configuration for a guest from an image.
func diskSpec(e *study.Environment, i image.Image, accel, dir, seed string, on netip.Prefix) guest.Machine {
	control, link := "", []string(nil)
	if on.IsValid() {
		control = ",mac=" + controlCard
		link = []string{"-netdev", "tap,id=link,fd=" + tapFile, "-device", "virtio-net-pci,netdev=link,romfile=,mac=" + linkCard(on.Addr())}
	}
	m := guest.Machine{Arch: nativeArch(), Kernel: i.Kernel, Initramfs: i.Initrd, CPUs: guest.CPUs{Sockets: 1, Cores: e.CPUs},
		MemoryMB: int(e.Memory >> 20), KVM: accel == "kvm", Parallel: true,
		Append: "root=/dev/vda1 rw systemd.show_status=0",
		Drives: []guest.Drive{{Path: i.Disk, Format: i.Format, Discard: true}},
		Args: []string{"-S", "-qmp", "unix:" + comma(filepath.Join(dir, "qmp")) + ",server=on,wait=off",
			"-blockdev", "driver=vvfat,node-name=seed,label=cidata,read-only=on,dir=" + comma(seed), "-device", "virtio-blk-pci,drive=seed",
			// Port 0 is any that is free: two labs do not compete for one.
			"-netdev", "user,id=net,hostfwd=tcp:127.0.0.1:0-:22", "-device", "virtio-net-pci,netdev=net,romfile=" + control,
			"-device", "virtio-rng-pci"}}
	m.Args = append(m.Args, link...)
	if accel == "tcg" {
		// A plain model and no mitigations: emulated vector instructions and switches of the
		// page tables cost a third of the boot.
		m.Append += " mitigations=off " + steadyClock
		if m.Arch == guest.AMD64 {
			m.CPU = "Nehalem"
		}
	}
	return m
}

// lostGuest is a guest to which the connection has ended. It is a lost host to the engine,
// so the run is invalid and made again.
type lostGuest struct {
	part string
	why  string
}

func (e *lostGuest) Error() string    { return "the guest is lost: " + e.why }
func (e *lostGuest) LostHost() string { return e.part }

// diskGuest is what a guest from an image has in addition.
type diskGuest struct {
	host *remote.Host
	qmp  net.Conn
	full atomic.Bool // the host's disk
}

func (g *diskGuest) close() error {
	if g.host != nil {
		g.host.Drop()
	}
	return g.qmp.Close()
}

// errSilent is a guest on KVM that prints nothing: KVM can be opened here and does not work.
var errSilent = fmt.Errorf("no console output after %s", kvmBootTimeout)

// reach starts a guest from an image, waits until it lets the lab in, and starts the
// agent there. One with a kernel is told to print on the console; what firmware boots may not.
func (g *qemuGuest) reach(ctx context.Context, m *Maker, p *study.Part, dir string, k *keys, kvm, kernel bool, last *tail) error {
	conn, err := g.dial(ctx, filepath.Join(dir, "qmp"))
	if err != nil {
		return fmt.Errorf("%w%s", err, last.bootFailure())
	}
	d := &diskGuest{qmp: conn}
	g.disk = d
	at, _ := ctx.Deadline()
	limit := time.Until(at).Round(time.Second)
	if err := conn.SetDeadline(at); err != nil {
		return err
	}
	q, err := greet(conn)
	if err != nil {
		return err
	}
	if g.vcpus, err = q.vcpus(); err != nil {
		return err
	}
	port, err := q.start(int64(p.Environment.Disk))
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	go func() {
		if q.diskFull() {
			d.full.Store(true)
			_ = g.qemu.Process.Kill() // the guest stands still and would do so until the run's end
		}
	}()
	if kvm && kernel {
		var cancel context.CancelCauseFunc
		ctx, cancel = context.WithCancelCause(ctx)
		defer cancel(nil)
		defer time.AfterFunc(m.patience.console, func() {
			if last.bootFailure() == silentConsole {
				cancel(errSilent)
			}
		}).Stop()
	}
	exe, err := m.program()
	if err != nil {
		return err
	}
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(k.login.private), 0o600); err != nil {
		return err
	}
	inv := &remote.Inventory{Hosts: []remote.HostConfig{{Name: p.Name(), Address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), User: "root", Key: key, HostKey: k.host.public}}}
	o := remote.Options{Helper: exe, Words: append(m.opt.Agent[1:len(m.opt.Agent):len(m.opt.Agent)], "stdio"), Lease: leaseOfGuest,
		Lost: func(err error, silent time.Duration) error { return d.lost(p.Name(), err, silent, last) }}
	if !kvm {
		o.Patience = time.Minute // an emulated handshake is slow
	}
	if d.host, err = login(ctx, inv, p.Name(), o, m.patience.withKey, g.ended); err != nil {
		return d.explain(cmp.Or(context.Cause(ctx), err), limit, last)
	}
	g.agentClient = &agentClient{Client: d.host.Client, maker: m, conn: dropping{d.host}, exe: d.host.Program, foreign: true, thaw: g.partCgroup.thaw}
	return g.settle(ctx)
}

// settle waits until cloud-init has done all of its work in the guest, which would disturb
// a run.
func (g *qemuGuest) settle(ctx context.Context) error {
	p, err := g.agentClient.Start(ctx, lab.Job{Name: "cloud-init", Argv: []string{"/bin/sh", "-c", "until [ -e " + g.maker.settled + " ]; do sleep 1; done"}})
	if err != nil {
		return err
	}
	if _, _, err := p.Begin(); err != nil {
		return err
	}
	select {
	case <-p.Done():
		return p.Err()
	case <-ctx.Done():
		return fmt.Errorf("cloud-init does not end in the guest: %w", ctx.Err())
	}
}

type dropping struct{ host *remote.Host }

func (d dropping) Close() error {
	d.host.Drop()
	return nil
}

// fullText is the reason of a guest whose disk's file cannot grow.
const fullText = "the host's disk is full: QEMU cannot store what the guest writes; free space in TMPDIR (default /var/tmp), or set TMPDIR to another folder"

func (g *diskGuest) lost(part string, err error, silent time.Duration, last *tail) error {
	why := fmt.Sprintf("SSH ended after a silence of %s (%v); it is booted anew for the next try%s", silent.Round(time.Millisecond), err, last.bootFailure())
	if g.full.Load() {
		why = fullText
	}
	return &lostGuest{part, why}
}

// explain says what to do about a guest that does not let the lab in.
func (g *diskGuest) explain(err error, limit time.Duration, last *tail) error {
	var key *remote.KeyError
	switch {
	case g.full.Load():
		return errors.New(fullText)
	case errors.As(err, &key):
		return &lab.LackError{What: "the guest's SSH does not have the key of its seed: its image has no cloud-init, or one that does not read NoCloud", Remedy: "install cloud-init in the image, with NoCloud in its datasource_list; quell lab image build makes one"}
	case errors.Is(err, errSilent):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no SSH to the guest within %s: it hangs at boot, or its image has no cloud-init, openssh-server or DHCP; boot it by hand, or use an image of quell lab image build%s", limit, last.bootFailure())
	}
	return fmt.Errorf("%w%s", err, last.bootFailure())
}

// login connects to a guest that is booting.
func login(ctx context.Context, inv *remote.Inventory, name string, o remote.Options, patience time.Duration, ended <-chan struct{}) (*remote.Host, error) {
	var wrongKey time.Time
	for {
		h, err := remote.Dial(ctx, inv, name, o)
		if err == nil {
			return h, nil
		}
		var key *remote.KeyError
		if !errors.As(err, &key) {
			wrongKey = time.Time{}
		} else if wrongKey.IsZero() {
			wrongKey = time.Now()
		} else if time.Since(wrongKey) > patience {
			return nil, err
		}
		select {
		case <-time.After(time.Second):
		case <-ended:
			return nil, errors.New("the guest ended during boot")
		case <-ctx.Done():
			return nil, cmp.Or(ctx.Err(), err)
		}
	}
}
