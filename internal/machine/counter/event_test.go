package counter

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
	"golang.org/x/sys/unix"
)

func TestEventCountsACgroup(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware)
	dir, other := cgroup(t, cgroup2(t)), cgroup(t, cgroup2(t))
	e, err := LookupEvent("task-clock")
	if err != nil {
		t.Fatal(err)
	}
	tally, err := e.OpenCgroup(dir, onlineCPUs(t))
	if err != nil {
		t.Fatal(err)
	}
	defer tally.Close()
	w, x := work(t, dir), work(t, other)
	w.do("burn", int(20*time.Millisecond)) // before counting starts
	if err := tally.Toggle(true); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	spent := w.do("burn", int(100*time.Millisecond))
	most := time.Since(began) + 10*time.Millisecond // the event also counts time that a hypervisor takes
	x.do("burn", int(50*time.Millisecond))          // in another cgroup
	if err := tally.Toggle(false); err != nil {
		t.Fatal(err)
	}
	w.do("burn", int(20*time.Millisecond)) // after counting has stopped
	n, coverage, err := tally.Read()
	if err != nil {
		t.Fatal(err)
	}
	if n < float64(spent-10*time.Millisecond) || n > float64(most) || coverage != 1 {
		t.Errorf("counted %.1f ms, coverage %v; want what the worker says, %v, to %v", n/1e6, coverage, spent, most)
	}
	if n, _, err := tally.Read(); err != nil || n != 0 {
		t.Errorf("a second reading gives %v, %v; want nothing new", n, err)
	}
}

func TestEventCountsAThreadAndWhatItStarts(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.PerfSoftware)
	sh := exec.Command("sh", "-c", "read x; (i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done); echo done; read x")
	in, err := sh.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := sh.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sh.Start(); err != nil {
		t.Fatal(err)
	}
	tally, err := (Event{event: taskClock}).OpenThread(sh.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer tally.Close()
	began := time.Now()
	if err := tally.Toggle(true); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(in)
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the shell ended")
	}
	n, coverage, err := tally.Read()
	most := time.Since(began) // the event also counts time that a hypervisor takes
	in.Close()
	_ = sh.Wait() // its last read gets the end of the file
	if err != nil {
		t.Fatal(err)
	}
	// Nearly all of its time is the child's.
	state := sh.ProcessState
	if spent := state.UserTime() + state.SystemTime(); n < 0.8*float64(spent) || n > float64(most) || coverage != 1 {
		t.Errorf("counted %.1f ms, coverage %v; the shell and its child took %v, in %v", n/1e6, coverage, spent, most)
	}
}

func TestLookupEvent(t *testing.T) {
	for _, name := range []string{"", "cycle", "sched:", ":x", "../x:y", "a/b:c"} {
		if _, err := LookupEvent(name); !errors.Is(err, ErrUnknownEvent) {
			t.Errorf("LookupEvent(%q): %v, want ErrUnknownEvent", name, err)
		}
	}
	if _, err := LookupEvent("cycle"); err == nil || !strings.Contains(err.Error(), "cycles") {
		t.Errorf("%v does not say which events there are", err)
	}
	for _, name := range EventNames() {
		var e *NotSupportedError
		if got, err := LookupEvent(name); err == nil && got.Name() != name || err != nil && !errors.As(err, &e) {
			t.Errorf("LookupEvent(%q) = %q, %v", name, got.Name(), err)
		}
	}
}

// An event that the machine lacks has a reason, and one that it has counts.
func TestHardwareEvents(t *testing.T) {
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, quelltest.PerfSoftware)
	dir := cgroup(t, cgroup2(t))
	w := work(t, dir)
	pmu := quelltest.Probe(quelltest.PMU) == nil
	for _, name := range EventNames() {
		e, err := LookupEvent(name)
		var tally *EventCounter
		if err == nil {
			tally, err = e.OpenCgroup(dir, onlineCPUs(t))
		}
		var no *NotSupportedError
		if errors.As(err, &no) {
			if no.Reason == "" || pmu && (name == "cycles" || name == "instructions") {
				t.Errorf("%s: %v", name, err)
			}
			t.Logf("%s: %v", name, err)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := tally.Toggle(true); err != nil {
			t.Error(err)
		}
		w.do("burn", int(5*time.Millisecond))
		n, coverage, err := tally.Read()
		if err != nil || coverage > 0 && (name == "cycles" || name == "instructions" || name == "task-clock") && n < 1e5 {
			t.Errorf("%s: %v, coverage %v, %v", name, n, coverage, err)
		}
		t.Logf("%s: %v", name, n)
		tally.Close()
	}
	if _, err := (Event{event: taskClock}).OpenThread(1 << 22); !errors.Is(err, unix.ESRCH) {
		t.Errorf("a thread that is not there: %v", err)
	}
}
