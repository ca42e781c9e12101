package env

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/image"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// fakeQEMU is a guest from a disk image as the driver sees it: QEMU's protocol, whose
// virtual CPU is this process's thread, and an SSH server with what the seed has, whose
// commands run here. The disk's file name says what is wrong with it.
func fakeQEMU(args []string) error {
	value := func(prefix, end string) string {
		_, rest, _ := strings.Cut(strings.Join(args, " "), prefix)
		v, _, _ := strings.Cut(rest, end)
		return v
	}
	trouble := strings.TrimSuffix(filepath.Base(value("file=", ",")), ".img")
	if trouble != "mute" {
		fmt.Println("booting the fake guest")
	}
	if strings.Contains(strings.Join(args, " "), "tap,id=link,fd=3 ") {
		text, err := io.ReadAll(os.NewFile(3, "tap"))
		if err != nil {
			return err
		}
		fmt.Printf("its tap says %q\n", text)
	}
	if trouble == "panics" {
		fmt.Println("Kernel panic - not syncing: VFS: Unable to mount root fs")
		return nil
	}
	control, err := net.Listen("unix", value("unix:", ","))
	if err != nil {
		return err
	}
	door, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if trouble == "hangs" {
		if err := door.Close(); err != nil {
			return err
		}
	} else if err := serveSSH(door, value("label=cidata,read-only=on,dir=", " "), trouble); err != nil {
		return err
	}
	conn, err := control.Accept()
	if err != nil {
		return err
	}
	full := make(chan os.Signal, 1)
	signal.Notify(full, unix.SIGUSR1)
	go func() {
		<-full
		fmt.Fprintln(conn, `{"event": "BLOCK_IO_ERROR", "data": {"device": "drive0", "operation": "write", "nospace": true}}`)
	}()
	fmt.Fprintln(conn, `{"QMP": {"version": {}}}`)
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		var c struct{ Execute string }
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		switch c.Execute {
		case "query-cpus-fast":
			fmt.Fprintf(conn, "{\"return\": [{\"thread-id\": %d, \"cpu-index\": 0}]}\n", os.Getpid())
		case "human-monitor-command":
			fmt.Fprintf(conn, "{\"return\": \"TCP[HOST_FORWARD]  11  127.0.0.1 %d  10.0.2.15 22 0 0\\r\\n\"}\n", door.Addr().(*net.TCPAddr).Port)
		default:
			fmt.Fprintln(conn, `{"return": {}}`)
		}
	}
	return nil
}

func serveSSH(door net.Listener, seed, trouble string) error {
	text, err := os.ReadFile(filepath.Join(seed, "user-data"))
	if err != nil {
		return err
	}
	var user struct {
		SSHKeys struct {
			Private string `json:"ed25519_private"`
		} `json:"ssh_keys"`
		Authorized []string `json:"ssh_authorized_keys"`
	}
	if err := json.Unmarshal([]byte(strings.TrimPrefix(string(text), "#cloud-config\n")), &user); err != nil {
		return err
	}
	if trouble == "without-cloud-init" {
		other, err := newPair()
		if err != nil {
			return err
		}
		user.SSHKeys.Private = other.private
	}
	key, err := ssh.ParsePrivateKey([]byte(user.SSHKeys.Private))
	if err != nil {
		return err
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
		if !slices.Contains(user.Authorized, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k)))) {
			return nil, errors.New("not the seed's key")
		}
		return nil, nil
	}}
	config.AddHostKey(key)
	told, lost := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(told, unix.SIGUSR2)
	go func() {
		<-told
		close(lost) // of every connection
	}()
	go func() {
		for {
			conn, err := door.Accept()
			if err != nil {
				return
			}
			go func() {
				<-lost
				_ = errors.Join(door.Close(), conn.Close())
			}()
			go func() {
				_, channels, requests, err := ssh.NewServerConn(conn, config)
				if err != nil {
					return
				}
				go ssh.DiscardRequests(requests)
				for c := range channels {
					if ch, asks, err := c.Accept(); err == nil {
						go execute(ch, asks, filepath.Dir(seed))
					}
				}
			}()
		}
	}()
	return nil
}

// execute runs the command of a session. Its home is below dir.
func execute(ch ssh.Channel, asks <-chan *ssh.Request, dir string) {
	defer ch.Close()
	for r := range asks {
		_ = r.Reply(r.Type == "exec", nil)
		if r.Type != "exec" {
			continue
		}
		var line struct{ Text string }
		if ssh.Unmarshal(r.Payload, &line) != nil {
			return
		}
		cmd := exec.Command("/bin/sh", "-c", line.Text)
		cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_CACHE_HOME=")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = ch, ch, ch.Stderr()
		status := struct{ Code uint32 }{}
		if cmd.Run() != nil {
			status.Code = 1
		}
		_, _ = ch.SendRequest("exit-status", false, ssh.Marshal(status))
		return
	}
}

// fakeGuest is a part of a fake guest whose disk has a name, and its maker.
func fakeGuest(t *testing.T, name string) (*Maker, *study.Part) {
	t.Helper()
	m := openMaker(t)
	dir := t.TempDir()
	script := fmt.Sprintf("#!/bin/sh\nexec %s play-qemu \"$@\"\n", os.Args[0])
	if err := os.WriteFile(filepath.Join(dir, "qemu-system-x86_64"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	disk := fakeDisk(t, dir, name)
	m.settled = filepath.Join(dir, "settled")
	if err := os.WriteFile(m.settled, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p := part(study.QEMU)
	p.Environment.Image, p.Environment.Memory, p.Environment.Accel = disk, 256<<20, []string{"tcg"}
	return m, p
}

// fakeDisk makes an image of a name.
func fakeDisk(t *testing.T, dir, name string) string {
	t.Helper()
	disk := filepath.Join(dir, name+".img")
	if err := os.WriteFile(disk, []byte("QFI\xfb"), 0o600); err != nil {
		t.Fatal(err)
	}
	return disk
}

// A guest from an image gets a seed, is reached by SSH with the seed's keys, and runs
// programs; nothing of it is left when it is closed.
func TestDiskGuest(t *testing.T) {
	m, p := fakeGuest(t, "good")
	e := makeEnv(t, m, p)
	tree := m.trees[false]
	out := &said{}
	q, err := e.Start(t.Context(), lab.Job{Argv: []string{os.Args[0], "play-work", "waits"}, WaitsForStart: true, Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := q.Begin(); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "it works", func() bool { return len(out.lines(role.IterationLine)) > 1 })
	if ids, err := e.Threads(); err != nil || len(ids) != 1 {
		t.Errorf("threads %v, %v", ids, err)
	}
	if err := q.Stop(); err != nil || q.Err() != nil {
		t.Errorf("stopped: %v, %v", err, q.Err())
	}
	if got := out.lines(role.ValueLine); len(got) != 3 || !strings.HasPrefix(got[0], role.ValueLine+guestBusy+" ") {
		t.Errorf("values from inside: %q", got)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if left := tree.Leftovers(); len(left) > 0 {
		t.Errorf("left %v", left)
	}
}

// An image that firmware boots prints where it likes: its silence does not say that KVM fails.
func TestSilentImage(t *testing.T) {
	m, p := fakeGuest(t, "mute")
	if err := unix.Access("/dev/kvm", unix.R_OK|unix.W_OK); err != nil {
		quelltest.Skip(t, "kvm", err)
	}
	p.Environment.Accel = []string{"kvm"}
	m.patience.console = time.Nanosecond
	if _, err := m.Make(t.Context(), p); err != nil {
		t.Error(err)
	}
}

// pipe is a network whose tap device is a pipe.
type pipe struct{}

func (pipe) Path() string       { return "" }
func (pipe) Adopt(string) error { return errors.New("no such interface") }
func (pipe) Tap() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString("hello")
	return r, errors.Join(err, w.Close())
}

// A guest on a network gets the tap device's file, and its address by the seed.
func TestDiskGuestOnANetwork(t *testing.T) {
	m, p := fakeGuest(t, "good")
	var mu sync.Mutex
	var console []string
	m.opt.Console = func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		console = append(console, line)
	}
	if _, err := m.MakeOn(t.Context(), p, pipe{}); err == nil || !strings.Contains(err.Error(), "address on network") {
		t.Errorf("without an address: %v", err)
	}
	p.Environment.Network, p.Address = "lan", "10.77.1.2/16"
	e, err := m.MakeOn(t.Context(), p, pipe{})
	if err != nil {
		t.Fatal(err)
	}
	// What it prints comes another way than its SSH.
	quelltest.Until(t, "it says what its tap says", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(console, `its tap says "hello"`)
	})
	text, err := os.ReadFile(filepath.Join(e.(*qemuGuest).dir, "seed", "network-config"))
	const want = `{"ethernets":{"control":{"dhcp4":true,"match":{"macaddress":"52:54:00:00:00:01"},"set-name":"control"},` +
		`"study":{"addresses":["10.77.1.2/16"],"match":{"macaddress":"52:54:0a:4d:01:02"},"set-name":"study"}},"version":2}` + "\n"
	if string(text) != want || err != nil {
		t.Errorf("%s%v\nwant %s", text, err, want)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// QEMU's command line for a guest from an image.
func TestDiskSpec(t *testing.T) {
	e := &study.Environment{CPUs: 2, Memory: 1 << 30}
	on := netip.MustParsePrefix("10.77.1.2/16")
	for _, c := range []struct {
		name, accel string
		image       image.Image
		on          netip.Prefix
		want        []string
		not         []string
	}{
		{"its own kernel", "tcg", image.Image{Disk: "/i/disk.img", Format: "raw", Kernel: "/i/vmlinuz", Initrd: "/i/initrd.img"}, netip.Prefix{},
			[]string{"-kernel /i/vmlinuz -initrd /i/initrd.img", "root=/dev/vda1", "tcg,thread=multi", "-smp 2,", "-m 1024", "snapshot=on", "-device virtio-net-pci,netdev=net,romfile= "}, []string{"tap"}},
		{"on a network", "tcg", image.Image{Disk: "/i/disk.img", Format: "raw", Kernel: "/i/vmlinuz", Initrd: "/i/initrd.img"}, on,
			[]string{"-device virtio-net-pci,netdev=net,romfile=,mac=52:54:00:00:00:01 ", "-netdev tap,id=link,fd=3 -device virtio-net-pci,netdev=link,romfile=,mac=52:54:0a:4d:01:02"}, nil},
		{"as clouds have them", "kvm", image.Image{Disk: "/i/a,b.qcow2", Format: "qcow2"}, netip.Prefix{},
			[]string{"file=/i/a,,b.qcow2,if=none,id=drive0,format=qcow2,snapshot=on", "-accel kvm", "label=cidata", "hostfwd=tcp:127.0.0.1:0-:22"}, []string{"-kernel", "-append", "-initrd"}},
	} {
		cmd, err := diskSpec(e, c.image, c.accel, "/scratch", "/scratch/seed", c.on).Command(t.Context())
		if err != nil {
			quelltest.Skip(t, "qemu-system-x86_64", err)
		}
		line := strings.Join(cmd.Args, " ")
		for _, w := range c.want {
			if !strings.Contains(line, w) {
				t.Errorf("%s: %s\nhas no %q", c.name, line, w)
			}
		}
		for _, w := range c.not {
			if strings.Contains(line, w) {
				t.Errorf("%s: %s\nhas %q", c.name, line, w)
			}
		}
	}
}
