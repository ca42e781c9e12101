// Package record has quell-agent sample the runs of a study, and makes labelled
// traces of what it wrote: recordings of which it is known who hurt whom.
//
// What is known comes from the lab and not from the agent: in a run whose
// neighbour climbs a staircase of two levels, next to nothing and as much as it
// wants, the application's own rate of work with it is held against that without
// it, minutes apart at most. What was slowed clearly is labelled, what was not is
// not, and a run in which that cannot be said is left out, with the reason.
package record
