package workload

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/lab/role"
)

// The recordings are of sysbench 1.0.20, stress-ng 0.15.06, redis-benchmark 7.0.15 and
// wrk 4.1.0, fio 3.33, iperf3 3.12, sockperf 3.7 and qperf 0.4.11, from Debian 12, and of
// vegeta 12.12.0. Those of DaCapo and Renaissance are written from their documentation,
// because no Java was available.
func TestParseMetric(t *testing.T) {
	for _, c := range []struct {
		how, file string
		want      float64
		wrong     string // part of the error
	}{
		{"sysbench", "sysbench-cpu.txt", 265.58, ""},
		{"sysbench", "sysbench-threads.txt", 35 / 1.0185, ""},
		{"stress-ng", "stress-ng.txt", 106.56, ""},
		{"stress-ng", "stress-ng-two.txt", 0, "one stressor"},
		{"stress-ng", "wrk.txt", 0, "did not finish"},
		{`/([0-9.]+) requests per second/`, "redis-benchmark-q.txt", 3436.43, ""},
		{`/([0-9.]+) requests per second/`, "redis-benchmark.txt", 3316.75, ""},
		{`/Requests.sec: +([0-9.]+)/`, "wrk.txt", 789.91, ""},
		{`/PASSED in ([0-9]+) msec/`, "dacapo.txt", 2714, ""},
		{`/completed \(([0-9.]+) ms\)/`, "renaissance.txt", 995, ""},
		{`/avg: +([0-9.]+)/`, "sysbench-cpu.txt", 3.75, ""},
		{`/nothing like (it)/`, "sysbench-cpu.txt", 0, "no match for"},
		{`/Prime numbers (limit)/`, "sysbench-cpu.txt", 0, "not a number"},
		{`/no group/`, "sysbench-cpu.txt", 0, "one group"},
		{"json:jobs.0.read.iops", "fio.json", 32865.567216, ""},
		{"json:end.sum_received.bits_per_second", "iperf3-udp.json", 19994673.6156317, ""},
		{"json:end.sum_received.bits_per_second", "iperf3-tcp.json", 37979291530.24847, ""},
		{"json:end.sum_received.seconds", "iperf3-udp.json", 3.000159, ""},
		{"json:jobs.1.read.iops", "fio.json", 0, "no element 1 of 1"},
		{"json:jobs.0.read", "fio.json", 0, "is not a number"},
		{"json:end.sum_received.speed", "iperf3-tcp.json", 0, "is not a number"},
		{"json:end.sum_received.seconds.s", "iperf3-tcp.json", 0, `nothing has a "s"`},
		{"json:a", "wrk.txt", 0, "did not finish"},
		{`/Summary: Latency is ([0-9.]+) usec/`, "sockperf.txt", 8.153, ""},
		{`/percentile 99.000 = +([0-9.]+)/`, "sockperf.txt", 13.481, ""},
		{`/recv_bw += +([0-9.]+) GB/`, "qperf-bw.txt", 5.52, ""},
		{`/latency += +([0-9.]+) us/`, "qperf-lat.txt", 8.46, ""},
		{"json:latencies.99th", "vegeta.json", 947152409, ""},
		{"json:throughput", "vegeta.json", 699.4433037719319, ""},
		{"ab", "wrk.txt", 0, "want one of iterations, time, sysbench"},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", "output", c.file))
		if err != nil {
			t.Fatal(err)
		}
		got, _, err := ParseMetric(c.how, text)
		if c.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("%s of %s: %v, want an error with %q", c.how, c.file, err, c.wrong)
			}
			continue
		}
		if err != nil || got < c.want*(1-1e-9) || got > c.want*(1+1e-9) {
			t.Errorf("%s of %s: %v, %v, want %v", c.how, c.file, got, err, c.want)
		}
	}
}

// iperf3's and sockperf's other figures; iperf3 3.12 counts lost datagrams of -O twice, and
// sockperf prints halves of round trips.
func TestToolsValues(t *testing.T) {
	read := func(how, file, old, new string) (float64, map[string]float64, error) {
		text, err := os.ReadFile(filepath.Join("testdata", "output", file))
		if err != nil {
			t.Fatal(err)
		}
		if old != "" && !strings.Contains(string(text), old) {
			t.Fatal(file, "has no", old)
		}
		return ParseMetric(how, []byte(strings.ReplaceAll(string(text), old, new)))
	}
	const whole = 1442.0 / 1400
	for _, c := range []struct {
		how, file, old, new string
		metric              float64
		values              map[string]float64
	}{
		{"iperf3", "iperf3-udp.json", "", "", 19994673.6156317 * whole,
			map[string]float64{role.UDPSent: 19995113.4848153 * whole, role.UDPReceived: 19994673.6156317 * whole, role.UDPLost: 1 - 19994673.6156317/19995113.4848153}},
		{"iperf3", "iperf3-udp.json", `"num_streams":	1`, `"num_streams":	2`, 19994673.6156317 * whole,
			map[string]float64{role.UDPSent: 19995113.4848153 * whole, role.UDPReceived: 19994673.6156317 * whole, role.UDPLost: 1 - 19994673.6156317/19995113.4848153,
				role.SaturatedValue: 40000000 - 19995113.4848153}},
		{"iperf3", "iperf3-tcp.json", "", "", 37979291530.24847, nil},
		{"sockperf", "sockperf.txt", "", "", 2 * 8.153e-6,
			map[string]float64{role.PingCount: 94717, role.PingLost: 0, role.PingMean: 2 * 8.153e-6, role.PingP50: 2 * 7.927e-6, role.PingP90: 2 * 8.934e-6, role.PingP99: 2 * 13.481e-6, role.PingMax: 2 * 406.394e-6}},
		{"sockperf", "sockperf-rtt.txt", "dropped messages = 0", "dropped messages = 50", 2086.312e-6,
			map[string]float64{role.PingCount: 2600, role.PingLost: 50.0 / 2600, role.PingMean: 2086.312e-6, role.PingP50: 97.668e-6, role.PingP90: 3512.688e-6, role.PingP99: 58632.982e-6, role.PingMax: 58731.228e-6}},
	} {
		got, values, err := read(c.how, c.file, c.old, c.new)
		if err != nil || math.Abs(got-c.metric) > 1e-9*c.metric || len(values) != len(c.values) {
			t.Errorf("%s: %v, %v, %v", c.file, got, values, err)
		}
		for name, want := range c.values {
			if v, ok := values[name]; !ok || math.Abs(v-want) > 1e-9*math.Max(want, 1e-9) {
				t.Errorf("%s: %s is %v, want %v", c.file, name, v, want)
			}
		}
	}
	for _, c := range []struct{ how, file, old, new, want string }{
		{"iperf3", "iperf3-udp.json", `"start":	{`, `"error": "unable to connect to server", "start":	{`, "unable to connect"},
		{"iperf3", "iperf3-udp.json", `"blksize":	1400`, `"blksize":	0`, "datagrams of 0 bytes"},
		{"iperf3", "iperf3-udp.json", `"sum_received"`, `"sum_other"`, "did not finish"},
		{"iperf3", "sockperf.txt", "", "", "invalid character"},
		{"sockperf", "iperf3-udp.json", "", "", "did not finish"},
		{"sockperf", "sockperf.txt", "percentile 90.000", "percentile 91.000", "no match for"},
	} {
		if _, _, err := read(c.how, c.file, c.old, c.new); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.file, err, c.want)
		}
	}
}

// For any output of a tool the figure is a finite number, or there is an error.
func FuzzParseMetric(f *testing.F) {
	names, err := filepath.Glob("testdata/output/*.txt")
	if err != nil || len(names) == 0 {
		f.Fatal(names, err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, how := range append(ParserNames()[2:], "json:a.0.b") {
			v, _, err := ParseMetric(how, []byte(text))
			if err == nil && (v != v || v-v != 0 || v < 0 && how != "json:a.0.b") {
				t.Errorf("%s: %v", how, v)
			}
		}
	})
}
