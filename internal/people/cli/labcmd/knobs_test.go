package labcmd

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/machine/host"
)

// TestKnobsHoldForAStudysTime: a study's changes of the machine last for the study. A
// second study at the same time is refused, and an unavailable value changes nothing.
func TestKnobsHoldForAStudysTime(t *testing.T) {
	root, journal := t.TempDir(), filepath.Join(t.TempDir(), "journal")
	const knob, other = "/proc/sys/vm/stat_interval", "/proc/sys/vm/swappiness"
	for name, text := range map[string]string{knob: "1\n", other: "60\n", "/proc/self/mountinfo": "1 0 0:1 / /proc rw - proc proc rw\n", "/proc/sys/kernel/random/boot_id": "here\n"} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	value := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	holds, swaps := func() string { return value(knob) }, func() string { return value(other) }
	h, err := host.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	s := &study.Study{Preconditions: study.Preconditions{Set: map[string]string{"stat_interval": "2"}}}
	of, err := setKnobs(journal, h, s, time.Now)
	if err != nil || holds() != "2" {
		t.Fatalf("it holds %s, %v", holds(), err)
	}
	if _, err := setKnobs(journal, h, s, time.Now); err == nil || !strings.Contains(err.Error(), "another lab") {
		t.Errorf("a second study: %v", err)
	}
	// It belongs to a running lab: restore leaves it.
	if all, err := restoreKnobs(journal, h, time.Now()); len(all) > 0 || err != nil || holds() != "2" {
		t.Errorf("restore: %v, %v, it holds %s", all, err, holds())
	}
	// A run may change more, for its own duration.
	undo, err := of.setForRun(map[string]string{"swappiness": "10"})
	if err != nil || swaps() != "10" {
		t.Fatalf("swappiness %s, %v", swaps(), err)
	}
	if err := undo(); err != nil || swaps() != "60" || holds() != "2" {
		t.Errorf("swappiness %s, stat_interval %s, %v", swaps(), holds(), err)
	}
	var lack *lab.LackError
	if _, err := of.setForRun(map[string]string{"governor": "performance", "swappiness": "10"}); !errors.As(err, &lack) || swaps() != "60" {
		t.Errorf("a knob that is not there: %v, swappiness %s", err, swaps())
	}
	if err := of.close(); err != nil || holds() != "1" {
		t.Errorf("it holds %s, %v", holds(), err)
	}
	s.Preconditions.Set["governor"] = "performance" // this machine has none
	if _, err := setKnobs(journal, h, s, time.Now); err == nil || holds() != "1" {
		t.Errorf("it holds %s, %v", holds(), err)
	}
}
