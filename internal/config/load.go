package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/quell-dev/quell/internal/keyed"
)

// Problem is one thing that is wrong with a configuration.
type Problem = keyed.Problem

// InvalidError lists everything that is wrong.
type InvalidError = keyed.InvalidError

// Load fills the defaults from a YAML file ("" for none), the environment
// (QUELL_SAMPLING_PERIOD=30s for sampling.period) and key=value settings, and
// validates the result. The error is an *InvalidError that names every
// problem, or says why the file cannot be read.
func Load(file string, environ, settings []string) (*Agent, error) {
	a := Default()
	r := keyed.Reader{File: file}
	if file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		if err := r.Document(&a, text); err != nil {
			return nil, fmt.Errorf("read configuration %s: %w", file, err)
		}
	}
	r.Environment(&a, "QUELL_", environ)
	for _, s := range settings {
		key, value, ok := strings.Cut(s, "=")
		if !ok {
			r.Add(s, s, "key=value", "--set")
			continue
		}
		r.Set(&a, key, value, "--set")
	}
	for _, p := range a.Validate() {
		p.Where = r.Where(p.Key)
		r.Problems = append(r.Problems, p)
	}
	if len(r.Problems) > 0 {
		return nil, &InvalidError{What: "configuration", Problems: r.Problems}
	}
	return &a, nil
}
