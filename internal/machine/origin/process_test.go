package origin

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/quell-dev/quell/internal/machine/host"
)

func TestGuestName(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"qemu-system-x86_64", "-name", "web", "-m", "1G"}, "web"},
		{[]string{"/usr/bin/qemu-system-x86_64", "-name", "guest=web,debug-threads=on", "-S"}, "web"},
		{[]string{"kvm", "-name", "web,process=x"}, "web"},
		{[]string{"kvm", "-name", "debug-threads=on,guest=a,,b"}, "a,b"},
		{[]string{"kvm", "-name"}, ""},
		{[]string{"kvm", "-m", "-name"}, ""},
		{nil, ""},
	} {
		if got := guestName(c.args); got != c.want {
			t.Errorf("%q: %q, want %q", c.args, got, c.want)
		}
	}
	for exe, want := range map[string]bool{"/usr/bin/qemu-system-x86_64": true, "/usr/bin/qemu-system-arm (deleted)": true, "/usr/libexec/qemu-kvm": true, "/usr/bin/kvm": true,
		"/usr/bin/qemu-img": false, "/tmp/xqemu-system-x": false, "": false} {
		if isQEMU(exe) != want {
			t.Errorf("%q", exe)
		}
	}
}

// Only sockets that accept connections and that the processes have open count.
func TestListening(t *testing.T) {
	const table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1 0 100 0 0 10 0\n" +
		"   1: 0100007F:01BB 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 12 1 0 20 4 30 10 -1\n" +
		"   2: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 13 1 0 100 0 0 10 0\n" +
		"   3: short\n"
	if got := listening([]byte(table), map[string]bool{"11": true, "12": true}); !slices.Equal(got, []int{8080}) {
		t.Errorf("ports %v", got)
	}
}

// This process itself, on the kernel.
func TestOwnProcess(t *testing.T) {
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := processes(h, []int{os.Getpid(), 1 << 22})
	if port := l.Addr().(*net.TCPAddr).Port; !slices.Contains(p.Listens, port) || !p.Read || p.Command == "" || p.Guest != "" || p.Policy != Ordinary || p.Unread != "" {
		t.Errorf("port %d: %+v", port, p)
	}
	if p := processes(h, nil); p.Read || len(p.Listens) > 0 {
		t.Errorf("no process: %+v", p)
	}
}

// FuzzProcesses: a task chooses its arguments, and with its sockets the lines of the kernel's tables.
func FuzzProcesses(f *testing.F) {
	f.Add("qemu-system-x86_64\x00-name\x00guest=web,debug-threads=on\x00", "  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  0 0 4711 1\n", "4711")
	f.Add("-name\x00a,,b\x00-name", "x", "")
	f.Fuzz(func(t *testing.T, cmdline, table, inode string) {
		file := filepath.Join(t.TempDir(), "cmdline")
		if err := os.WriteFile(file, []byte(cmdline), 0o600); err != nil {
			t.Fatal(err)
		}
		args := arguments(file)
		guest := guestName(args)
		if !utf8.ValidString(guest) || strings.Contains(guest, "\x00") {
			t.Errorf("guest %q", guest)
		}
		for _, path := range []string{"/machine.slice/machine-qemu\\x2d1\\x2dweb.scope", "/user.slice/vm"} {
			if got := facts(Parse(path), nil, Process{Guest: guest}); strings.HasPrefix(got.Name, "/") || strings.HasPrefix(got.Job, "/") || len(got.Name) > longestName {
				t.Errorf("%q: %+v", guest, got)
			}
		}
		for _, port := range listening([]byte(table), map[string]bool{inode: true}) {
			if port < 0 || port > 65535 {
				t.Errorf("port %d", port)
			}
		}
	})
}
