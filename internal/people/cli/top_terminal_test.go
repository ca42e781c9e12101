package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// terminal is a pane of tmux, in a server of its own.
type terminal struct {
	t      *testing.T
	server string
}

// newTerminal runs a command line of the shipped quell in a terminal of a size. When quell ends,
// the pane shows its exit code.
func newTerminal(t *testing.T, width, height int, socket, args string) *terminal {
	t.Helper()
	quelltest.Need(t, "tmux")
	program := shippedQuell.build(t)
	x := &terminal{t, filepath.Join(t.TempDir(), "tmux")}
	shell := fmt.Sprintf("%s --socket %s %s; echo exit $?; exec sleep 1000", program, socket, args)
	cmd := exec.Command("tmux", "-S", x.server, "-f", "/dev/null", "-u", "new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), shell)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "TERM=xterm-256color", "SHELL=/bin/sh", "HOME=" + t.TempDir()}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v: %s", err, out)
	}
	t.Cleanup(func() { x.tmux("kill-server") })
	return x
}

func (x *terminal) tmux(args ...string) string {
	x.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", x.server}, args...)...).CombinedOutput()
	if err != nil {
		x.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// shows waits until the terminal shows each of the texts.
func (x *terminal) shows(texts ...string) {
	x.t.Helper()
	screen := ""
	defer func() {
		if x.t.Failed() {
			x.t.Logf("the terminal shows\n%s", screen)
		}
	}()
	for _, text := range texts {
		quelltest.Until(x.t, "the terminal shows "+text, quelltest.Paced(func() bool {
			screen = x.tmux("capture-pane", "-p")
			return strings.Contains(screen, text)
		}))
	}
}

// keys presses keys, as tmux names them, or types texts.
func (x *terminal) keys(keys ...string) {
	x.t.Helper()
	x.tmux(append([]string{"send-keys"}, keys...)...)
}

// The screen in a real terminal: a list, a detail, a cap that is asked before it is sent, and the
// end, after which the terminal is as it was.
func TestTopInATerminal(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {60, 20}} {
		t.Run(fmt.Sprintf("%dx%d", size[0], size[1]), func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			x := newTerminal(t, size[0], size[1], f.socket, "top")
			x.shows("node-3", "1 incident open", "> ", "WORST", "q quit")
			x.keys("/", "encode")
			x.shows("filter: encode_")
			x.keys("Enter", "Enter")
			x.shows("task        /kubepods/besteffort/pod4712/encode", "CPU-S/S", "Esc back")
			x.keys("c")
			x.shows("Cap its CPU usage", "limit     0.1_")
			x.keys("Enter", "Enter", "too loud")
			x.keys("Enter")
			x.shows("reason: too loud", "y sends it")
			commands := func() (sent []string) {
				for _, r := range f.requests() {
					if strings.HasPrefix(r, "POST") {
						sent = append(sent, r)
					}
				}
				return sent
			}
			if sent := commands(); len(sent) > 0 {
				t.Errorf("sent before it was confirmed: %q", sent)
			}
			x.keys("y")
			x.shows("it is done")
			if sent := commands(); len(sent) != 1 || !strings.Contains(sent[0], `"too loud"`) || !strings.Contains(sent[0], `"rate":0.1`) {
				t.Errorf("sent %q", sent)
			}
			x.keys("?")
			x.shows("Nothing is sent before")
			x.keys("x")
			x.keys("q")
			x.shows("exit 0")
			if screen := x.tmux("capture-pane", "-p"); strings.Contains(screen, "node-3") {
				t.Errorf("after its end the screen is left behind:\n%s", screen)
			}
		})
	}
}

// Without an agent the screen says so, and the exit code, too.
func TestTopWithoutAnAgent(t *testing.T) {
	t.Parallel()
	x := newTerminal(t, 80, 24, "/nowhere/agent.sock", "top")
	x.shows("the agent does not answer", "what to do: start quell-agent")
	x.keys("q")
	x.shows("reach the agent at /nowhere/agent.sock", "exit 2")
}

// What was recorded is read from the log of incidents without an agent.
func TestTopOfThePast(t *testing.T) {
	t.Parallel()
	x := newTerminal(t, 80, 24, "/nowhere/agent.sock", "top --at 2025-11-21T12:10:00Z --state-dir "+incidentLog(t, ""))
	x.shows("recorded at 2025-11-21", "redis", "encode")
	x.keys("c")
	x.shows("commands are for the present")
	x.keys("Right", "Left", "C-c")
	x.shows("exit 0")
}

// The real agent carries out what is asked in the screen.
func TestTopCapsByTheRealAgent(t *testing.T) {
	shippedQuell.build(t) // before any workload runs
	tree, env, _, stop := startAgent(t)
	free := limit(t, tree, "loud")
	x := newTerminal(t, 100, 30, env["QUELL_SOCKET"], "top --sort name")
	x.shows("/loud", "/victim")
	x.keys("/", "loud", "Enter", "c", "C-u", "0.2")
	x.keys("Enter", "Enter", "the test wants it")
	x.keys("Enter")
	x.shows("y sends it")
	x.keys("y")
	quelltest.Until(t, "loud is capped", quelltest.Paced(func() bool { return limit(t, tree, "loud") != free }))
	x.shows("capped")
	x.keys("u", "enough")
	x.keys("Enter")
	x.shows("y sends it")
	x.keys("y")
	quelltest.Until(t, "loud is not capped", quelltest.Paced(func() bool { return limit(t, tree, "loud") == free }))
	stop()
	x.shows("the agent does not answer", "/loud")
	x.keys("q")
	x.shows("exit 0")
}

// A time is one of the past.
func TestTopAtAWrongTime(t *testing.T) {
	for _, args := range [][]string{{"--at", "yesterday"}, {"--at", "12:00", "--once"}, {"--trace", "x.csv"}} {
		if r := quell(t, map[string]string{}, append([]string{"top"}, args...)...); r.Code != 2 || !strings.Contains(r.Err, "--at") {
			t.Errorf("%q: exit code %d: %s", args, r.Code, r.Err)
		}
	}
}
