package logbook

import (
	"strings"
	"testing"
)

// FuzzMatches compares the patterns of operators with a naive matcher, over names of any bytes.
func FuzzMatches(f *testing.F) {
	f.Add("/a*b", "/axb")
	f.Add("*", "")
	f.Add("a**b*", "ab")
	f.Add("/a\xff*", "/a\xff\x1b")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 40 || len(name) > 40 || strings.Count(pattern, "*") > 5 {
			return // the naive matcher is slow
		}
		if got, want := matches(pattern, name), naive(pattern, name); got != want {
			t.Errorf("pattern %q, name %q: %v, the naive matcher says %v", pattern, name, got, want)
		}
	})
}

func naive(pattern, name string) bool {
	if pattern == "" {
		return name == ""
	}
	if pattern[0] == '*' {
		for i := range len(name) + 1 {
			if naive(pattern[1:], name[i:]) {
				return true
			}
		}
		return false
	}
	return name != "" && name[0] == pattern[0] && naive(pattern[1:], name[1:])
}
