package labcmd

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/study"
	"github.com/quell-dev/quell/internal/lab/udpload"
)

// A study's options are those that the lab's own command line accepts.
func TestUDPOptions(t *testing.T) {
	l := &labMachine{self: "quell"}
	other := func(*study.Part) (lab.Job, error) { return lab.Job{Argv: []string{"other"}}, nil }
	for _, c := range []struct {
		builtin, options, asks string
		want                   udpload.Part
	}{
		{study.UDPSend, "", "10.77.2.1", udpload.Sender{To: "10.77.2.1:5201", Flows: 2, Size: 1400, Vary: true}},
		{study.UDPSend, "-flows=1 -rate=15Mbit -size=200 -vary=false", "10.77.2.1", udpload.Sender{To: "10.77.2.1:5201", Flows: 1, Size: 200, Rate: 15e6}},
		{study.UDPReceive, "", "", udpload.Receiver{Listen: ":5201"}},
		{study.UDPPing, "-every=0s -timeout=1s", "10.77.3.1", udpload.Pinger{To: "10.77.3.1:5201", Size: 64, Timeout: time.Second}},
		{study.UDPEcho, "", "", udpload.Echo{Listen: ":5201"}},
	} {
		if err := checkOptions(c.builtin, strings.Fields(c.options)); err != nil {
			t.Errorf("%s %s: %v", c.builtin, c.options, err)
		}
		job, err := l.udpCommand(other)(&study.Part{Asks: c.asks, Workload: study.Workload{Builtin: c.builtin, Options: c.options, Time: 3 * time.Second, Warmup: study.Warmup{For: time.Second}}})
		if err != nil || !job.WaitsForStart || job.Argv[1] != "lab-udp" {
			t.Fatalf("%s: %+v, %v", c.builtin, job, err)
		}
		got, counted, err := parseUDP(job.Argv[2], job.Argv[3:])
		if d := cmp.Diff(c.want, got); err != nil || d != "" || counted != (udpload.Counted{Warmup: time.Second, Duration: 3 * time.Second}) {
			t.Errorf("%q: %+v, %v, %s", job.Argv, counted, err, d)
		}
	}
	for _, bad := range []string{study.UDPSend + " -rate=15", study.UDPSend + " -flows=0", study.UDPSend + " -size=9000", study.UDPSend + " -size=30", study.UDPSend + " now", study.UDPPing + " -timeout=0s", study.UDPEcho + " -every=1s"} {
		words := strings.Fields(bad)
		if err := checkOptions(words[0], words[1:]); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if _, err := l.udpCommand(other)(&study.Part{Workload: study.Workload{Builtin: study.UDPReceive}}); err == nil {
		t.Error("a receiver that counts for no time")
	}
	if job, err := l.udpCommand(other)(&study.Part{Workload: study.Workload{Builtin: "primes"}}); err != nil || job.Argv[0] != "other" {
		t.Errorf("a kernel: %+v, %v", job, err)
	}
}
