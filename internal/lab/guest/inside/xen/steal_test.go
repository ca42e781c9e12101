//go:build inguest

package xen

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/core/detect"
	"github.com/quell-dev/quell/internal/core/pipeline"
	"github.com/quell-dev/quell/internal/core/plan"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/lab"
	tools "github.com/quell-dev/quell/internal/lab/xen"
	"github.com/quell-dev/quell/internal/machine/counter"
	"github.com/quell-dev/quell/internal/machine/host"
)

// feltLine is the prefix of a guest's line for a window: stolen time per CPU time, and
// CPU time per second.
const feltLine = "felt"

// feel is a guest that computes and prints, for each second, the value of quell's signal
// steal.
func feel() error {
	waiting()
	h, err := host.Open("/")
	if err != nil {
		return err
	}
	s, err := counter.OpenSteal(h)
	if err != nil {
		return err
	}
	for {
		began := time.Now()
		before, err := h.CPUTimes()
		if err := errors.Join(err, s.Start()); err != nil {
			return err
		}
		for time.Since(began) < time.Second {
		}
		err = s.Stop()
		after, err2 := h.CPUTimes()
		if err := errors.Join(err, err2); err != nil {
			return err
		}
		// Relative to the time that the kernel has accounted: it loses ticks while the
		// emulation itself has no CPU.
		used := after.Total.Busy() - before.Total.Busy()
		noted := used + after.Total.Idle - before.Total.Idle + after.Total.Steal - before.Total.Steal
		cpu := used.Seconds() / noted.Seconds()
		s.MachineReadings(func(_ string, _ sample.Set, r counter.Reading) { fmt.Println(feltLine, r.Cost, cpu) })
	}
}

// felt is a guest's measurement of a window.
type felt struct{ cost, cpu float64 }

// listener passes on a guest's measurements.
type listener chan felt

// Write implements io.Writer, of whole lines.
func (l listener) Write(p []byte) (int, error) {
	var f felt
	if words, ok := strings.CutPrefix(string(p), feltLine+" "); ok {
		if _, err := fmt.Sscan(words, &f.cost, &f.cpu); err == nil {
			l <- f
		}
	}
	return len(p), nil
}

// next waits for n windows. The first domain is idle meanwhile.
func (l listener) next(t *testing.T, n int) (all []felt) {
	t.Helper()
	for range n {
		select {
		case f := <-l:
			all = append(all, f)
		case <-time.After(time.Minute):
			t.Fatal("the guest says nothing")
		}
	}
	return all
}

// stolen runs a guest together with a hog in the first domain, on the only CPU. The
// guest's signal steal shows stolen time, and the finding is an external cause. The
// guest's own busy task is a suspect and is not accused.
func stolen(t *testing.T, x tools.Tools, e lab.Environment) {
	const quiet, loud = 6, 10
	setShare(t, x, "g1", 512, 0)
	if err := errors.Join(e.Pin([]sample.Set{sample.SetOf(0)}), x.Pin(t.Context(), "Domain-0", 0, "0")); err != nil {
		t.Fatal(err)
	}
	said := make(listener, 600)
	start(t, e, "feel", said)
	// The first domain is still busy with starting it.
	for tries := 30; said.next(t, 1)[0].cost > 0.1; tries-- {
		if tries == 0 {
			t.Fatal("the first domain is never idle")
		}
	}
	before := said.next(t, quiet)
	hog(t)
	said.next(t, 1) // the window in which the hog began
	beside := said.next(t, loud)
	t.Logf("figure: stolen s/CPU-s in seconds alone: %.3f; with a hog in the first domain: %.3f", costs(before), costs(beside))
	sum := 0.0
	for _, f := range beside {
		sum += f.cost
	}
	if mean := sum / loud; !(mean > 0.2) {
		t.Errorf("with the hog %.3f s/CPU-s are stolen", mean)
	}
	judged(t, before, beside)
}

// judged checks the findings for these windows, judged as the agent does (judgeOverall).
// The spec is learnt from the windows before the hog.
func judged(t *testing.T, before, beside []felt) {
	t.Helper()
	p, err := detect.Paper(detect.Quell)
	if err != nil {
		t.Fatal(err)
	}
	sig, _ := sample.LookupSignal(sample.Steal)
	learning := spec.OwnHistory()
	learning.MinSamples = len(before)
	learnt := spec.NewHistory(learning)
	machine := sample.Task{Name: "(machine)", Job: "(steal)", Class: sample.Batch, NeverCap: true, Key: sample.TaskKey{FirstSeen: 1}}
	busy := sample.Task{Name: "/feel", Job: "feel", Class: sample.Batch, Key: sample.TaskKey{FirstSeen: 2}}
	key := spec.Key{Job: machine.Job, Signal: sig.Name, Variant: counter.StealVariant}
	for i, f := range before {
		learnt.Add(key, machine.Key, sample.Millis(i+1)*1000, f.cpu, f.cost, 0)
	}
	usual, _ := learnt.Lookup(key, sample.Millis(len(before))*1000)
	loop := pipeline.New(pipeline.Config{Machine: "vm", Detect: p, Policy: plan.Paper()})
	judged := &pipeline.Subject{Task: machine, Key: key, Spec: usual}
	suspect := &pipeline.Subject{Task: busy}
	var findings []pipeline.Finding
	for i, f := range append(before, beside...) {
		at := sample.Millis(i+1) * 1000
		iv := loop.Begin(sig, at, time.Second)
		iv.Add(judged, pipeline.Measurement{Cost: f.cost, CPU: f.cpu})
		iv.Add(suspect, pipeline.Measurement{Cost: math.NaN(), CPU: f.cpu})
		iv.End(at)
		for loop.Analyse(at) {
		}
		for {
			r, more := loop.Ready()
			if !more {
				break
			}
			if i < len(before) && len(r.Findings) > 0 {
				t.Errorf("before the hog: %+v", r.Findings)
			}
			findings = append(findings, r.Findings...)
		}
	}
	if len(findings) == 0 {
		t.Fatalf("nothing is found of %+v, usually %+v", beside, usual)
	}
	for _, f := range findings {
		if f.Kind != detect.Steal || f.Victim.Name != machine.Name || len(f.Suspects) != 0 || f.Antagonists != 0 {
			t.Errorf("found %+v, want stolen time and no task accused", f)
		}
	}
	t.Logf("found: %s of %s, cost %.3f over %.3f, %d suspects", findings[0].Kind, findings[0].Victim.Name, findings[0].Cost, findings[0].Threshold, len(findings[0].Suspects))
}

func costs(all []felt) (c []float64) {
	for _, f := range all {
		c = append(c, f.cost)
	}
	return c
}

// hog computes in the first domain until the test ends.
func hog(t *testing.T) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "burn")
	cmd.Env = append(os.Environ(), calm)
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error is the kill
	})
	if _, err := fmt.Fprintln(in); err != nil {
		t.Fatal(err)
	}
}
