package labcmd

import (
	"path/filepath"
	"testing"

	"github.com/quell-dev/quell/internal/lab/result"
	"github.com/quell-dev/quell/internal/lab/role"
	"github.com/quell-dev/quell/internal/people/cli/app"
	"github.com/quell-dev/quell/internal/testkit/clitest"
	"github.com/quell-dev/quell/internal/testkit/quelltest"
)

const studyOfTools = `version: 1
study: tools
networks: {near: {uplink: far, rate: 20Mbit}, far: {}}
environments: {here: {driver: cgroup, cpus: 1, network: near}, there: {driver: cgroup, cpus: 1, network: far}}
workloads:
  send: {command: [iperf3, -c, "{asks}", -u, -b, 1M, -l, "13{index}0", -t, "2", -J], iterations: 1, metric: {name: received, unit: bit/s, better: higher, parse: iperf3}}
  count: {command: [iperf3, -s], serves: 5201}
  ping: {command: [sockperf, under-load, -i, "{asks}", --mps, "100", --reply-every, "1", --full-rtt, -t, "1"], iterations: 1, metric: {name: round trip, unit: s, better: lower, parse: sockperf}}
  echo: {command: [sockperf, server], serves: 11111}
roles:
  tenant: {workload: send, environment: here, asks: server, measure: true}
  probe: {workload: ping, environment: here, asks: mirror, measure: true}
  server: {workload: count, environment: there}
  mirror: {workload: echo, environment: there}
controls: {solo: false, aa_pairs: 0}
design: {repetitions: 1}
run: {for: 1s, retries: 2, cooldown: 0s, max_foreign_cpu: 100%, max_steal: 100%, min_overlap: 0%}
observe: {sets: [cpu]}
analysis: [{kind: net-tenants}]
`

// iperf3 and sockperf, their servers and their clients, on a study's networks: their figures
// are in the parts' values.
func TestToolsOnANetwork(t *testing.T) {
	quelltest.Need(t, quelltest.Root, "iperf3", "sockperf")
	out := filepath.Join(t.TempDir(), "out")
	if r := quell(t, clitest.Env("/nowhere"), "lab", "run", "--out", out, studyFile(t, studyOfTools)); r.Code != app.ExitOK {
		t.Fatalf("%+v", r)
	}
	_, runs := recordsOf(t, out)
	for _, r := range runs {
		if r.Verdict != result.Valid {
			continue
		}
		tenant, probe := r.Parts[0].Values, r.Parts[1].Values
		if v := tenant[role.UDPReceived]; v <= 0 || v > 2e6 || tenant[role.UDPSent] <= 0 {
			t.Errorf("the tenant reports %v", tenant)
		}
		if p99 := probe[role.PingP99]; probe[role.PingCount] <= 0 || p99 <= 0 || p99 > probe[role.PingMax] {
			t.Errorf("the probe reports %v", probe)
		}
		return
	}
	t.Error("no run is valid")
}

// recordsOf returns a folder of results and its records.
func recordsOf(t *testing.T, dir string) (*result.Folder, []result.Run) {
	t.Helper()
	f, err := result.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := f.Runs()
	if err != nil {
		t.Fatal(err)
	}
	return f, runs
}
