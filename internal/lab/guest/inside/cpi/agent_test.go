//go:build inguest

package cpi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
	"github.com/quell-dev/quell/internal/format/trace"
)

const agent = "/bin/quell-agent"

// TestAgent runs the shipped agent on one task of known CPI: it reports the CPI on every
// output, caps the task on command, and leaves nothing behind.
func TestAgent(t *testing.T) {
	w := work(t)
	name := strings.TrimPrefix(w.dir, root)
	dir := t.TempDir()
	conf, record, log := dir+"/agent.yaml", dir+"/record.csv", dir+"/log"
	text := fmt.Sprintf("state_dir: %s/state\nsocket: %s/agent.sock\nlisten: 127.0.0.1:9780\nrecord: %s\nsignals: [cpi, cps, runq]\n"+
		"sampling: {duration: 2s, period: 4s, max_tax: 0}\nrules: [{match: %q, job: loop, class: batch}]\n", dir, dir, record, name)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(agent, "check", "--config", conf).CombinedOutput(); err != nil {
		t.Fatalf("check: %v: %s", err, out)
	}
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(agent, "--config", conf)
	cmd.Stderr = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		if cmd.ProcessState == nil {
			<-ended
		}
		if text, err := os.ReadFile(log); t.Failed() {
			t.Logf("the agent's log, %v:\n%s", err, text)
		}
	})

	client := api.NewClient(dir + "/agent.sock")
	var status api.Status
	until(t, "the agent answers", func() bool {
		var err error
		status, err = client.Status(t.Context())
		return err == nil
	})
	if s := signal(status, sample.CPI); !s.OK || s.Variant != "core-cycles" {
		t.Errorf("signal %+v", s)
	}
	if text, err := os.ReadFile(log); err != nil || !strings.Contains(string(text), "LLC-load-misses") {
		t.Errorf("the log does not say that the last-level cache is not counted, %v", err)
	}
	for _, s := range status.Signals {
		t.Logf("signal %s: variant %q, ok %v %s", s.Signal, s.Variant, s.OK, s.Reason)
	}
	w.tell(endless)
	until(t, "three intervals with CPI", func() bool {
		status, err = client.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return status.Intervals >= 4
	})

	ns := setting(t, "INSTRUCTION_NS")
	page := metrics(t)
	m := regexp.MustCompile(`(?m)^quell_job_cost\{job="loop",signal="cpi"\} (\S+)$`).FindStringSubmatch(page)
	if m == nil {
		t.Fatalf("no CPI in the metrics:\n%s", page)
	}
	if cpi, err := strconv.ParseFloat(m[1], 64); err != nil || !within(cpi, ns, 0.01) {
		t.Errorf("CPI %s in the metrics, want %v", m[1], ns)
	}
	t.Logf("figure: the agent's /metrics say CPI %s / %v configured", m[1], ns)

	// A cap is in force when the agent is told to stop.
	if _, err := client.Command(t.Context(), command.CapTask(name, 0.1, time.Hour, "test")); err != nil {
		t.Fatal(err)
	}
	if got := limit(t, w); got != "10000 100000" {
		t.Errorf("capped, cpu.max is %q", got)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("told to stop it ended with %v", err)
	}
	if got := limit(t, w); got != "max 100000" {
		t.Errorf("afterwards cpu.max is %q", got)
	}
	if out, err := exec.Command(agent, "restore", "--config", conf).CombinedOutput(); err != nil || string(out) != "nothing to undo\n" {
		t.Errorf("restore: %v: %s", err, out)
	}
	if _, err := os.Stat(dir + "/agent.sock"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its socket: %v", err)
	}
	recorded(t, record, name, ns)
}

// until is quelltest.Until for a CPU that executes 31 million instructions a second: it
// polls less often, because a query to the agent takes more than 2 ms.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(2 * time.Minute); !cond(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func signal(s api.Status, name sample.SignalName) api.SignalStatus {
	for _, sig := range s.Signals {
		if sig.Signal == name {
			return sig
		}
	}
	return api.SignalStatus{}
}

func limit(t *testing.T, w *worker) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(w.dir, "cpu.max"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func metrics(t *testing.T) string {
	t.Helper()
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	r, err := c.Get("http://127.0.0.1:9780/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("/metrics: %d %v", r.StatusCode, err)
	}
	return string(text)
}

// recorded checks the samples of the task in the agent's trace.
func recorded(t *testing.T, file, name string, cpi float64) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := trace.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	counted := map[sample.SignalName]int{}
	for {
		var s sample.Sample
		if err := r.Read(&s); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if string(s.Task) != name || math.IsNaN(float64(s.Cost)) {
			continue
		}
		counted[s.Signal]++
		if s.Signal == sample.CPI && (!within(float64(s.Cost), cpi, 0.01) || s.Variant != "core-cycles" || s.Coverage != 1) {
			t.Errorf("recorded: %+v", s)
		}
	}
	t.Logf("recorded samples: %v; %+v", counted, r.Report())
	if counted[sample.CPI] < 3 || r.Report().Bad > 0 {
		t.Errorf("recorded samples: %v; %+v", counted, r.Report())
	}
}
