package xen

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// recorded are tools that answer with recorded output of Xen's tools, and record their
// command lines.
type recorded struct {
	t     *testing.T
	asked []string
	fail  string // the prefix of command lines that fail
	cfg   string // the input of xl create
}

func (r *recorded) run(_ context.Context, argv ...string) ([]byte, error) {
	line := strings.Join(argv, " ")
	r.asked = append(r.asked, line)
	if r.fail != "" && strings.HasPrefix(line, r.fail) {
		return nil, errors.New("no")
	}
	file := ""
	switch {
	case line == "xl list -l":
		file = "xl-list-l.json"
	case line == "xl info":
		file = "xl-info.txt"
	case strings.HasPrefix(line, "xl vcpu-list"):
		file = "xl-vcpu-list.txt"
	case strings.HasPrefix(line, "xl create"):
		text, err := os.ReadFile(argv[len(argv)-1])
		r.cfg = string(text)
		return nil, err
	case strings.HasPrefix(line, "xentrace"):
		text, err := io.ReadAll(open(r.t, "credit-smp1/xentrace-head.bin.gz"))
		if err != nil {
			return nil, err
		}
		return nil, os.WriteFile(argv[len(argv)-1], text, 0o600)
	case strings.HasPrefix(line, "xenstore read"):
		if len(r.asked) < 3 { // not there yet
			return nil, errors.New("couldn't read path")
		}
		return []byte("/dev/pts/1\n"), nil
	}
	if file == "" {
		return nil, nil
	}
	return io.ReadAll(open(r.t, "credit-smp1/"+file))
}

func TestTools(t *testing.T) {
	r := &recorded{t: t}
	tools, ctx := Tools{Run: r.run}, t.Context()
	id, err := tools.Create(ctx, Config{Name: "g2", Kernel: "/boot/vmlinux", Ramdisk: "/tmp/x", Command: `console=hvc0 -- a "b"`, Memory: 256, VCPUs: 1, Cap: 50, Vif: "/s"})
	if err != nil || id != 2 {
		t.Errorf("created %d, %v", id, err)
	}
	want := `name = "g2"
type = "pv"
kernel = "/boot/vmlinux"
ramdisk = "/tmp/x"
extra = "console=hvc0 -- a \"b\""
memory = 256
vcpus = 1
cap = 50
vif = [ "script=/s" ]
on_crash = "destroy"
on_reboot = "destroy"
`
	if r.cfg != want {
		t.Errorf("configuration:\n%s", r.cfg)
	}
	if _, err := tools.ID(ctx, "g3"); !errors.Is(err, ErrNoDomain) {
		t.Error(err)
	}
	r.asked = nil
	for _, err := range []error{tools.Pin(ctx, "g1", 0, "1"), tools.Pause(ctx, "g1", true), tools.Pause(ctx, "g1", false), tools.Destroy(ctx, "g1")} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(r.asked, "\n"); got != "xl vcpu-pin g1 0 1\nxl pause g1\nxl unpause g1\nxl destroy g1" {
		t.Errorf("asked:\n%s", got)
	}
	vcpus, err := tools.VCPUs(ctx, "g1")
	if err != nil || len(vcpus) != 3 {
		t.Errorf("%v, %v", vcpus, err)
	}
	recording, err := tools.Record(ctx)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := recording.Stop()
	if err != nil || len(trace.Domains) != 3 {
		t.Errorf("%+v, %v", trace, err)
	}
	r.asked = nil
	if tty, err := tools.ConsoleOf(ctx, 1); err != nil || tty != "/dev/pts/1" || len(r.asked) != 3 {
		t.Errorf("%q, %v after %d looks", tty, err, len(r.asked))
	}
}

// Errors name the failed operation; a domain that is gone counts as destroyed.
func TestToolsFail(t *testing.T) {
	ctx := t.Context()
	if err := (Tools{Run: (&recorded{t: t, fail: "xl destroy"}).run}).Destroy(ctx, "g1"); err == nil || !strings.Contains(err.Error(), "destroy g1: no") {
		t.Error(err)
	}
	if err := (Tools{Run: (&recorded{t: t, fail: "xl destroy"}).run}).Destroy(ctx, "g9"); err != nil {
		t.Error(err)
	}
	if _, err := (Tools{Run: (&recorded{t: t, fail: "xl create"}).run}).Create(ctx, Config{Name: "g1"}); err == nil || !strings.Contains(err.Error(), "create domain g1: no") {
		t.Error(err)
	}
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := (Tools{Run: (&recorded{t: t, fail: "xenstore"}).run}).ConsoleOf(cancelled, 1); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A lab that is killed while it records leaves no xentrace that goes on, and xentrace ends by
// itself, since it has to switch tracing off.
func TestTraceEndsWithTheLab(t *testing.T) {
	const lab = "QUELL_XEN_LAB"
	if os.Getenv(lab) != "" { // it is killed
		if _, err := (Tools{}).Record(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	dir := t.TempDir()
	said := filepath.Join(dir, "said")
	if err := syscall.Mkfifo(said, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"xl":       "echo 'cpu_mhz : 2000'",
		"xentrace": "exec 9>" + said + "\ntrap 'echo told >&9; exit' TERM\necho $$ >&9\nwhile :; do sleep 1 9>&- & wait $!; done",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), lab+"=1", "PATH="+dir+":"+os.Getenv("PATH"), "TMPDIR="+dir)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(said, os.O_RDWR, 0) // to write too, or it would wait for one that does
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(f)
	line, err := in.ReadString('\n')
	pid, bad := strconv.Atoi(strings.TrimSpace(line))
	if err := errors.Join(err, bad, cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	t.Cleanup(func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	if line, err := in.ReadString('\n'); line != "told\n" || err != nil {
		t.Errorf("xentrace said %q, %v", line, err)
	}
}
