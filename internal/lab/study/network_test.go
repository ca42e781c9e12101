package study

import (
	"strings"
	"testing"
	"time"
)

func TestRate(t *testing.T) {
	for text, want := range map[string]Rate{"100Mbit": 1e8, "1.5Gbit/s": 1.5e9, "56 kbit": 56e3, "8bit": 8} {
		var r Rate
		if err := r.UnmarshalText([]byte(text)); err != nil || r != want {
			t.Errorf("%s: %v, %v; want %v", text, r, err, want)
		}
		var again Rate
		if out, _ := r.MarshalText(); again.UnmarshalText(out) != nil || again != want {
			t.Errorf("%s: written as %s", text, out)
		}
	}
	for _, text := range []string{"", "100", "100MB", "-1Mbit", "NaNbit", "Mbit", "9e99Gbit"} {
		var r Rate
		if err := r.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: %v", text, r)
		}
	}
}

// web is a study of two servers and their clients.
const web = `version: 1
study: web
networks:
  host: {uplink: lan, rate: 100Mbit}
  lan: {}
environments:
  vm: {driver: cgroup, network: host}
  out: {driver: cgroup, network: lan}
workloads:
  server: {builtin: http-server}
  get-1: {builtin: http-client, options: -file=1k, time: 4s, warmup: {for: 1s}}
  none: {builtin: idle, time: 4s}
roles:
  load1: {workload: $case, environment: out, asks: vm1, measure: true, load: {control: requests, target: $rate}}
  load2: {workload: $case, environment: out, asks: vm2, measure: true, load: {control: requests, target: $rate}}
  vm1: {workload: server, environment: vm}
  vm2: {workload: server, environment: vm, count: $case}
factors:
  case:
    sets:
      "(1)": {load1: get-1, load2: none, vm2: "0"}
      "(1,1)": {load1: get-1, load2: get-1, vm2: "1"}
  rate: [max, 50%]
controls: {solo: false}
analysis: [{kind: net-io}]
`

var webKnown = Known{Builtins: []string{"idle", HTTPServer, HTTPClient}}

func TestNetworkStudy(t *testing.T) {
	s, err := Parse("web.yaml", []byte(web), webKnown)
	if err != nil {
		t.Fatal(err)
	}
	cells := s.Cells()
	if len(cells) != 4 {
		t.Fatalf("%d cells", len(cells))
	}
	for _, c := range cells {
		wantParts := map[string]int{"(1)": 3, "(1,1)": 4}[c.Level("case")]
		wantTarget := map[string]Share{MaxRate: 0, "50%": 0.5}[c.Level("rate")]
		if len(c.Parts) != wantParts || c.Networks["host"].Rate != 1e8 {
			t.Errorf("%s: %d parts, networks %v", &c, len(c.Parts), c.Networks)
		}
		for _, p := range c.Parts {
			switch p.Role {
			case "load1":
				if p.Address != "10.77.0.1/16" || p.Asks != "10.77.2.1" || p.Target != wantTarget {
					t.Errorf("%s: %+v", &c, p)
				}
			case "vm2":
				if p.Address != "10.77.3.1/16" || p.Asks != "" || !p.MayIdle() {
					t.Errorf("%s: %+v", &c, p)
				}
			}
		}
	}
}

// Each of several clients asks the server of its own number, or the only one there is.
func TestClientsOfOneServer(t *testing.T) {
	text := strings.Replace(web, "asks: vm2, measure: true,", "asks: vm1, measure: true, count: \"3\",", 1)
	s, err := Parse("web.yaml", []byte(text), webKnown)
	if err != nil {
		t.Fatal(err)
	}
	two := strings.Replace(text, "vm1: {workload: server, environment: vm}", "vm1: {workload: server, environment: vm, count: \"2\"}", 1)
	if _, err := Parse("web.yaml", []byte(two), webKnown); err == nil || !strings.Contains(err.Error(), "at most as many as vm1, 2") {
		t.Errorf("three clients of two servers: %v", err)
	}
	for _, c := range s.Cells() {
		for _, p := range c.Parts {
			if p.Role == "load2" && p.Asks != "10.77.2.1" {
				t.Errorf("%s: %s asks %s", &c, p.Name(), p.Asks)
			}
		}
	}
}

func TestBadNetworkStudy(t *testing.T) {
	for old, c := range map[string]struct{ now, want string }{
		"uplink: lan":         {"uplink: lam", "networks.host.uplink"},
		"lan: {}":             {"lan: {uplink: host}", "no loop"},
		"network: host":       {"network: hots", "environments.vm.network"},
		"asks: vm1":           {"asks: vm9", "roles.load1.asks"},
		"rate: [max, 50%]":    {"rate: [max, fast]", "roles.load1.load.target"},
		"uplink: lan, rate:":  {"rate:", "networks.host.rate"},
		"rate: 100Mbit":       {"rate: 100Mbit, shaper: red", "networks.host.shaper"},
		"network: host}":      {"network: host, bandwidth: {burst: 2Mbit}}", "environments.vm.bandwidth.baseline"},
		"vm: {driver: cgroup": {"vm: {driver: cgroup, weight: 512", "environments.vm.weight: given: want none"},
		"vm: {driver":         {"vm: {bandwidth: {baseline: 2Mbit, burst: 2Mbit, credit: 1MB}, driver", "environments.vm.bandwidth.burst"},
		"vm: {":               {"vm: {bandwidth: {baseline: 2Mbit, burst: 4Mbit}, ", "environments.vm.bandwidth.credit"},
		"network: lan}":       {"bandwidth: {baseline: 2Mbit}}", "environments.out.bandwidth"},
		"time: 4s, warmup":    {"warmup", "workloads.get-1.time"},
		"warmup: {for":        {"metric: {parse: time}, warmup: {for", "reports its own work"},
		"server: {builtin":    {"server: {serves: 80, builtin", "workloads.server.serves"},
		"  rate: [max":        {"  placement: [{name: a, relation: neutral}, {name: b, relation: per-core}]\n  rate: [max", "one level: net-io"},
		"kind: net-io":        {"kind: net-io, cas: case", "analysis[0].cas"},
		"{kind: net-io}":      {"{kind: net-io}, {kind: net-io}", "analysis[1].kind"},
		"[{kind: net-io}]":    {"[{kind: throughput}, {kind: energy, base: apart}]", "analysis[1].kind"},
		"none: {builtin":      {"other: {command: [sockperf, server], serves: 99999}\n  none: {builtin", "workloads.other.serves"},
	} {
		_, err := Parse("web.yaml", []byte(strings.Replace(web, old, c.now, 1)), webKnown)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.now, err, c.want)
		}
	}
}

// A burst lasts while more credit is used than is added.
func TestBandwidthLasts(t *testing.T) {
	for _, c := range []struct {
		b    Bandwidth
		want time.Duration
	}{
		{Bandwidth{Baseline: 20e6, Burst: 40e6, Credit: 150e6}, time.Minute},
		{Bandwidth{Baseline: 5e9, Burst: 10e9, Credit: 187.5e9}, 5 * time.Minute}, // m5.4xlarge
		{Bandwidth{Baseline: 20e6}, 0},
	} {
		if got := c.b.BurstTime(); got != c.want {
			t.Errorf("%+v: %s, want %s", c.b, got, c.want)
		}
	}
	s, err := Parse("web.yaml", []byte(strings.Replace(web, "vm: {", "vm: {bandwidth: {baseline: 2Mbit, burst: 4Mbit, credit: 1MB}, ", 1)), webKnown)
	if err != nil {
		t.Fatal(err)
	}
	if b := s.Environments["vm"].Bandwidth; b == nil || *b != (Bandwidth{2e6, 4e6, 1e6}) {
		t.Errorf("read as %+v", b)
	}
}
