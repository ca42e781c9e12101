package agent

import (
	"log/slog"
	"slices"
)

// health holds the current problems, by what they concern, and the log.
type health struct {
	problems map[string]string
	log      *slog.Logger
}

// degrade records a failure of what, or with a nil error its recovery. Only a change is
// logged.
func (h *health) degrade(what string, err error) {
	_, was := h.problems[what]
	switch {
	case err == nil && was:
		delete(h.problems, what)
		h.log.Info("works again", "what", what)
	case err != nil && h.problems[what] != err.Error():
		h.problems[what] = err.Error()
		h.log.Warn("degraded", "what", what, "reason", err)
	}
}

// lines are the problems as texts, sorted.
func (h *health) lines() (all []string) {
	for what, why := range h.problems {
		all = append(all, what+": "+why)
	}
	slices.Sort(all)
	return all
}
