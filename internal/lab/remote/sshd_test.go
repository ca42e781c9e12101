package remote_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/env"
	"github.com/quell-dev/quell/internal/lab/helper"
	"github.com/quell-dev/quell/internal/lab/remote"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const (
	// modeEnv makes this test binary the helper, as SSH starts it.
	modeEnv = "QUELL_REMOTE_TEST"
	// insideEnv says that the test runs in its own network namespace.
	insideEnv = "QUELL_REMOTE_INSIDE"
	// prefixEnv is the prefix for the helper's cgroups.
	prefixEnv = "QUELL_REMOTE_PREFIX"
)

// prefix is the prefix of the cgroups of a test's helpers.
func prefix(t testing.TB) string { return "quell-test-remote-" + t.Name() }

func TestMain(m *testing.M) {
	if os.Getenv(modeEnv) == "helper" {
		if err := helperMain(os.Args[1], os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	quelltest.Main(m)
}

func helperMain(word string, args []string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	switch word {
	case "lab-hold":
		return env.WaitAndExec(args)
	case "lab-remote":
		lease, err := time.ParseDuration(args[0])
		if err != nil {
			return err
		}
		m, err := env.Open(env.Options{Hold: []string{exe, "lab-hold"}, Agent: []string{exe, "lab-agent"}, Prefix: os.Getenv(prefixEnv)})
		if err != nil {
			return err
		}
		return helper.Serve(context.Background(), os.Stdin, os.Stdout, m, nil, exe, lease)
	}
	return fmt.Errorf("unknown word %q", word)
}

// apart runs the calling test again in its own network namespace, in parallel with other
// tests, and reports whether this is that run.
func apart(t testing.TB, flags ...string) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return true
	}
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, "sshd", "ssh-keygen", "ip", "nsenter", "unshare")
	if t, ok := t.(*testing.T); ok {
		t.Parallel()
	}
	name := t.Name()
	args := append([]string{"-test.run", "^" + name + "$", "-test.v", "-test.timeout", "5m"}, flags...)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("in a namespace:\n%s", out)
	if err != nil {
		t.Errorf("%v", err)
	}
	return false
}

// server is a host: a real sshd in its own namespaces.
type server struct {
	name   string
	link   string        // the interface to it
	behind time.Duration // how far its clock is behind; always negative, because a freshly booted machine cannot set its clock back
	cmd    *exec.Cmd
	log    bytes.Buffer
}

// farm is a set of hosts with the means to reach them.
type farm struct {
	t       testing.TB
	dir     string
	home    string // of all hosts' logins
	here    *quelltest.Net
	servers []*server
	inv     *remote.Inventory
}

// hosts starts n hosts. Their CLOCK_MONOTONIC values differ.
func hosts(t testing.TB, n int) *farm {
	t.Helper()
	f := &farm{t: t, dir: t.TempDir(), here: quelltest.OwnNet(t)}
	f.here.Run("ip link set lo up")
	var text strings.Builder
	text.WriteString("hosts:\n")
	for i := range n {
		s := &server{name: fmt.Sprintf("h%d", i), link: fmt.Sprintf("s%d", i), behind: time.Duration(-i*1000) * time.Second}
		f.servers = append(f.servers, s)
		address := fmt.Sprintf("10.76.%d.2", i)
		d := quelltest.NewSSHD(t, f.dir, s.name, address, modeEnv+"=helper", prefixEnv+"="+prefix(t), "XDG_CACHE_HOME="+f.dir+"/cache")
		f.home = d.Home
		f.start(s, i, d.Argv)
		fmt.Fprintf(&text, "  %s: {address: %s, key: %s, host_key: %q}\n", s.name, address, d.Login, d.HostKey)
	}
	var err error
	if f.inv, err = remote.ReadInventory("hosts.yaml", []byte(text.String())); err != nil {
		t.Fatal(err)
	}
	return f
}

// ready places the helper where a push would, on all hosts: they share a folder.
func (f *farm) ready() *farm {
	f.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		f.t.Fatal(err)
	}
	data, err := os.ReadFile(exe)
	if err != nil {
		f.t.Fatal(err)
	}
	dir := f.dir + "/cache/quell"
	err = os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.Symlink(exe, remote.HelperPath(dir, remote.HashOf(data)))
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return f
}

func (f *farm) start(s *server, i int, sshd []string) {
	f.t.Helper()
	net := quelltest.NewNet(f.t)
	f.here.Link(s.link, net, "e0", fmt.Sprintf("10.76.%d", i))
	s.cmd = net.Command(append([]string{"unshare", "--time", "--fork", "--kill-child", "--monotonic", fmt.Sprintf("%.0f", -s.behind.Seconds())}, sshd...)...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
		_ = s.cmd.Wait()
		if f.t.Failed() {
			f.t.Logf("sshd of %s:\n%s", s.name, s.log.String())
		}
	})
}

// dial connects to a host once it listens.
func (f *farm) dial(name string, lease time.Duration) *remote.Host {
	f.t.Helper()
	var h *remote.Host
	var last error
	quelltest.Until(f.t, "host "+name+" answers", func() bool {
		h, last = remote.Dial(context.Background(), f.inv, name, f.options(lease))
		if last != nil && !strings.Contains(last.Error(), "refused") {
			f.t.Fatalf("dial %s: %v", name, last)
		}
		return last == nil
	})
	f.t.Cleanup(func() {
		if err := h.Close(); err != nil {
			f.t.Logf("close %s: %v", name, err)
		}
	})
	return h
}

func (f *farm) options(lease time.Duration) remote.Options {
	return remote.Options{Helper: os.Args[0], Words: []string{"lab-remote"}, Self: []string{"{me}"}, Lease: lease, Patience: long}
}

// part is a part of a study that runs in a cgroup.
func part(role string) *study.Part {
	return &study.Part{Role: role, Environment: study.Environment{Name: "plain", Driver: study.Cgroup}}
}

// cgroups are those made by the test's helpers, in any hierarchy.
func cgroups(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, err := filepath.Glob(pattern + prefix(t) + "*")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// running are the processes that have a word in their command line.
func running(t testing.TB, word string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(word)) {
			all = append(all, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return all
}
