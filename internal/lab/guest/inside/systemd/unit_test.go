//go:build inguest

package systemd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/api"
	"github.com/quell-dev/quell/internal/core/command"
	"github.com/quell-dev/quell/internal/core/sample"
)

const (
	unit    = "quell-agent.service"
	restore = "quell-restore.service"
	timer   = "quell-restore.timer"
	server  = "quell-server.service"
	// The tasks are services that run this binary, one for each way to count.
	files, scraped, probed = "file.service", "scrape.service", "uprobe.service"
	slice                  = "/system.slice/"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "task" {
		task()
	}
	os.Exit(m.Run())
}

// task does a transaction each 10 ms, counted in all three ways.
func task() {
	var done atomic.Uint64
	if l, err := net.Listen("tcp4", "127.0.0.1:8080"); err == nil {
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "transactions_total %d\n", done.Load())
		}))
	}
	progress, _ := os.OpenFile(os.Getenv("QUELL_PROGRESS"), os.O_CREATE|os.O_WRONLY, 0o600)
	for range time.Tick(10 * time.Millisecond) {
		transaction()
		n := done.Add(1)
		if progress != nil {
			progress.WriteAt(binary.LittleEndian.AppendUint64(nil, n), 0)
		}
	}
}

//go:noinline
func transaction() {}

func systemctl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("/bin/systemctl", args...).CombinedOutput()
	if err != nil {
		log, _ := os.ReadFile("/run/agent.log")
		t.Fatalf("systemctl %q: %v\n%s\nthe agent's log:\n%s", args, err, out, log)
	}
	return strings.TrimSpace(string(out))
}

func show(t *testing.T, property string) string {
	t.Helper()
	return showOf(t, unit, property)
}

func showOf(t *testing.T, unit, property string) string {
	t.Helper()
	return systemctl(t, "show", "--value", "-p", property, unit)
}

func limit(t *testing.T, cgroup string) string {
	t.Helper()
	text, err := os.ReadFile("/sys/fs/cgroup" + cgroup + "/cpu.max")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// until is quelltest.Until with a longer poll interval, which leaves an emulated CPU
// time.
func until(t *testing.T, deadline time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !cond(); <-time.After(250 * time.Millisecond) {
		if time.Now().After(end) {
			log, _ := os.ReadFile("/run/agent.log")
			t.Fatalf("waited %v in vain until %s; the agent's log:\n%s", deadline, what, log)
		}
	}
	t.Logf("%s", what)
}

var client = api.NewClient("/run/quell/agent.sock")

// counted waits until the agent has a cost for each task.
func counted(t *testing.T, sig sample.SignalName, tasks ...string) {
	t.Helper()
	seen := map[string]bool{}
	until(t, time.Minute, fmt.Sprintf("%s is counted for %v", sig, tasks), func() bool {
		views, _ := client.Tasks(t.Context())
		for _, v := range views {
			for _, c := range v.Costs {
				if c.Signal == sig && float64(c.Cost) >= 0 && slices.Contains(tasks, string(v.Name)) && v.Path() == slice+string(v.Name) {
					seen[string(v.Name)] = true
				}
			}
		}
		return len(seen) == len(tasks)
	})
}

func capped(t *testing.T, lasts time.Duration) {
	t.Helper()
	var err error
	for range 60 { // until the agent follows the task
		if _, err = client.Command(t.Context(), command.CapTask(files, 0.2, lasts, "test")); err == nil {
			break
		}
		<-time.After(250 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	if got := limit(t, slice+files); !strings.HasPrefix(got, "20000 ") {
		t.Fatalf("capped, cpu.max is %s", got)
	}
	t.Log("capped")
}

// TestSecurity prints systemd's rating of the sandboxes.
func TestSecurity(t *testing.T) {
	if err := os.MkdirAll("/tmp", 0o1777); err != nil { // scratch space for systemd-analyze
		t.Fatal(err)
	}
	for _, c := range []struct {
		unit string
		most float64
	}{{unit, 3.5}, {restore, 1.5}, {server, 1.5}} {
		out, err := exec.Command("/usr/bin/systemd-analyze", "security", "--offline=yes", "--no-pager", "/lib/systemd/system/"+c.unit).CombinedOutput()
		t.Logf("%s", out)
		m := regexp.MustCompile(`Overall exposure level for \S+: (\d+\.\d+)`).FindSubmatch(out)
		if m == nil {
			t.Fatal(err)
		}
		fmt.Printf("figure: systemd-analyze security %s: exposure %s of 10 (0 is none)\n", c.unit, m[1])
		if level, _ := strconv.ParseFloat(string(m[1]), 64); level > c.most {
			t.Errorf("%s: exposure %v", c.unit, level)
		}
	}
}

// TestDebiansDefault: Debian's default refuses perf events, which of the signals here only cpi
// needs.
func TestDebiansDefault(t *testing.T) {
	if err := os.WriteFile("/proc/sys/kernel/perf_event_paranoid", []byte("3"), 0); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "start", unit)
	s, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range s.Signals {
		switch sig.Signal {
		case sample.CPI:
			if sig.OK {
				t.Errorf("%+v", sig)
			}
		case sample.CPS, sample.CPT, sample.RunQ: // by eBPF and by files
			if !sig.OK {
				t.Errorf("%+v", sig)
			}
		}
	}
	systemctl(t, "stop", unit)
}

// TestUnit is the life cycle of the unit in its sandbox: it starts, samples, caps, stops
// and undoes. After a kill it also undoes, and starts again.
func TestUnit(t *testing.T) {
	// With 3, their default, Debian's kernels allow counting only with CAP_SYS_ADMIN.
	if err := os.WriteFile("/proc/sys/kernel/perf_event_paranoid", []byte("2"), 0); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "start", unit)
	pid := show(t, "MainPID")
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`NoNewPrivs:\t1`, `Seccomp:\t2`, `CapBnd:\t000000c000080005`, `CapEff:\t000000c000080005`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).Match(status) {
			t.Errorf("%s is not in\n%s", want, status)
		}
	}
	s, err := client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range s.Signals {
		want := map[sample.SignalName]string{sample.CPI: "", sample.CPT: "progress-file", sample.CPS: "sys-enter", sample.RunQ: "bpf"}[sig.Signal]
		if sig.Variant != want {
			t.Errorf("signal %+v, want variant %q", sig, want)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	counted(t, sample.CPT, files, scraped)
	counted(t, sample.RunQ, files)
	counted(t, sample.CPS, files)
	for _, d := range s.Degraded {
		if !strings.Contains(d, "cpi") { // this guest has no PMU
			t.Errorf("degraded: %s", d)
		}
	}

	managerSetsLimits(t)
	capped(t, 1*time.Hour)
	systemctl(t, "stop", unit)
	if got := limit(t, slice+files); !strings.HasPrefix(got, "max ") {
		t.Errorf("stopped, cpu.max is %s", got)
	}
	t.Log("stopped, the cap is undone")
	if result := show(t, "Result"); result != "success" {
		t.Errorf("the unit's result is %s", result)
	}

	systemctl(t, "start", unit)
	capped(t, 1*time.Hour)
	pid = show(t, "MainPID")
	systemctl(t, "kill", "--signal=KILL", unit)
	until(t, time.Minute, "ExecStopPost has undone the cap", func() bool { return strings.HasPrefix(limit(t, slice+files), "max ") })
	until(t, 2*time.Minute, "it runs again", func() bool {
		now := show(t, "MainPID")
		return show(t, "ActiveState") == "active" && now != "0" && now != pid
	})
	if n, err := strconv.Atoi(show(t, "NRestarts")); err != nil || n != 1 {
		t.Errorf("started again %d times, %v", n, err)
	}
	systemctl(t, "stop", unit)
}

// managerSetsLimits: systemd has the last word about the limit of a service, at a reload too, when it
// writes the unit's CPUQuota, and the agent says that the cap is over and why.
func managerSetsLimits(t *testing.T) {
	t.Helper()
	for i, c := range []struct {
		do                         []string
		limit, quota, result, note string
	}{
		{[]string{"daemon-reload"}, "max ", "infinity", "reset", "reset the limit to what it was before the cap"},
		{[]string{"set-property", "--runtime", files, "CPUQuota=50%"}, "50000 ", "500ms", "taken-over", `holds "50000 100000"`},
	} {
		capped(t, time.Hour)
		systemctl(t, c.do...)
		var s api.Status
		until(t, time.Minute, fmt.Sprintf("%v: the agent says that its cap is over", c.do), func() bool {
			var err error
			s, err = client.Status(t.Context())
			return err == nil && len(s.Caps) == 0 && len(s.Overruled) == i+1
		})
		last := s.Overruled[i]
		if last.Task != files || last.Result != c.result || !strings.Contains(last.Note, c.note) || !strings.Contains(last.Likely, "systemd sets a unit's limits") {
			t.Errorf("%v: %+v", c.do, last)
		}
		if got := limit(t, slice+files); !strings.HasPrefix(got, c.limit) || showOf(t, files, "CPUQuotaPerSecUSec") != c.quota {
			t.Errorf("%v: cpu.max is %s, CPUQuotaPerSecUSec %s", c.do, got, showOf(t, files, "CPUQuotaPerSecUSec"))
		}
		t.Logf("%v: %s; %s", c.do, last.Note, last.Likely)
	}
	systemctl(t, "set-property", "--runtime", files, "CPUQuota=")
	until(t, time.Minute, "systemd has taken its limit back", func() bool { return strings.HasPrefix(limit(t, slice+files), "max ") })
}

// TestRestore tests the safety net in its sandbox: it does not touch a cap within its
// lease, lifts a cap that a hung agent does not lift, reports that by its exit code, and
// is started by the timer.
func TestRestore(t *testing.T) {
	systemctl(t, "start", restore)
	if got := showOf(t, restore, "Result"); got != "success" {
		t.Errorf("with nothing to undo the result is %s", got)
	}
	systemctl(t, "start", unit)
	if got := showOf(t, timer, "ActiveState"); got != "active" {
		t.Errorf("with the agent the timer is %s", got)
	}
	systemctl(t, "stop", timer) // it must not be faster than this test
	systemctl(t, "stop", restore)
	capped(t, 5*time.Second)
	over := time.Now().Add(5 * time.Second)
	systemctl(t, "kill", "--kill-whom=main", "--signal=STOP", unit)
	systemctl(t, "start", restore)
	if got := limit(t, slice+files); !strings.HasPrefix(got, "20000 ") || time.Now().After(over) {
		t.Errorf("within the lease the limit is %s", got)
	}
	<-time.After(time.Until(over) + 11*time.Second) // the grace period
	if out, err := exec.Command("/bin/systemctl", "start", restore).CombinedOutput(); err == nil {
		t.Errorf("with a hung agent the unit did not fail: %s", out)
	}
	if status, got := showOf(t, restore, "ExecMainStatus"), limit(t, slice+files); status != "3" || !strings.HasPrefix(got, "max ") {
		log, _ := os.ReadFile("/run/agent.log")
		t.Fatalf("exit code %s, cpu.max is %s; the log:\n%s", status, got, log)
	}
	t.Log("lifted for the agent that hangs")
	pid := show(t, "MainPID")
	systemctl(t, "kill", "--kill-whom=main", "--signal=CONT", unit)
	until(t, time.Minute, "the agent goes on, without the cap", func() bool {
		s, err := client.Status(t.Context())
		return err == nil && len(s.Caps) == 0
	})
	if now := show(t, "MainPID"); now != pid {
		t.Errorf("it is another agent, %s after %s", now, pid)
	}
	before := showOf(t, timer, "LastTriggerUSec")
	systemctl(t, "start", timer)
	until(t, 2*time.Minute, "the timer has set it off, and nothing is to be done", func() bool {
		return showOf(t, timer, "LastTriggerUSec") != before && showOf(t, restore, "Result") == "success" && showOf(t, restore, "ExecMainStatus") == "0"
	})
	systemctl(t, "stop", timer, unit)
}

// TestContainersDropIn: with the drop-in uprobes can also be counted.
func TestContainersDropIn(t *testing.T) {
	systemctl(t, "start", unit)
	until(t, 2*time.Minute, "the agent says what a uprobe lacks", func() bool {
		views, _ := client.Tasks(t.Context())
		return slices.ContainsFunc(views, func(v api.TaskView) bool { return string(v.Name) == probed && strings.Contains(v.Note, "uprobe") })
	})
	text, err := os.ReadFile("/usr/lib/quell-agent-containers.conf")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll("/run/systemd/system/"+unit+".d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("/run/systemd/system/"+unit+".d/containers.conf", text, 0o644); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "daemon-reload")
	systemctl(t, "restart", unit)
	counted(t, sample.CPT, probed)
	systemctl(t, "stop", unit)
}

// TestServer runs the server in its sandbox, as its own user: it starts, answers a query by
// a child process, leaves nothing that others can read, and stops.
func TestServer(t *testing.T) {
	// A state directory of an earlier server that ran without the unit.
	const dir = "/var/lib/quell-server"
	if err := errors.Join(os.MkdirAll(dir+"/store", 0o755), os.Chmod(dir+"/store", 0o755)); err != nil {
		t.Fatal(err)
	}
	systemctl(t, "start", server)
	get := func() (int, string) {
		resp, err := http.Post("http://127.0.0.1:9781/v1/query", "application/json", strings.NewReader(`{"sql":"SELECT count(*) + 42 FROM samples"}`))
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		return resp.StatusCode, fmt.Sprint(string(text), err)
	}
	var text string
	until(t, 4*time.Minute, "the server answers a query", func() bool {
		var code int
		code, text = get()
		return code == http.StatusOK && strings.Contains(text, "[[42]]")
	})
	status, err := os.ReadFile("/proc/" + showOf(t, server, "MainPID") + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`NoNewPrivs:\t1`, `Seccomp:\t2`, `CapBnd:\t0+`, `CapEff:\t0+`, `Uid:\t990\t.*`} {
		if !regexp.MustCompile(`(?m)^` + want + `$`).Match(status) {
			t.Errorf("%s is not in\n%s", want, status)
		}
	}
	all, err := os.ReadDir(dir)
	if err != nil || len(all) < 3 {
		t.Fatalf("%v, %v", all, err)
	}
	for _, e := range all {
		if info, err := e.Info(); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	systemctl(t, "stop", server)
	if result := showOf(t, server, "Result"); result != "success" {
		t.Errorf("the unit's result is %s", result)
	}
}
