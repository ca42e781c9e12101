package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quell-dev/quell/internal/agent/logbook"
	"github.com/quell-dev/quell/internal/core/incident"
	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// progress does a transaction per 0.1 ms of CPU time and counts it in the progress
// file, or one per 0.5 ms while a file of that name with ".slow" appended exists. It
// pauses for half a millisecond after ten of them.
func progress() {
	name := os.Getenv("QUELL_PROGRESS")
	f, err := os.Create(name)
	if err != nil {
		panic(err)
	}
	var done uint64
	for {
		need := 100 * time.Microsecond
		if _, err := os.Stat(name + ".slow"); err == nil {
			need *= 5
		}
		for begin := processTime(); processTime()-begin < 10*need; {
		}
		done += 10
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, done), 0); err != nil {
			panic(err)
		}
		unix.Nanosleep(&unix.Timespec{Nsec: 5e5}, nil)
	}
}

func processTime() time.Duration {
	var t unix.Timespec
	unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// An agent that is killed while a task suffers, and restarted with the specs that it
// had saved, detects the suffering again (internal/agent tests how soon with the
// default times; these are a hundred and twentieth of them).
func TestDetectsAgainAfterAKill(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2)
	name := fmt.Sprintf("quell-test-again-%d", os.Getpid())
	cgroup := quelltest.MakeCgroup(t, filepath.Join(quelltest.CgroupMount(t, ""), name))
	dir := state(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{testMode + "=work", "QUELL_PROGRESS=" + dir + "/progress", "GOMAXPROCS=1"}
	// It gets a quarter of a CPU even under load: a task with less is not judged.
	if err := unix.Setpriority(unix.PRIO_PROCESS, quelltest.StartChild(t, cmd, cgroup).PID, -15); err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "rules: [{match: %q, job: test, class: latency-sensitive}]\n", "/"+name), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(settings(dir, "tick=10ms", "sampling.duration=85ms", "sampling.period=500ms", "detect.outlier_window=2500ms",
		"spec.min_samples=5", "spec.save=1s"), "--config", file)
	first := start(t, dir, args...)
	quelltest.Until(t, "there is a spec", quelltest.Paced(func() bool {
		tasks, err := first.Tasks(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(tasks) == 1 && len(tasks[0].Costs) == 1 && tasks[0].Costs[0].Spec.State == spec.Ready
	}))
	var saved time.Time
	quelltest.Until(t, "it is saved, twice to be sure", func() bool {
		info, err := os.Stat(dir + "/state/specs.json")
		if err != nil {
			return false
		}
		if saved.IsZero() {
			saved = info.ModTime()
		}
		return info.ModTime().After(saved)
	})
	if err := os.WriteFile(dir+"/progress.slow", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first.kill()

	began := time.Now()
	second := start(t, dir, args...)
	var all []incident.Record
	quelltest.Until(t, "the victim is found", quelltest.Paced(func() bool {
		found, err := second.Incidents(t.Context(), logbook.Query{Open: true})
		if err != nil {
			t.Fatal(err)
		}
		all = found.Incidents
		return len(all) > 0
	}))
	t.Logf("found %v after the start; a cost of %.3g ms, the spec says %.3g", time.Since(began).Round(10*time.Millisecond), 1e3*all[0].Cost, 1e3*all[0].SpecMean)
	if string(all[0].Victim.Name) != "/"+name {
		t.Errorf("the victim is %s", all[0].Victim.Name)
	}
}
