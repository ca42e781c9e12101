// Package plan turns findings into actions: which task to cap, how hard, for how long,
// and with what outcome (CPI², section 5).
//
// A Planner is a state machine. Each call takes the current time. Take returns the
// results of the calls: actions to carry out and incidents to record. The host carries
// the actions out and reports back with Applied and Lifted; until then nothing counts as
// done. The invariants, for any order of calls:
//
//   - no automatic cap unless the mode is On, the victim is latency-sensitive
//     or protected, and the suspect is neither latency-sensitive nor never-cap. A cap ends
//     when that is no longer so (SetMode, Review; Interval reviews the tasks of its readings);
//   - no cap, an operator's neither, on a task that contains one that is spared
//     (sample.Task.Holds): the kernel would limit that one too. A cap ends when one comes;
//   - every cap has an end, and an Uncap follows it; an Adjust may postpone the end,
//     only if the policy extends caps, and never beyond Policy.MaxDuration;
//   - a task has at most one cap at a time;
//   - a task that was capped in vain is not capped again for the same incident; one whose
//     cap an operator lifted or another program replaced, for none of those that are open;
//   - a suspect named below Policy.MinLevel is capped only for a trial, if the policy
//     has trials;
//   - a finding that names no task, or is indeterminate, leads to no cap; only if
//     the policy has trials, and the finding is worth one (detect.Finding.Trial),
//     its first suspect is capped for the length of a trial;
//   - with Policy.Groups a round may have several caps: they begin and end together, and have
//     one result, which says nothing of a part of them (group.go);
//   - no automatic cap or trial for what a task reports about itself, unless a signal that
//     the machine measures agrees (witness.go);
//   - a cap is a round of one incident at most, and is judged for that one only: an
//     operator's of the incident that it names;
//   - a round compares the victim's cost before its cap with that under it only over
//     intervals in which the same other tasks were limited (round.go);
//   - an incident reports its strongest analysis until its end, and the tasks that
//     were named are in its Findings (of many, the surest 16): only a cap or a trial
//     in vain weakens that.
//
// A Planner has no clock and is used from one goroutine.
package plan
