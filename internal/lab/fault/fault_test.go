package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/quell-dev/quell/internal/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// The same as make lab-fault with a few moments.
func TestKilledAndDisturbed(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.TwoCPUs, "go")
	quell := filepath.Join(t.TempDir(), "quell")
	build := exec.Command("go", "build", "-o", quell, "github.com/quell-dev/quell/cmd/quell")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := inject(t.Context(), options{quell: quell, kills: 4, seed: 1, scenes: true}); err != nil {
		t.Error(err)
	}
}

// What is left is found: a process that lives, a knob that is not as it was.
func TestLeftIsSeen(t *testing.T) {
	name, _, born := stat(os.Getpid())
	living, reused := child{os.Getpid(), name, born}, child{os.Getpid(), name, "an earlier one"}
	s := &stage{knob: "no such value"}
	if all := s.left(1<<30, []child{living, reused}); len(all) != 2 {
		t.Errorf("%q, want a process and the knob", all)
	}
}
