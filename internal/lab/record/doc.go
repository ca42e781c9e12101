// Package record has quell-agent sample the runs of a study, and turns the agent's
// samples into labelled traces: recordings with known victims and antagonists.
//
// The labels come from the lab, not from the agent. In a run whose antagonist climbs a
// staircase of two levels, nearly zero and full load, the application's rate of work with
// the antagonist is compared with its rate without it, minutes apart at most. A clear
// slowdown is labelled, no slowdown is not. A run without a clear result is left out,
// with the reason.
package record
