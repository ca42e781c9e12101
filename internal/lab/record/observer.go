package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quell-dev/quell/internal/lab"
	"github.com/quell-dev/quell/internal/lab/result"
)

// observer is another observer together with an agent.
type observer struct {
	lab.Observer
	agent *agent
	dir   string
}

// WithAgent lets an agent sample a run that another observer watches. The agent begins before
// the run's steady window, in its warm-up, and ends after it. If the agent fails, the run
// fails.
func WithAgent(inner lab.Observer, o lab.Observed, opt Options) (lab.Observer, error) {
	a, err := start(o, opt)
	if err != nil {
		return nil, err
	}
	return &observer{inner, a, o.Dir}, nil
}

// Close implements lab.Observer.
func (w *observer) Close(parts []result.Part) ([]result.Evidence, error) {
	err := w.agent.stop()
	evidence, closing := w.Observer.Close(parts)
	return evidence, errors.Join(err, closing, w.caches())
}

// caches writes the cache round trips that the inner observer measured.
func (w *observer) caches() error {
	m, ok := w.Observer.(interface{ Trips() []map[string]float64 })
	if !ok {
		return nil
	}
	text, err := json.Marshal(m.Trips())
	if err == nil {
		err = os.WriteFile(filepath.Join(w.dir, CachesFile), append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write cache round trips: %w", err)
	}
	return nil
}
