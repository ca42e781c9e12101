package httpload

import (
	"math"
	"slices"
	"time"
)

// Result is the result of a run. Rates are per second of the counted time.
type Result struct {
	Offered     float64 `json:"offered,omitempty"` // requests per second that were due; 0: a closed loop
	Rate        float64 `json:"rate"`              // good answers per second
	Throughput  float64 `json:"throughput"`        // bytes of bodies per second
	Seconds     float64 `json:"seconds"`
	Connections int     `json:"connections"`

	Sent    int    `json:"sent"`    // requests that were due in the counted time and were sent
	Done    int    `json:"done"`    // of those, with a good answer
	Errors  Errors `json:"errors"`  // of those, without
	Dropped int    `json:"dropped"` // not sent: every connection was busy until the timeout
	Bytes   int64  `json:"bytes"`

	Latency Quantiles `json:"latency"` // s, from the intended start to the end of the answer
	Service Quantiles `json:"service"` // s, from the sending
	Late    Quantiles `json:"late"`    // s, from the intended start to the sending
	// Own is the delay of the generator itself, s: from the time at which a request was
	// due to its hand-over to the connections.
	Own Quantiles `json:"own"`

	FirstError string `json:"first_error,omitempty"`
	// Saturated is the reason why the generator, and not the server, determined the
	// figures; "" if it did not.
	Saturated string `json:"saturated,omitempty"`

	finished int
}

// Quantiles of times in seconds. JSON has no NaN, so without values they are 0 and N is
// 0.
type Quantiles struct {
	N    int     `json:"n"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// quantiles sorts all. A quantile is the smallest value that is not exceeded by that
// share of all values (type 1 of Hyndman and Fan).
func quantiles(all []time.Duration) Quantiles {
	if len(all) == 0 {
		return Quantiles{}
	}
	slices.Sort(all)
	at := func(q float64) float64 {
		return all[max(0, int(math.Ceil(q*float64(len(all))))-1)].Seconds()
	}
	var sum float64
	for _, d := range all {
		sum += d.Seconds()
	}
	return Quantiles{N: len(all), Mean: sum / float64(len(all)), P50: at(0.5), P90: at(0.9), P95: at(0.95), P99: at(0.99), P999: at(0.999), Max: at(1)}
}
