package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// started starts a shell script that writes "ready" to a log, and waits for that.
func started(t *testing.T, log, script string) *Process {
	t.Helper()
	p, err := Start(exec.Command("sh", "-c", script), Options{Name: "the script", Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Until(t.Context(), time.Minute, "begin", func() (bool, error) {
		text, err := os.ReadFile(log)
		return strings.Contains(string(text), "ready"), err
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// The thread that called Start may end before the daemon, which must not notice.
func TestTheCallersThreadEnds(t *testing.T) {
	in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "log")
	if err := syscall.Mkfifo(in, 0o600); err != nil {
		t.Fatal(err)
	}
	var p *Process
	ended := make(chan string)
	host.OwnThread(func() {
		p = started(t, out, "echo ready; read word <"+in+"; echo heard $word")
		ended <- fmt.Sprintf("/proc/self/task/%d", syscall.Gettid())
	})
	thread := <-ended
	quelltest.Until(t, "the thread has ended", func() bool {
		_, err := os.Stat(thread)
		return err != nil
	})
	f, err := os.OpenFile(in, os.O_RDWR, 0) // opens even if the daemon has gone
	if err == nil {
		defer f.Close()
		_, err = f.WriteString("it\n")
	}
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if text := p.Tail(); p.err != nil || text != "ready | heard it" {
		t.Errorf("%v, its log: %s", p.err, text)
	}
}

func TestStop(t *testing.T) {
	const loop = "; echo ready; while :; do sleep 0.01; done"
	for name, c := range map[string]struct{ script, want string }{
		"exits with 0":           {"trap 'exit 0' TERM" + loop, ""},
		"exits with an error":    {"trap 'echo cannot write >&2; exit 3' TERM" + loop, "stop the script: exit status 3; its log: ready | cannot write"},
		"hangs, and writes more": {"trap '' TERM; trap 'echo here; exit 2' QUIT" + loop, "exit status 2; its log: ready | here"},
	} {
		t.Run(name, func(t *testing.T) {
			p := started(t, filepath.Join(t.TempDir(), "log"), c.script)
			patience := time.Minute
			if strings.HasPrefix(name, "hangs") {
				patience = time.Millisecond
			}
			err := p.Stop(patience)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if again := p.Stop(time.Minute); (again == nil) != (err == nil) {
				t.Errorf("stopped twice: %v", again)
			}
		})
	}
}

func TestUntil(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, []byte("old\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := started(t, log, "echo ready; exec sleep 1000")
	never := func() (bool, error) { return false, nil }
	if err := p.Until(t.Context(), time.Millisecond, "fly", never); !errors.Is(err, ErrSlow) || !strings.Contains(err.Error(), "wait for the script to fly") {
		t.Errorf("%v", err)
	}
	if err := p.Until(t.Context(), time.Minute, "fly", func() (bool, error) { return false, syscall.EIO }); !errors.Is(err, syscall.EIO) {
		t.Errorf("%v", err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if err := p.Until(t.Context(), time.Minute, "fly", never); err == nil || !strings.Contains(err.Error(), "it ended: signal: killed") {
		t.Errorf("%v", err)
	}
	if p.Tail() != "ready" {
		t.Errorf("the log has %q; want it without what was there before", p.Tail())
	}
}

// The agent accepts the configurations that are written for it, for any folder.
func TestAgentsConfiguration(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `a "b"`)
	cmd, err := Agent("quell-agent", dir, Recorder(filepath.Join(dir, "trace.csv"), []string{"runq", "cpi"}, 500*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(cmd.Args[2], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.StateDir != dir || c.Socket != Socket(dir) || c.Enforce.Mode != "off" || c.Sampling.Duration != c.Sampling.Period || c.Sampling.Period != 500*time.Millisecond || c.Sampling.MaxOverhead != 0 {
		t.Errorf("%+v", c)
	}
}

func TestEnd(t *testing.T) {
	if got := End([]byte("a\n" + strings.Repeat("b", 598) + "\nc\n")); got != "…"+strings.Repeat("b", 598)+" | c" {
		t.Errorf("%q", got)
	}
}
