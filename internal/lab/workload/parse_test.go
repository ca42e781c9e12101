package workload

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		got, err := ParseMetric(c.how, text)
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
			v, err := ParseMetric(how, []byte(text))
			if err == nil && (v != v || v-v != 0 || v < 0 && how != "json:a.0.b") {
				t.Errorf("%s: %v", how, v)
			}
		}
	})
}
