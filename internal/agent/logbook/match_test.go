package logbook

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/quell-dev/quell/internal/core/sample"
)

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"/a/redis", "/a/redis", true}, {"/a/redis", "/a/redis2", false}, {"redis", "/a/redis", false},
		{"*redis", "/a/b/redis", true}, {"*redis*", "/redis/b", true}, {"/a*", "/a", true}, {"/a*c", "/abc", true},
		{"/a*b*c", "/ac", false}, {"a*a", "a", false}, {"*a*a*", "a", false}, {"**", "", true}, {"*", "x", true}, {"", "", true}, {"", "x", false},
		{"*ab", "aab", true}, {"a*b", "ab/ab", true},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("%q matches %q: %t, want %t", c.pattern, c.name, got, c.want)
		}
	}
}

// A text without "*" names a victim as commands do.
func TestMatchesAsCommandsName(t *testing.T) {
	victim := &sample.Task{Name: "shop/web-0/app", Cgroup: "/kubepods/burstable/pod1/4b1c0e6f2a7d39"}
	for pattern, want := range map[string]bool{
		"shop/web-0/app": true, "app": true, "web-0/app": true, "4b1c0e6f2a7d": true, "/kubepods/burstable/pod1/4b1c0e6f2a7d39": true,
		"shop/*": true, "/kubepods/*": true, "*web*": true,
		"web": false, "4b1c0e6f2a7": false, "b1c0e6f2a7d3": false, "ap": false, "/shop/*": false, `"`: false,
	} {
		if got := Matches(pattern, victim); got != want {
			t.Errorf("%q: %v", pattern, got)
		}
	}
}

func TestMatchesAsARegularExpressionDoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func(letters string, n int) string {
		b := make([]byte, rng.IntN(n))
		for i := range b {
			b[i] = letters[rng.IntN(len(letters))]
		}
		return string(b)
	}
	for range 20000 {
		pattern, name := word("ab*", 6), word("ab", 9)
		want := regexp.MustCompile("^" + strings.ReplaceAll(pattern, "*", ".*") + "$").MatchString(name)
		if matches(pattern, name) != want {
			t.Fatalf("%q matches %q: want %t", pattern, name, want)
		}
	}
}
