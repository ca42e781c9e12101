package workload

import (
	"encoding/json"
	"io"
	"math/bits"
	"time"

	"github.com/quell-dev/quell/internal/core/sample"
)

// reportEnv makes the test binary print the latencies of a serve this often.
const reportEnv = "QUELL_WORKLOAD_REPORT"

// Report is the line of JSON that a reporter prints: the latencies of a serve's requests
// since the last line, or of all of them in the Final one. A request's latency starts
// when it was due, so a late wake-up counts.
type Report struct {
	TS       sample.Millis `json:"ts"`
	Requests uint64        `json:"requests"`
	P50      time.Duration `json:"p50_ns"`
	P95      time.Duration `json:"p95_ns"`
	P99      time.Duration `json:"p99_ns"`
	Max      time.Duration `json:"max_ns"`
	Final    bool          `json:"final,omitempty"`
}

// reporter prints a Report every so often while a serve calls its method served, and one
// at the end.
type reporter struct {
	lines    *json.Encoder
	every    time.Duration
	printed  time.Time
	now, all histogram
}

func newReporter(out io.Writer, every time.Duration) *reporter {
	return &reporter{lines: json.NewEncoder(out), every: every, printed: time.Now()}
}

func (r *reporter) served(latency time.Duration) {
	r.now.add(latency)
	if at := time.Now(); at.Sub(r.printed) >= r.every {
		_ = r.lines.Encode(r.now.report(at)) // the reader may be gone: that is how it ends
		r.all.merge(&r.now)
		r.now, r.printed = histogram{}, at
	}
}

func (r *reporter) end() {
	r.all.merge(&r.now)
	last := r.all.report(time.Now())
	last.Final = true
	_ = r.lines.Encode(last)
}

// subBits is the resolution of a histogram: 2^subBits buckets an octave, so a quantile is
// at most 1/2^subBits (3 %) too high.
const subBits = 5

// histogram counts durations without allocating.
type histogram struct {
	count [64 << subBits]uint64
	n     uint64
	max   time.Duration
}

func (h *histogram) add(d time.Duration) {
	d = max(d, 0)
	h.count[bucket(uint64(d))]++
	h.n++
	h.max = max(h.max, d)
}

func (h *histogram) merge(x *histogram) {
	for i, n := range x.count {
		h.count[i] += n
	}
	h.n += x.n
	h.max = max(h.max, x.max)
}

// quantile returns an upper bound of the q-quantile (nearest rank), 0 if
// nothing was counted.
func (h *histogram) quantile(q float64) time.Duration {
	rank := max(uint64(q*float64(h.n)+0.999999), 1)
	var seen uint64
	for i, n := range h.count {
		if seen += n; seen >= rank {
			return min(time.Duration(bucketTop(i)), h.max)
		}
	}
	return h.max
}

func (h *histogram) report(at time.Time) Report {
	return Report{TS: sample.At(at), Requests: h.n, P50: h.quantile(0.50), P95: h.quantile(0.95),
		P99: h.quantile(0.99), Max: h.max}
}

// bucket returns the index of a value's bucket: one per value below 2^subBits, then
// 2^subBits buckets for each power of two.
func bucket(v uint64) int {
	if v < 1<<subBits {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return shift<<subBits + int(v>>shift)
}

// bucketTop is the largest value of a bucket.
func bucketTop(i int) uint64 {
	if i < 2<<subBits {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return (uint64(i)-uint64(shift)<<subBits+1)<<shift - 1
}
