package keyed

import (
	"fmt"
	"strings"
)

// Problem is one error in the input.
type Problem struct {
	Key   string `json:"key"`   // dotted, e.g. "sampling.period" or "rules[2].class"
	Value string `json:"value"` // as given
	Want  string `json:"want"`  // what is allowed
	Where string `json:"where"` // file:line, environment variable or flag; "" for a default
}

func (p Problem) String() string {
	s := fmt.Sprintf("%s: %s: want %s", p.Key, p.Value, p.Want)
	if p.Where != "" {
		s = p.Where + ": " + s
	}
	return s
}

// InvalidError lists everything that is wrong.
type InvalidError struct {
	What     string // what is invalid, e.g. "configuration"
	Problems []Problem
}

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = "  " + p.String()
	}
	noun := "problems"
	if len(lines) == 1 {
		noun = "problem"
	}
	return fmt.Sprintf("%s has %d %s; nothing was changed:\n%s", e.What, len(lines), noun, strings.Join(lines, "\n"))
}
