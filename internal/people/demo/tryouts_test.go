//go:build tryouts

package demo

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/lab/workload"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// tryout is a task of docs/tryouts.md: the commands of its block, and what the output must match.
type tryout struct{ title, commands, prints string }

var (
	tryoutTask   = regexp.MustCompile(`(?m)^## \d+\. (.*)$`)
	tryoutBlock  = regexp.MustCompile("(?s)```sh\n(.*?)```")
	tryoutPrints = regexp.MustCompile(`<!-- prints: (.*) -->`)
)

func tryouts(t *testing.T) (all []tryout) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/tryouts.md")
	if err != nil {
		t.Fatal(err)
	}
	heads := tryoutTask.FindAllSubmatchIndex(text, -1)
	for i, h := range heads {
		end := len(text)
		if i+1 < len(heads) {
			end = heads[i+1][0]
		}
		part := string(text[h[1]:end])
		block, prints := tryoutBlock.FindStringSubmatch(part), tryoutPrints.FindStringSubmatch(part)
		title := string(text[h[2]:h[3]])
		if block == nil || prints == nil {
			t.Fatalf("%s: no commands, or nothing that they must print", title)
		}
		all = append(all, tryout{title, block[1], prints[1]})
	}
	return all
}

// A newcomer's ten tasks are done by the commands of the page, on the demo's tasks and its agent, which
// has found that one of them slows another one down.
func TestTryouts(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.EBPF, quelltest.TwoCPUs)
	all := tryouts(t)
	if len(all) != 10 {
		t.Fatalf("%d tasks", len(all))
	}
	bin := filepath.Dir(quelltest.Program(t, "quell"))
	agent := quelltest.Program(t, "quell-agent")
	dir := t.TempDir()
	study, err := os.ReadFile("../../../studies/smoke.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "smoke.yaml"), study, 0o644); err != nil {
		t.Fatal(err)
	}

	d := &demo{Options: Options{Channel: CPU, Mode: plan.On, Seed: 1, Agent: agent, Show: func(e Event) {
		if e.Of == 0 {
			t.Logf("%5.1fs %s", e.After.Seconds(), e.Text)
		}
	}}, began: time.Now(), beat: cpuBeat}
	if err := d.choosePair(); err != nil {
		t.Fatal(err)
	}
	tree, err := workload.OpenTree("quell-test-tryouts", workload.TreeOptions{Weight: weight})
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{demo: d, tree: tree, result: &Result{Channel: CPU, Signal: d.signal(CPU), Mode: d.Mode}, procs: map[string]*workload.Proc{}}
	t.Cleanup(func() {
		var err error
		if s.daemon != nil {
			err = errors.Join(s.daemon.stop(), s.checkQuota())
		}
		if err := errors.Join(err, tree.Close()); err != nil || len(s.left())+len(s.result.LeftBehind) > 0 {
			t.Errorf("left behind: %q %q, %v", s.left(), s.result.LeftBehind, err)
		}
	})
	if err := s.start(CPU); err != nil {
		t.Fatal(err)
	}
	if s.daemon, err = d.startAgent(t.Context(), tree, s.result.Signal); err != nil {
		t.Fatal(err)
	}
	if err := s.play(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.result.Named != s.result.Antagonist {
		t.Fatalf("the agent named %q", s.result.Named)
	}
	// What the newcomer does is not to meet what the agent does.
	if _, err := s.daemon.client.Command(t.Context(), command.Command{Why: "tryouts", Enforcement: &command.Enforcement{Mode: "advise"}}); err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		began := time.Now()
		cmd := exec.CommandContext(t.Context(), "bash", "-euc", x.commands)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "QUELL_SOCKET="+child.Socket(s.daemon.dir), "LANG=C.UTF-8")
		out, err := cmd.CombinedOutput()
		if err != nil || !regexp.MustCompile(x.prints).Match(out) {
			t.Errorf("%s: want %s; %v\n%s%s", x.title, x.prints, err, strings.TrimSpace(x.commands)+"\n", out)
		}
		t.Logf("%s (%s)", x.title, time.Since(began).Round(100*time.Millisecond))
	}
}
