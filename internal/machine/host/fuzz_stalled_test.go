package host

import (
	"fmt"
	"testing"
	"time"
)

// FuzzParseStalled compares parseStalled, which the agent runs for every task,
// with parsePSI, on text as the kernel writes it (accounting/psi.rst). On any
// other text it finds no negative time.
func FuzzParseStalled(f *testing.F) {
	f.Add([]byte("some avg10=0.00 avg60=0.00 avg300=0.00 total=12\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"), uint64(12), uint64(3))
	f.Add([]byte("some total=18446744073709551615"), uint64(1<<63), uint64(0))
	f.Add([]byte("some avg10=1 total=-1\n"), uint64(0), uint64(1))
	f.Fuzz(func(t *testing.T, text []byte, some, full uint64) {
		if d, err := parseStalled(text); err == nil && d < 0 {
			t.Errorf("stalled for %v", d)
		}
		kernel := fmt.Appendf(nil, "some avg10=0.12 avg60=3.00 avg300=45.67 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", some, full)
		quick, err := parseStalled(kernel)
		whole, wholeErr := parsePSI(kernel)
		if err != nil || wholeErr != nil || quick != whole.Some.Total || quick < 0 || some < 1<<40 && quick != time.Duration(some)*time.Microsecond {
			t.Errorf("%d µs: %v, %v; the whole reader says %v, %v", some, quick, err, whole.Some.Total, wholeErr)
		}
	})
}
