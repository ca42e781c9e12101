package sources

import (
	"testing"
	"time"
)

func TestTheCheaperWay(t *testing.T) {
	for _, c := range []struct {
		name                 string
		byEBPF, inCgroupMode time.Duration
		want                 bool
	}{
		{"writes are trapped", 8 * time.Microsecond, 79 * time.Microsecond, true},
		{"bare metal", time.Microsecond, 2 * time.Microsecond, true},
		{"no clear difference", 1900, 2000, false},
		{"reads cost more", 3000, 2000, false},
		{"not known", 0, 2000, false},
		{"the other is not known", 1000, 0, false},
	} {
		if got := clearlyLess(c.byEBPF, c.inCgroupMode); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
