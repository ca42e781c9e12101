package workload

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

// A command runs repeatedly, each run is an iteration, until the input ends. Its output
// is available for its parser.
func TestRunCommand(t *testing.T) {
	in, barrier := io.Pipe()
	out := &lines{}
	ended := make(chan error, 1)
	go func() {
		ended <- runCommand(context.Background(), []string{"/bin/sh", "-c", "echo rate: 5"}, in, out, io.Discard)
	}()
	if _, err := io.WriteString(barrier, "\n"); err != nil {
		t.Fatal(err)
	}
	quelltest.Until(t, "three runs", func() bool { return strings.Count(strings.Join(out.all(), "\n"), "quell-lab iteration ") >= 3 })
	barrier.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	text := []byte(strings.Join(out.all(), "\n"))
	if v, _, err := MeanMetric(`/rate: ([0-9]+)/`, text, 0, 0); v != 5 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if v, _, err := MeanMetric("time", text, 0, 0); v <= 0 || v > 60 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
}

func TestRunCommandFails(t *testing.T) {
	for _, c := range []struct{ in, program, want string }{
		{"\n", "/bin/false", "exit status 1"},
		{"\n", "/nowhere/at-all", "no such file"},
		{"", "/bin/false", ""}, // cancelled
	} {
		// The input stays open after the line.
		r, w := io.Pipe()
		go func() {
			io.WriteString(w, c.in)
			if c.in == "" {
				w.Close()
			}
		}()
		err := runCommand(context.Background(), []string{c.program}, r, io.Discard, io.Discard)
		w.Close()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.program, err, c.want)
		}
	}
}

func TestMeanMetric(t *testing.T) {
	one, err := os.ReadFile("testdata/output/sysbench-cpu.txt")
	if err != nil {
		t.Fatal(err)
	}
	two := strings.Replace(string(one), "265.58", "300.42", 1)
	text := string(one) + "\n" + endOfRun + "2.5\n" + two + "\n" + endOfRun + "3.5\n" + "events per second: cut sho"
	if v, _, err := MeanMetric("sysbench", []byte(text), 0, 0); math.Abs(v-(265.58*2.5+300.42*3.5)/6) > 1e-9 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if v, _, err := MeanMetric("time", []byte(text), 0, 0); v != 3 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	// Four events each in 1, 1, 3 and 3 s are 16 in 8 s; the mean of their rates would be 2.67.
	fixed := ""
	for _, seconds := range []float64{1, 1, 3, 3} {
		fixed += fmt.Sprintf("    events per second:  %.9f\n\n%s%g\n", 4/seconds, endOfRun, seconds)
	}
	if v, _, err := MeanMetric("sysbench", []byte(fixed), 0, 0); math.Abs(v-2) > 1e-6 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	// Only the first run counts: what comes after it is no result.
	if v, _, err := MeanMetric("sysbench", []byte(string(one)+"\n"+endOfRun+"2.5\nthe server is busy\n"+endOfRun+"0.1\n"), 0, 1); math.Abs(v-265.58) > 1e-9 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	// The warm-up's runs do not count, whatever they printed.
	if v, _, err := MeanMetric("sysbench", []byte("cold\n"+endOfRun+"9\n"+text), 1, 1); math.Abs(v-265.58) > 1e-9 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if v, _, err := MeanMetric("time", []byte(text), 1, 0); v != 3.5 || err != nil {
		t.Errorf("%v, %v", v, err)
	}
	if _, _, err := MeanMetric("time", []byte(text), 2, 0); err == nil || !strings.Contains(err.Error(), "after its warm-up") {
		t.Errorf("%v", err)
	}
	if _, _, err := MeanMetric("sysbench", one, 0, 0); err == nil || !strings.Contains(err.Error(), "more time") {
		t.Errorf("%v", err)
	}
}
