package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quell-dev/quell/internal/agent"
	"github.com/quell-dev/quell/internal/agent/config"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// The machine-wide signals, counted by the shipped agent on a machine without any task.
func TestSignalsOfTheMachine(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, quelltest.Root)
	dir := state(t)
	d := start(t, dir, settings(dir, "signals=probe,steal", "sampling.duration=300ms", "sampling.period=300ms", "tick=50ms", "record="+dir+"/trace.csv")...)
	s, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	counted := map[sample.SignalName]bool{}
	for _, sig := range s.Signals {
		counted[sig.Signal] = sig.OK
		if !sig.OK && (sig.Signal != sample.Steal || !strings.Contains(sig.Reason, "not a virtual machine")) {
			t.Errorf("%+v", sig)
		}
	}
	quelltest.Until(t, "three windows are over", quelltest.Paced(func() bool {
		s, err := d.Status(t.Context())
		return err == nil && s.Intervals >= 3
	}))
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	f, err := os.Open(dir + "/trace.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	of := map[sample.SignalName]int{}
	r, err := trace.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for {
		var s sample.Sample
		if err := r.Read(&s); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		if s.Signal == sample.Probe && s.Cost != s.Cost && !strings.HasPrefix(string(s.Task), "(cache") {
			continue // a suspect's usage, for a replay
		}
		of[s.Signal]++
		if s.Signal == sample.Probe && !(s.Cost > 1e-10 && s.Cost < 1e-4 && strings.HasPrefix(string(s.Task), "(cache")) ||
			s.Signal == sample.Steal && (s.Cost < 0 || s.Task != "(machine)") {
			t.Errorf("%+v", s)
		}
	}
	for sig, yes := range counted {
		if n := of[sig]; yes != (n >= 3) {
			t.Errorf("%d samples of %s, which is counted: %v", n, sig, yes)
		}
	}
}

// What an agent recorded is there after it was killed, and after the next one has started.
func TestARecordingGoesOn(t *testing.T) {
	c := &config.Agent{Record: filepath.Join(t.TempDir(), "trace.csv")}
	for ts := range sample.Millis(3) {
		var p agent.Parts
		end, err := openTrace(c, &p)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		if err := p.Record(&sample.Sample{TS: ts, Task: "/a", Signal: sample.RunQ, Cost: 1, Coverage: 1}); err != nil {
			t.Fatal(err)
		}
		if all, err := trace.Load(c.Record); err != nil || len(all) != int(ts)+1 {
			t.Errorf("after run %d the trace has %d samples: %v", ts, len(all), err)
		}
	}
}
