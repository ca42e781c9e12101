package quelltest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A child is in the cgroup that was asked for, of either version, and answers.
// Both are gone when the test ends.
func TestAChildInACgroup(t *testing.T) {
	for _, c := range []struct{ capability, controller string }{{Cgroup2, ""}, {CgroupV1, "cpu"}} {
		t.Run(c.capability, func(t *testing.T) {
			Need(t, Root, c.capability)
			dir := filepath.Join(CgroupMount(t, c.controller), fmt.Sprintf("quell-test-kit-%d", os.Getpid()))
			ran := t.Run("inside", func(t *testing.T) {
				MakeCgroup(t, dir)
				child := StartChild(t, exec.Command("sh", "-c", "while read line; do echo heard $line; done; echo over"), dir)
				if got := child.Ask("one", 2); got != "heard one 2" {
					t.Errorf("it answers %q", got)
				}
				if procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs")); err != nil || strings.TrimSpace(string(procs)) != fmt.Sprint(child.PID) {
					t.Errorf("in the cgroup are %q, %v, want %d", procs, err, child.PID)
				}
				child.End()
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", child.PID)); !os.IsNotExist(err) {
					t.Errorf("ended, it is still there: %v", err)
				}
				StartChild(t, exec.Command("sleep", "1000"), dir) // ends when the test does
			})
			if _, err := os.Stat(dir); ran && !os.IsNotExist(err) {
				t.Errorf("the cgroup is left: %v", err)
			}
		})
	}
}

// Two namespaces are connected by their link only.
func TestNetsAreLinked(t *testing.T) {
	Need(t, Root, "ip", "tc", "nsenter")
	here, far := NewNet(t), NewNet(t)
	here.Link("a0", far, "b0", "10.74.0")
	here.Shape("a0", "20mbit")
	for n, want := range map[*Net]string{here: "10.74.0.1/24", far: "10.74.0.2/24"} {
		out, err := n.Command("ip", "-brief", "-4", "addr").CombinedOutput()
		if err != nil || strings.Count(string(out), "\n") != 2 || !strings.Contains(string(out), want) {
			t.Errorf("%v, it has\n%s, want lo and %s", err, out, want)
		}
	}
	if out, err := here.Command("tc", "qdisc", "show", "dev", "a0").CombinedOutput(); err != nil || !strings.Contains(string(out), "tbf") || !strings.Contains(string(out), "20Mbit") {
		t.Errorf("%v, its queue is %s", err, out)
	}
}
