package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/quell-dev/quell/internal/lab/role"
)

// frame is what a datagram has on the link besides its payload: Ethernet, IPv4 and UDP
// headers. Shapers count it (skb->len); they do not count the frame's checksum.
const frame = 14 + 20 + 8

// leastSent is the share of the rate that it is told to send below which iperf3 itself is
// the limit.
const leastSent = 0.99

// iperf3 reads the JSON of iperf3's client: received bits/s, of datagrams in whole frames.
// What is lost follows from what was sent and received: iperf3 3.12 counts the lost
// datagrams of the seconds before -O twice.
func iperf3(text string) (float64, map[string]float64, error) {
	type sum struct {
		Bits float64 `json:"bits_per_second"`
	}
	var r struct {
		Error string `json:"error"`
		Start struct {
			Test struct {
				Protocol string  `json:"protocol"`
				Size     float64 `json:"blksize"`
				Streams  float64 `json:"num_streams"`
				Target   float64 `json:"target_bitrate"` // of each stream
			} `json:"test_start"`
		} `json:"start"`
		End struct {
			Sent     *sum `json:"sum_sent"`
			Received *sum `json:"sum_received"`
		} `json:"end"`
	}
	switch err := json.Unmarshal([]byte(text), &r); {
	case err != nil:
		return 0, nil, err
	case r.Error != "":
		return 0, nil, errors.New(r.Error)
	case r.End.Sent == nil || r.End.Received == nil:
		return 0, nil, missing(0, "")
	}
	t, sent, received := &r.Start.Test, r.End.Sent.Bits, r.End.Received.Bits
	if t.Protocol != "UDP" {
		return received, nil, nil
	}
	if t.Size <= 0 || sent <= 0 || received < 0 {
		return 0, nil, fmt.Errorf("sent %g bits/s in datagrams of %g bytes, received %g", sent, t.Size, received)
	}
	whole := (t.Size + frame) / t.Size
	v := map[string]float64{role.UDPSent: sent * whole, role.UDPReceived: received * whole, role.UDPLost: max(0, 1-received/sent)}
	if due := t.Target * t.Streams; sent < leastSent*due {
		v[role.SaturatedValue] = due - sent
	}
	return received * whole, v, nil
}

var (
	sockperfMean = regexp.MustCompile(`====> avg-(latency|rtt)= *([0-9.]+)`)
	sockperfSent = regexp.MustCompile(`\[Valid Duration\] .*ReceivedMessages=([0-9]+)`)
	sockperfLost = regexp.MustCompile(`# dropped messages = ([0-9]+)`)
	sockperfAt   = `(?m)^sockperf: ---> %s = +([0-9.]+)$`
)

// sockperf reads the round trips of sockperf's ping-pong or under-load: their mean, in
// seconds. Without --full-rtt it prints halves of them.
func sockperf(text string) (float64, map[string]float64, error) {
	mean := sockperfMean.FindStringSubmatch(text)
	if mean == nil {
		return 0, nil, missing(0, "")
	}
	unit := 1e-6
	if mean[1] == "latency" {
		unit = 2e-6
	}
	v := map[string]float64{}
	var errs []error
	read := func(name string, unit float64, re *regexp.Regexp) {
		m := re.FindStringSubmatch(text)
		if m == nil {
			errs = append(errs, fmt.Errorf("no match for %s", re))
			return
		}
		n, err := number(m[len(m)-1])
		v[name], errs = n*unit, append(errs, err)
	}
	read(role.PingMean, unit, sockperfMean)
	for name, at := range map[string]string{role.PingP50: "percentile 50.000", role.PingP90: "percentile 90.000", role.PingP99: "percentile 99.000", role.PingMax: "<MAX> observation"} {
		read(name, unit, regexp.MustCompile(fmt.Sprintf(sockperfAt, at)))
	}
	read(role.PingCount, 1, sockperfSent)
	read(role.PingLost, 1, sockperfLost)
	if n := v[role.PingCount] + v[role.PingLost]; n > 0 {
		v[role.PingCount], v[role.PingLost] = n, v[role.PingLost]/n
	}
	return v[role.PingMean], v, errors.Join(errs...)
}
