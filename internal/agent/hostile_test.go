package agent

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// Windows open at moments that do not follow from earlier ones: one in each period, at any
// moment of it.
func TestAWindowCannotBeForeseen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1).cost = func() float64 { return 1 }
		r.unforeseen(1)
		began := time.Now()
		var opened []time.Duration
		r.source.starting = func() { opened = append(opened, time.Since(began)) }
		r.start()
		defer r.stop()
		const periods = 300
		r.pass(periods*time.Minute + time.Second)
		if n := len(opened); n < periods-1 || n > periods+1 {
			t.Fatalf("%d windows in %d periods", n, periods)
		}
		var parts, after [6]int // of the period; and of the period after a window in its last sixth
		for i, at := range opened[1:] {
			part := int(at % time.Minute / (10 * time.Second))
			parts[part]++
			if opened[i]%time.Minute/(10*time.Second) == 2 {
				after[part]++
			}
		}
		for i := range parts {
			if parts[i] < 32 || parts[i] > 68 || after[i] < 1 || after[i] > 19 {
				t.Errorf("windows in the sixths of their periods: %d; after a window in the third: %d", parts, after)
			}
		}
	})
}

// What /metrics shows changes at the same moment of each period, and by the same number of
// windows, whenever the windows were.
func TestMetricsDoNotTellWindows(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1).cost = func() float64 { return 1 + 0.1*rand.Float64() }
		r.unforeseen(2)
		r.start()
		defer r.stop()
		at := map[time.Duration]int{}
		var last string
		windows := ""
		began := time.Now()
		for range 10 * 60 {
			r.pass(time.Second)
			text, got := r.scrape()
			if text == last {
				continue
			}
			if last != "" {
				at[time.Since(began)%time.Minute]++
			}
			last = text
			if n := got["quell_intervals_total"]; n == windows {
				t.Errorf("%s windows again after %s", n, time.Since(began))
			} else {
				windows = n
			}
		}
		if len(at) != 1 || windows == "" {
			t.Errorf("metrics changed at %v of a minute, %s windows", at, windows)
		}
	})
}

// A task that behaves whenever a window is open, by whatever means it knows that, is named.
func TestUsageOutsideWindowsIsAFinding(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		evader := r.add("/batch/evader-1", 2)
		evader.cost = func() float64 { evader.set(2); return math.NaN() } // the window is over
		r.source.starting = func() { evader.set(0.05) }
		steady, cron := r.add("/batch/steady-1", 1), r.add("/batch/cron-1", 0)
		steady.cost = func() float64 { return 1 }
		r.unforeseen(3)
		r.start()
		defer r.stop()
		for range 120 { // cron works for some seconds at the same time of each minute
			set := func(load float64) {
				if err := r.agent.ask(context.Background(), func() { cron.set(load) }); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(48 * time.Second)
			set(2)
			<-time.After(7 * time.Second)
			set(0)
			<-time.After(5 * time.Second)
		}
		problems := strings.Join(r.status().Degraded, "\n")
		if !strings.Contains(problems, "tasks that use more outside windows: /batch/evader-1: 0.0") || strings.Contains(problems, "steady") || strings.Contains(problems, "cron") {
			t.Errorf("problems: %s", problems)
		}
		if _, got := r.scrape(); got["quell_evading_tasks"] != "1" {
			t.Errorf("%s tasks", got["quell_evading_tasks"])
		}
		found := 0
		for _, e := range r.audit() {
			if e.What == "evasion" && e.Task == "/batch/evader-1" && e.Why != "" {
				found++
			}
		}
		if found != 1 {
			t.Errorf("%d entries in the audit log", found)
		}
	})
}

// An antagonist that is there all the time is tried, proven and capped with such windows too,
// about as soon as with windows at a fixed phase.
func TestUnforeseenWindowsDetect(t *testing.T) {
	for seed := range uint64(4) {
		bubble(t, func(t *testing.T) {
			r := newRig(t, newMachine(t), t.TempDir(), "enforce.mode=on")
			noisy := r.add("/batch/noisy-1", 0.05)
			r.add("/batch/quiet-1", 0.4)
			r.suffering(noisy)
			r.unforeseen(seed)
			r.start()
			defer r.stop()
			r.pass(20 * time.Minute)
			noisy.set(1.5)
			began := time.Now()
			if round := r.accused(40 * time.Minute); round.Suspect.Name != "/batch/noisy-1" {
				t.Errorf("seed %d: capped %s", seed, round.Suspect.Name)
			}
			t.Logf("seed %d: capped after %s", seed, time.Since(began))
		})
	}
}

// Windows are where they were if their moments are fixed, and metrics have the values of the
// present instant.
func TestFixedPhase(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t, newMachine(t), t.TempDir())
		r.add("/batch/job-1", 1)
		began := time.Now()
		r.source.starting = func() {
			if into := time.Since(began) % time.Minute; into != 0 {
				t.Errorf("a window opens %s after its period's beginning", into)
			}
		}
		r.start()
		defer r.stop()
		r.pass(10*time.Minute + 11*time.Second)
		if _, got := r.scrape(); got["quell_intervals_total"] != "11" {
			t.Errorf("%s windows", got["quell_intervals_total"])
		}
	})
}
