package httpload

import (
	"math"
	"slices"
	"time"
)

// Result is the result of a run. Rates are per second of the counted time.
type Result struct {
	Offered    float64 // requests per second that were due; 0: a closed loop
	Rate       float64 // good answers per second
	Throughput float64 // bytes of bodies per second

	Sent    int    // requests that were due in the counted time and were sent
	Done    int    // of those, with a good answer
	Errors  Errors // of those, without
	Dropped int    // not sent: every connection was busy until the timeout
	Bytes   int64

	Latency Quantiles // s, from the intended start to the end of the answer
	Service Quantiles // s, from the sending
	// Own is the delay of the generator itself, s: from the time at which a request was
	// due to its hand-over to the connections.
	Own Quantiles

	FirstError string
	// Saturated is the reason why the generator, and not the server, determined the
	// figures; "" if it did not.
	Saturated string

	finished int
}

// Quantiles of times in seconds; without values all are 0.
type Quantiles struct {
	N    int
	Mean float64
	P50  float64
	P90  float64
	P95  float64
	P99  float64
	Max  float64
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
	return Quantiles{N: len(all), Mean: sum / float64(len(all)), P50: at(0.5), P90: at(0.9), P95: at(0.95), P99: at(0.99), Max: at(1)}
}
