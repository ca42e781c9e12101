package labcmd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/agent/child"
	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const studyElsewhere = `version: 1
study: elsewhere
hosts: {local: {}, far: {address: "root@127.0.0.1"}, idle: {address: inventory}}
environments: {ve: {driver: cgroup, cpus: 1}}
workloads: {work: {builtin: primes, options: -work=10}}
roles:
  fg: {workload: work, environment: ve, host: local, measure: true, load: {target: 20%, tolerance: 100%}}
  bg: {workload: work, environment: ve, host: "far*", measure: true, load: {target: 20%, tolerance: 100%}}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1}
run: {for: 8s, retries: 0, max_foreign_cpu: 100%, max_steal: 100%, min_overlap: 0%}
observe: {hosts: [idle], sets: [cpu, psi], placement: [poll], events: [task-clock], meter: "while sleep 0.2; do echo 50; done"}
analysis: [{kind: score}]
`

// sshd starts a real sshd on a free port, and returns its process and an inventory with
// it as the host far.
func sshd(t *testing.T) (pid int, inventory string) {
	t.Helper()
	quelltest.Need(t, quelltest.Root, quelltest.Cgroup2, "sshd", "ssh-keygen")
	dir := t.TempDir()
	address := quelltest.FreeAddress(t)
	s := quelltest.NewSSHD(t, dir, "host", address, "XDG_CACHE_HOME="+dir+"/cache")
	p, err := child.Start(exec.Command(s.Argv[0], s.Argv[1:]...), child.Options{Name: "sshd", Log: filepath.Join(dir, "sshd.log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Kill()
		if t.Failed() {
			t.Logf("sshd: %s", p.Tail())
		}
	})
	quelltest.Until(t, "sshd", func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	inventory = filepath.Join(dir, "hosts.yaml")
	line := fmt.Sprintf("hosts:\n  far: {address: %q, key: %s, host_key: %q}\n", address, s.Login, s.HostKey)
	if err := os.WriteFile(inventory, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	return p.PID, inventory
}

// TestHostsRun: a command runs on the hosts that can be reached, and its failure is theirs.
func TestHostsRun(t *testing.T) {
	t.Parallel()
	_, inventory := sshd(t)
	text, err := os.ReadFile(inventory)
	if err == nil {
		err = os.WriteFile(inventory, append(text, "  gone: {address: \"127.0.0.1:1\"}\n"...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	env := clitest.Env("")
	run := []string{"lab", "hosts", "run", inventory, "--"}
	r := quell(t, env, append(run, "echo", "hello")...)
	if r.Code != app.ExitNegative || !strings.Contains(r.Out, "far  hello\n") || !strings.Contains(r.Err, "1 of 2 hosts are not ok: gone (not reached)") {
		t.Errorf("%+v", r)
	}
	r = quell(t, env, append(run[:4:4], "--host", "far", "--", "false")...)
	if r.Code != app.ExitNegative || !strings.Contains(r.Err, "1 of 1 hosts are not ok: far (failed)") {
		t.Errorf("%+v", r)
	}
	if r = quell(t, env, "lab", "hosts", "check", inventory, "--host", "far"); r.Code != app.ExitOK {
		t.Errorf("%+v", r)
	}
}

// TestStudyElsewhere: a study with a role on another host runs, and is observed there and on a
// host without roles. If that host's connection
// is lost during a run, the study reports it and can be resumed.
func TestStudyElsewhere(t *testing.T) {
	t.Parallel()
	pid, inventory := sshd(t)
	text, err := os.ReadFile(inventory)
	if err == nil { // the same server under another name
		err = os.WriteFile(inventory, append(text, strings.Replace(strings.TrimPrefix(string(text), "hosts:\n"), "far:", "idle:", 1)...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, out := studyFile(t, studyElsewhere), filepath.Join(t.TempDir(), "out")
	env := clitest.Env("/nowhere")
	cut, over := make(chan error, 1), make(chan struct{})
	go func() {
		cut <- cutOff(pid, over, func() bool {
			outs, err := filepath.Glob(filepath.Join(out, "runs/*/*/bg.out"))
			if err != nil || len(outs) == 0 {
				outs, _ = filepath.Glob(filepath.Join(out, "*/*/*/bg.out"))
			}
			for _, name := range outs {
				if st, err := os.Stat(name); err == nil && st.Size() > 0 {
					return true
				}
			}
			return false
		})
	}()
	r := quell(t, env, "lab", "run", "--hosts", inventory, "--out", out, file)
	close(over)
	if err := <-cut; err != nil {
		t.Fatalf("%v: %+v", err, r)
	}
	if r.Code != app.ExitNegative || !strings.Contains(r.Out, "host-lost") || !strings.Contains(r.Err, "quell lab resume "+out) {
		t.Fatalf("cut off: %+v", r)
	}
	if r := quell(t, env, "lab", "resume", "--hosts", inventory, out); r.Code != app.ExitOK || !strings.Contains(r.Out, "valid    1") {
		t.Fatalf("resume: %+v", r)
	}
	f, runs := recordsOf(t, out)
	for _, r := range runs {
		if r.Verdict != result.Valid {
			continue
		}
		for _, p := range r.Parts {
			if len(p.Iterations) == 0 || p.CPUTime <= 0 {
				t.Errorf("%s: %d iterations, %s of CPU time", p.Name, len(p.Iterations), p.CPUTime)
			}
			if p.Audit == nil || p.Audit.Method != "poll" || p.Events["task-clock"] <= 0 && p.Missing["task-clock"] == "" {
				t.Errorf("%s: audit %+v, events %v, missing %v", p.Name, p.Audit, p.Events, p.Missing)
			}
		}
		// The other host is observed too, on the same clock.
		if len(r.Hosts) != 2 || r.Hosts[0].Name != "far" || r.Hosts[1].Name != "idle" || r.Hosts[0].Within <= 0 || r.Hosts[0].Joules <= 0 || !strings.Contains(r.Energy, "; host far: meter") || r.Joules <= r.Hosts[0].Joules {
			t.Errorf("hosts %+v, %v J by %q", r.Hosts, r.Joules, r.Energy)
		}
		samples, err := f.Samples(&r)
		if err != nil {
			t.Fatal(err)
		}
		of := map[string]int{}
		for _, s := range samples {
			_, cpu := s.Values["cpu."+map[string]string{"": "fg", "far": "bg", "idle": "busy"}[s.Host]]
			_, steal := s.Values["cpu.steal"]
			if _, psi := s.Values["psi.cpu.some"]; cpu && steal && psi && s.At > 0 && s.At < time.Minute {
				of[s.Host]++
			}
		}
		if of[""] < 3 || of["far"] < 3 || of["idle"] < 3 {
			t.Errorf("complete samples by host: %v of %d", of, len(samples))
		}
	}
	if r := quell(t, env, "lab", "run", "--hosts", studyFile(t, "hosts: {other: {address: 127.0.0.1}}\n"), "--out", out+"2", file); r.Code != app.ExitNegative || !strings.Contains(r.Err, "no run of the study can be done: host idle, which the study observes, is not in the inventory") {
		t.Errorf("a host that the inventory lacks: %+v", r)
	}
}

const studyThatSwitches = `version: 1
study: switches
hosts: {local: {}, far: {address: inventory}, nb: {address: inventory, count: 1, power: true}, gone: {address: inventory}}
environments: {ve: {driver: host, cpus: 1}, gone: {driver: host, cpus: 1, host: gone}}
workloads:
  throughput: {command: [iperf3, -c, "{asks}", -p, "PORT", -u, -b, 1M, -t, "1", -J], iterations: 1, metric: {unit: bit/s, better: higher, parse: "json:end.sum_received.bits_per_second"}}
  iperf3: {command: [iperf3, -s, -B, "HOST", -p, "PORT"], serves: PORT, metric: {parse: time}}
  latency: {command: [sockperf, ping-pong, -i, "{asks}", -p, "PORT", -t, "1"], iterations: 1, metric: {unit: us, better: lower, parse: "/percentile 99.000 = +([0-9.]+)/"}}
  sockperf: {command: [sockperf, server, -i, "HOST", -p, "PORT"], serves: PORT, metric: {parse: time}}
  work: {builtin: primes, options: -work=10}
roles:
  test: {workload: $tool, environment: $ve, host: local, asks: server, measure: true}
  server: {workload: $tool, environment: $ve, host: far}
  nb: {workload: work, environment: $ve, host: "nb*", count: $n}
factors:
  ve: [ve, gone]
  tool: {sets: {throughput: {test: throughput, server: iperf3}, latency: {test: latency, server: sockperf}}}
  n: ["0", "1"]
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1, order: sequential, exclude: [{ve: gone, n: "1"}, {ve: gone, tool: latency}, {tool: latency, n: "1"}]}
run: {retries: 3, max_foreign_cpu: 100%, max_steal: 100%, min_overlap: 0%}
observe: {sets: [cpu]}
analysis: [{kind: score}]
`

// TestStudySwitchesHosts: neighbours' hosts, which are real sshds, are on only in the runs with
// a role on them. iperf3 and sockperf reach their servers on another host, which are ready
// first. Runs on a host that the inventory does not have are left for another inventory.
func TestStudySwitchesHosts(t *testing.T) {
	t.Parallel()
	quelltest.Need(t, "iperf3", "sockperf")
	_, inventory := sshd(t)
	dir, address := t.TempDir(), quelltest.FreeAddress(t)
	s := quelltest.NewSSHD(t, dir, "nb", address, "XDG_CACHE_HOME="+dir+"/cache")
	server := strings.Join(s.Argv[:1], "") + " " + strings.Join(s.Argv[3:], " ") + " -E " + dir + "/log -o PidFile=" + dir + "/pid"
	down := "echo down >> " + dir + "/said; if [ -e " + dir + "/pid ]; then kill $(cat " + dir + "/pid); rm -f " + dir + "/pid; fi"
	t.Cleanup(func() {
		if out, err := exec.Command("/bin/sh", "-c", down).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	host, port, err := net.SplitHostPort(quelltest.FreeAddress(t))
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(inventory)
	if err == nil {
		text = append(text, fmt.Sprintf("  nb1: {address: %q, key: %s, host_key: %q, up: %q, down: %q}\n", address, s.Login, s.HostKey, "echo up >> "+dir+"/said; "+server, down)...)
		text = []byte(strings.Replace(string(text), "far: {", "far: {inside: "+host+", ", 1))
		err = os.WriteFile(inventory, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	file, out := studyFile(t, strings.NewReplacer("HOST", host, "PORT", port).Replace(studyThatSwitches)), filepath.Join(t.TempDir(), "out")
	r := quell(t, clitest.Env("/nowhere"), "lab", "run", "--hosts", inventory, "--out", out, file)
	if r.Code != app.ExitNegative || !strings.Contains(r.Out, "valid    3") || !strings.Contains(r.Err, "1 of 4 runs have no valid result") || !strings.Contains(r.Out, "not here (1 of 4 runs): host gone is not in the inventory") {
		t.Fatalf("%+v", r)
	}
	said, err := os.ReadFile(dir + "/said")
	// On a busy machine a role may be starved: such a run is not valid, and made again.
	if err != nil || !regexp.MustCompile(`^(down\nup\n)+down\n$`).Match(said) {
		t.Errorf("%q, %v", said, err)
	}
	_, runs := recordsOf(t, out)
	for _, r := range runs {
		if n, _ := strconv.Atoi(r.Cell.Level("n")); len(r.Cell.Off) != 1-n || len(r.Parts) != 2+n {
			t.Errorf("n=%d: %v is off, %d parts", n, r.Cell.Off, len(r.Parts))
		}
		if r.Verdict != result.Valid {
			continue
		}
		if m := r.Parts[0].Metric; m <= 0 || m > 2e6 { // of 1 Mbit/s, or us
			t.Errorf("%s: %g", r.Cell.Level("tool"), m)
		}
	}
	// Without such commands no run that needs them is tried.
	text = []byte(strings.Replace(string(text), "down:", "known_hosts:", 1))
	if err := os.WriteFile(inventory, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if r := quell(t, clitest.Env("/nowhere"), "lab", "check", "--hosts", inventory, file); !strings.Contains(r.Out, "(2 of 4 runs): host nb1 has no commands up and down in the inventory") {
		t.Errorf("%+v", r)
	}
}

// cutOff kills the sessions of a server when now returns true, unless over closes first.
func cutOff(server int, over <-chan struct{}, now func() bool) error {
	for !now() {
		select {
		case <-over:
			return errors.New("the study was over before anything was seen to run on the other host")
		case <-time.After(20 * time.Millisecond):
		}
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", server, server))
	if err != nil {
		return err
	}
	for _, word := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(word)
		if err == nil {
			err = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err != nil && !errors.Is(err, syscall.ESRCH) { // a short session may have ended meanwhile
			return err
		}
	}
	return nil
}
