package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/quell-dev/quell/internal/format/keyed"
)

// Problem is one error in a configuration.
type Problem = keyed.Problem

// InvalidError lists all problems.
type InvalidError = keyed.InvalidError

type problems []Problem

func (ps *problems) add(key string, value any, want string) {
	*ps = append(*ps, Problem{Key: key, Value: fmt.Sprint(value), Want: want})
}

// Load fills the defaults from a YAML file ("" for none), the environment
// (QUELL_SAMPLING_PERIOD=30s for sampling.period) and key=value settings, and
// validates the result. The error is an *InvalidError that names every
// problem, or says why the file cannot be read.
func Load(file string, environ, settings []string) (*Agent, error) {
	a := Default()
	if err := fill(&a, "QUELL_", file, environ, settings); err != nil {
		return nil, err
	}
	return &a, nil
}

// fill fills c, which holds the defaults, as described at Load.
func fill(c interface{ Validate() []Problem }, prefix, file string, environ, settings []string) error {
	r := keyed.Reader{File: file}
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read configuration: %w", err)
		}
		if err := r.Document(c, text); err != nil {
			return fmt.Errorf("read configuration %s: %w", file, err)
		}
	}
	r.Environment(c, prefix, environ)
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			r.Add(s, s, "key=value", "--set")
			continue
		}
		r.Set(c, key, value, "--set")
	}
	for _, p := range c.Validate() {
		p.Where = r.Where(p.Key)
		r.Problems = append(r.Problems, p)
	}
	if len(r.Problems) > 0 {
		return &InvalidError{What: "configuration", Problems: r.Problems}
	}
	return nil
}
