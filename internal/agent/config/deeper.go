package config

import "strings"

// Deeper reports whether a rule can make a task of a cgroup below that path. If none can, what a
// task makes in its own cgroup need not be watched or looked at, however much it is.
func (a *Agent) Deeper(path string) bool {
	for i := range a.Rules {
		if r := &a.Rules[i]; !r.Ignore && r.deeper(path) {
			return true
		}
	}
	return false
}

// deeper reports whether the pattern can match a path below the given one. A pattern of
// names may match anywhere.
func (r *Matcher) deeper(path string) bool {
	p := r.Match
	if r.ofNames() {
		return true
	}
	// The positions in the pattern that the path can have led to.
	var now, next []int
	add := func(i int) {
		for {
			if len(next) == 0 || next[len(next)-1] < i { // they come in order; others are there already
				next = append(next, i)
			}
			if i >= len(p) || p[i] != '*' {
				return
			}
			i += starLength(p[i:]) // a star may match nothing
		}
	}
	add(0)
	for _, c := range []byte(strings.TrimSuffix(path, "/") + "/") {
		now, next = next, now[:0]
		for _, i := range now {
			switch {
			case i == len(p):
			case p[i] != '*':
				if p[i] == c {
					add(i + 1)
				}
			case c != '/' || starLength(p[i:]) == 2:
				add(i)
			}
		}
		if len(next) == 0 {
			return false
		}
	}
	return next[0] < len(p) // at its end it can match no more
}

// starLength is the length of the star at the beginning of a pattern.
func starLength(p string) int {
	if strings.HasPrefix(p, "**") {
		return 2
	}
	return 1
}
