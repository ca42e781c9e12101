package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/daemon"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/machine/enforce"
	"github.com/quell-dev/quell/internal/machine/host"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// exclusively are the settings of an agent as it is shipped: the only one of the machine.
func exclusively(dir, registry string) []string {
	return settings(dir, "exclusive=true", "journals="+registry)
}

// Two agents with two state directories undid each other's caps, and left one for ever: each
// took the other's value for the original. The second is refused, also in other mount, pid,
// network and IPC namespaces, where it sees nothing of the first but the kernel's cgroups.
func TestSecondAgentOfTheMachineIsRefused(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	quelltest.Alone(t, "cgroups") // an agent that is the only one of the machine
	first, second := state(t), state(t)
	registry := filepath.Join(first, "journals")
	d := start(t, first, exclusively(first, registry)...)
	refused := func(what string, r ran) {
		t.Helper()
		for _, want := range []string{"the machine's cgroups are in use", "what to do: stop the other quell-agent"} {
			if r.code != daemon.ExitUsage || !strings.Contains(r.stderr, want) {
				t.Errorf("%s: %+v; want %q", what, r, want)
			}
		}
	}
	refused("another state directory", runAgent(t, exclusively(second, registry)...))

	cmd := agentCommand(context.Background(), t, exclusively(second, filepath.Join(second, "journals"))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS, Pdeathsig: unix.SIGKILL}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	refused("another container", ran{code: cmd.ProcessState.ExitCode(), stderr: stderr.String()})

	d.kill()
	start(t, second, exclusively(second, registry)...)
}

// The note of a journal with nothing left in it is removed while the journal is held: an agent that
// starts with it afterwards makes a note of its own, which must stay.
func TestForgetsAJournalWhileItIsHeld(t *testing.T) {
	h, err := host.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	did := newRestored(filepath.Join(t.TempDir(), "journal"))
	forgot := 0
	did.forget = func() error {
		forgot++
		if _, err := enforce.Open(did.Journal, h); !errors.Is(err, enforce.ErrLocked) {
			t.Errorf("another process may open it: %v", err)
		}
		return nil
	}
	if err := did.all(h); err != nil || forgot != 1 {
		t.Errorf("forgot %d times, %v", forgot, err)
	}
}

// The next agent, and restore, find what an agent with another state directory left.
func TestFindsWhatAnotherStateDirectoryLeft(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.CgroupV1)
	quelltest.Alone(t, "cgroups") // an agent that is the only one of the machine
	for _, how := range []string{"start", "restore", "restore --overdue"} {
		cg := newLimited(t, "foreign-"+strings.ReplaceAll(how, " ", ""), "40000", "wait")
		first, second := state(t), state(t)
		registry := filepath.Join(first, "journals")
		d := start(t, first, append(exclusively(first, registry), "--config", configFile(t, first, cg.path))...)
		d.cap(cg)
		if r := runAgent(t, append([]string{"restore"}, exclusively(second, registry)...)...); r.code != 0 || cg.quota() != "10000 100000" {
			t.Errorf("%s: with the agent running, restore: %+v, quota %s", how, r, cg.quota())
		}
		d.kill()
		switch how {
		case "start":
			next := start(t, second, exclusively(second, registry)...)
			if log := next.log.String(); !strings.Contains(log, "undid a cap that an agent with another state directory left") {
				t.Errorf("the log says nothing of it:\n%s", log)
			}
			next.kill()
		case "restore":
			r := runAgent(t, append([]string{"restore"}, exclusively(second, registry)...)...)
			if want := "journal " + first + "/state/journal: " + cg.path + ": restored"; r.code != 0 || !strings.Contains(r.stdout, want) {
				t.Errorf("restore: %+v; want %q", r, want)
			}
		default: // its lease has not expired
			code, did := restoreOverdue(t, exclusively(second, registry))
			if code != 0 || len(did.Others) != 1 || len(did.Others[0].InForce) != 1 || did.Others[0].InForce[0].Task != sample.TaskName(cg.path) || cg.quota() != "10000 100000" {
				text, _ := json.Marshal(did)
				t.Errorf("restore --overdue: exit %d, %s, quota %s", code, text, cg.quota())
			}
			continue
		}
		if got := cg.quota(); got != "40000 100000" {
			t.Errorf("%s: the quota is %s", how, got)
		}
		if r := runAgent(t, append([]string{"restore"}, exclusively(second, registry)...)...); r.code != 0 || r.stdout != "nothing to undo\n" {
			t.Errorf("%s: restore again: %+v", how, r)
		}
	}
}
