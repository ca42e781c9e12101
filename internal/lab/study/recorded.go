package study

import (
	"errors"
	"fmt"

	"github.com/quell-dev/quell/internal/format/keyed"
)

// Recorded reads the study of stored results. What a later version refuses must not take away
// what an earlier one has recorded, so problems that Parse would refuse are returned and the
// rest of the file is read. The error is a *keyed.InvalidError only for what no report can do
// without: the name, by which files are named, and levels that can be enumerated.
func Recorded(file string, text []byte, known Known) (*Study, []keyed.Problem, error) {
	s, err := Parse(file, text, known)
	var invalid *keyed.InvalidError
	if !errors.As(err, &invalid) {
		return s, nil, err
	}
	s = defaults()
	r := keyed.Reader{File: file}
	if err := r.Document(s, text); err != nil {
		return nil, nil, fmt.Errorf("read study %s: %w", file, err)
	}
	s.complete()
	c := &checker{Study: s, known: known}
	c.readable()
	if len(c.problems) > 0 {
		return nil, nil, &keyed.InvalidError{What: "study " + file, Problems: c.problems}
	}
	return s, invalid.Problems, nil
}

// readable checks what every version has refused, and without which there is no plan.
func (c *checker) readable() {
	c.header()
	for _, name := range sorted(c.Environments) {
		c.truth("environments."+name+".truth.", c.Environments[name].Truth)
	}
	for i := range c.Factors {
		f := &c.Factors[i]
		if f.Staircase != nil {
			c.staircase("factors."+f.Name, f.Staircase)
		}
		if f.Mappings != nil {
			c.mappings("factors."+f.Name, f.Mappings)
		}
	}
}
