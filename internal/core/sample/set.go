package sample

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Set is a set of small numbers: CPUs, caches, memory nodes. The zero value is
// empty. Sets are values: With returns a new one.
type Set []uint64

// SetOf returns the set of the given numbers; negative ones are left out.
func SetOf(numbers ...int) Set {
	var s Set
	for _, n := range numbers {
		s = s.With(n)
	}
	return s
}

// With returns s with n added; s itself may be reused for the result.
func (s Set) With(n int) Set {
	if n < 0 {
		return s
	}
	for len(s) <= n/64 {
		s = append(s, 0)
	}
	s[n/64] |= 1 << (n % 64)
	return s
}

// Has reports whether n is in the set.
func (s Set) Has(n int) bool { return n >= 0 && n/64 < len(s) && s[n/64]&(1<<(n%64)) != 0 }

// Intersects reports whether the sets share a number.
func (s Set) Intersects(t Set) bool {
	for i := range min(len(s), len(t)) {
		if s[i]&t[i] != 0 {
			return true
		}
	}
	return false
}

// Union is all numbers of both sets.
func (s Set) Union(t Set) Set {
	all := slices.Clone(s)
	for _, n := range t.Numbers() {
		all = all.With(n)
	}
	return all
}

// Len returns how many numbers are in the set.
func (s Set) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// Numbers returns the numbers in order.
func (s Set) Numbers() []int {
	var all []int
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			all = append(all, i*64+bits.TrailingZeros64(w))
		}
	}
	return all
}

// String writes the set as the kernel writes CPU lists: "0-3,8".
func (s Set) String() string {
	var b strings.Builder
	all := s.Numbers()
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(all[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(all[j]))
		}
		i = j + 1
	}
	return b.String()
}

// maxSetNumber bounds what ParseSet accepts: far above any kernel's NR_CPUS.
const maxSetNumber = 1 << 16

// ParseSet reads the kernel's list format ("0-3,8", cpuset(7) "List format").
// White space around it and an empty list are accepted.
func ParseSet(text string) (Set, error) {
	var s Set
	text = strings.TrimSpace(text)
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		a, err := strconv.ParseUint(lo, 10, 32)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(hi, 10, 32)
		}
		if err != nil || b < a || b > maxSetNumber {
			return nil, fmt.Errorf("parse list %q: bad range %q", text, part)
		}
		for n := a; n <= b; n++ {
			s = s.With(int(n))
		}
	}
	return s, nil
}
