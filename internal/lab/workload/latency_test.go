package workload

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantilesAreThoseOfASortedList(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{1, 2, 10, 1000, 20_000} {
		var h, other histogram
		all := make([]time.Duration, n)
		for i := range all {
			all[i] = time.Duration(math.Exp(r.Float64() * 30))
			if i%2 == 0 {
				h.add(all[i])
			} else {
				other.add(all[i])
			}
		}
		h.merge(&other)
		slices.Sort(all)
		for _, q := range []float64{0, 0.01, 0.5, 0.95, 0.99, 1} {
			want := all[max(int(math.Ceil(q*float64(n))), 1)-1]
			got := h.quantile(q)
			if got < want || float64(got) > float64(want)*(1+1.0/(1<<subBits))+1 {
				t.Errorf("%d values, quantile %v: %v, want %v", n, q, got, want)
			}
		}
		if h.max != all[n-1] || h.n != uint64(n) {
			t.Errorf("%d values: max %v of %d, want %v", n, h.max, h.n, all[n-1])
		}
	}
	if d := new(histogram).quantile(0.5); d != 0 {
		t.Errorf("median of nothing is %v", d)
	}
}

func TestBucketsMeet(t *testing.T) {
	for i := range 59 << subBits {
		if top := bucketTop(i); bucket(top) != i || bucket(top+1) != i+1 {
			t.Fatalf("bucket %d ends at %d, which is in %d, and %d in %d", i, top, bucket(top), top+1, bucket(top+1))
		}
	}
	var h histogram
	h.add(math.MaxInt64)
	h.add(-1)
	if h.n != 2 {
		t.Errorf("counted %d of 2", h.n)
	}
}
