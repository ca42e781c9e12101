package config

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestDeeper(t *testing.T) {
	const rules = `
rules:
  - {match: /off/**, ignore: true}
  - {match: /docker/*, class: batch}
  - {match: /pods/*/pod-*/c*, class: batch}
  - {match: /all/**, class: batch}
  - {match: /some/**/end, class: batch}
  - {match: /exact, class: batch}
`
	a := load(t, rules, nil, nil)
	for path, want := range map[string]bool{
		"/": true, "/docker": true, "/docker/x": false, "/docker/x/y": false, "/docke": false, "/dockerx": false,
		"/pods": true, "/pods/q": true, "/pods/q/pod-1": true, "/pods/q/pod-": true, "/pods/q/pot-1": false, "/pods/q/pod-1/c1": false, "/pods/q/pod-1/d": false,
		"/all": true, "/all/a/b/c": true, "/some": true, "/some/a/end": true, "/some/a/end/b": true, "/exact": false, "/exact/a": false, "/off": false, "/off/a": false,
	} {
		if got := a.Deeper(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
	if a := load(t, "", nil, nil); a.Deeper("/kubepods/pod1/x") || !a.Deeper("/kubepods/pod1") {
		t.Error("by default it looks into containers, or not at them")
	}
}

// Below a path that no rule reaches, no rule matches.
func TestDeeperMissesNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 0))
	text := func(n int, alphabet string) string {
		var b strings.Builder
		for range 1 + random.IntN(n) {
			b.WriteByte(alphabet[random.IntN(len(alphabet))])
		}
		return b.String()
	}
	deep, matched := 0, 0
	for range 40_000 {
		r := Matcher{Match: "/" + text(8, "ab/**")}
		if err := r.compile(); err != nil {
			t.Fatal(err)
		}
		path := "/" + text(6, "ab/")
		below := strings.TrimSuffix(path, "/") + "/" + text(5, "ab/")
		deeper := r.deeper(path)
		if deeper {
			deep++
		}
		if r.pattern.MatchString(below) {
			matched++
			if !deeper {
				t.Fatalf("%s matches %s, and is not deeper than %s", r.Match, below, path)
			}
		}
	}
	if deep < 1000 || deep > 38_000 || matched < 1000 {
		t.Errorf("%d of 40,000 are deeper, %d match: this shows nothing", deep, matched)
	}
}
