package audit

import (
	"slices"
	"testing"
	"time"

	"github.com/quell-dev/quell/internal/lab/result"
)

// The path of a thread is each CPU that it moved to, and when: figures 1 and 2 of paper
// 000. A thread that stayed where it was has none.
func TestPath(t *testing.T) {
	parts := []Placed{{"a", nil, []int{10}}, {"b", nil, []int{20}}}
	l := NewLedger(smt(), 1000)
	l.Track(parts)
	for _, s := range []Switch{off(1040, 1, 10), on(1050, 3, 10), off(1060, 3, 10), on(1070, 3, 10), off(1080, 3, 10), on(1090, 0, 10), on(1010, 2, 20)} {
		l.Add(s)
	}
	got := l.Close(1100, parts, Trace)
	want := []result.Stay{{At: 0, CPU: 1}, {At: 50, CPU: 3}, {At: 90, CPU: 0}}
	if m := got[0].Migrations[0]; !slices.Equal(m.Path, want) || m.Logical != 2 || m.Physical != 1 {
		t.Errorf("%+v", m)
	}
	if m := got[1].Migrations[0]; m.Path != nil {
		t.Errorf("it never moved: %+v", m)
	}
	if !slices.Equal(got[0].Cores, []int{0, 1, 0, 1}) {
		t.Errorf("cores %v", got[0].Cores)
	}
	// By looks: a thread is seen on another CPU than before.
	l = NewLedger(smt(), 0)
	for k, cpu := range []int{0, 0, 2, 2, 1} {
		l.Ran(int64(k)*int64(time.Second), 10, cpu, 5)
	}
	want = []result.Stay{{At: 0, CPU: 0}, {At: 2 * time.Second, CPU: 2}, {At: 4 * time.Second, CPU: 1}}
	if m := l.Close(5e9, parts[:1], Poll)[0].Migrations[0]; !slices.Equal(m.Path, want) {
		t.Errorf("%+v", m)
	}
	// A thread that moves all the time does not fill the record.
	l = NewLedger(smt(), 0)
	for k := range 3 * result.MostStays {
		l.Ran(int64(k), 10, k%4, 1)
	}
	if m := l.Close(1e9, parts[:1], Poll)[0].Migrations[0]; len(m.Path) != result.MostStays || m.Logical != 3*result.MostStays-1 {
		t.Errorf("%d of %d moves are kept", len(m.Path), m.Logical)
	}
}
