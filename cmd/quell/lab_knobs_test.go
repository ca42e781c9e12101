package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/host"
	"github.com/quell-dev/quell/internal/lab/study"
)

// What a study changes of the machine holds for its time, two at once are
// refused, and a value that cannot be had changes nothing.
func TestKnobsHoldForAStudysTime(t *testing.T) {
	root, journal := t.TempDir(), filepath.Join(t.TempDir(), "journal")
	const knob = "/proc/sys/vm/stat_interval"
	for name, text := range map[string]string{knob: "1\n", "/proc/self/mountinfo": "1 0 0:1 / /proc rw - proc proc rw\n", "/proc/sys/kernel/random/boot_id": "here\n"} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	holds := func() string {
		text, err := os.ReadFile(filepath.Join(root, knob))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	h, err := host.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	s := &study.Study{Preconditions: study.Preconditions{Set: map[string]string{"stat_interval": "2"}}}
	undo, err := setKnobs(journal, h, s, time.Now)
	if err != nil || holds() != "2" {
		t.Fatalf("it holds %s, %v", holds(), err)
	}
	if _, err := setKnobs(journal, h, s, time.Now); err == nil || !strings.Contains(err.Error(), "another lab") {
		t.Errorf("a second study: %v", err)
	}
	// It is of a lab that runs: restore leaves it.
	if all, err := restoreKnobs(journal, h, time.Now()); len(all) > 0 || err != nil || holds() != "2" {
		t.Errorf("restore: %v, %v, it holds %s", all, err, holds())
	}
	if err := undo(); err != nil || holds() != "1" {
		t.Errorf("it holds %s, %v", holds(), err)
	}
	s.Preconditions.Set["governor"] = "performance" // there is none
	if _, err := setKnobs(journal, h, s, time.Now); err == nil || holds() != "1" {
		t.Errorf("it holds %s, %v", holds(), err)
	}
}
