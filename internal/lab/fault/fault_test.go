package main

import (
	"os"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

func TestMain(m *testing.M) { quelltest.Main(m) }

// The same as make lab-fault with only a few kills.
func TestKilledAndDisturbed(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.TwoCPUs)
	if err := inject(t.Context(), options{quell: quelltest.Program(t, "quell"), kills: 3, seed: 1, scenes: true}); err != nil {
		t.Error(err)
	}
}

// left finds a process that lives and a knob with another value.
func TestLeftIsSeen(t *testing.T) {
	me, err := stat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	living, reused := child{os.Getpid(), me.Name, me.Start}, child{os.Getpid(), me.Name, me.Start - 1}
	s := &testbed{knob: "no such value"}
	if all := s.left(1<<30, []child{living, reused}); len(all) != 2 {
		t.Errorf("%q, want a process and the knob", all)
	}
}
