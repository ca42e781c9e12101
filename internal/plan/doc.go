// Package plan turns findings into actions: whom to cap, how hard, for how
// long, and what came of it (CPI², section 5).
//
// A Planner is a state machine. Each call takes the present; Take returns what has
// come of the calls: actions to carry out and incidents to write down. The host
// carries the actions out and reports back with Applied and Lifted; until then
// nothing counts as done. The invariants, whatever the order of calls:
//
//   - no automatic cap unless the mode is On, the victim is latency-sensitive
//     or protected, and the suspect is neither latency-sensitive nor never-cap;
//   - every cap has an end, and an Uncap follows it; an Adjust may put the end off,
//     only where the policy lets caps go on, and never beyond Policy.Longest;
//   - a task is capped at most once at a time;
//   - a task that was capped in vain, or in somebody's way, is not capped again
//     for the same incident;
//   - who is named below Policy.CapAt is held only for a trial, where the policy
//     has trials, to find out;
//   - a finding that names nobody, or is indeterminate, caps nobody; only where
//     the policy has trials, and finding out is worth one (detect.Finding.Trial),
//     its first suspect is held for that long;
//   - what an incident found strongest is what it says until its end, and who was
//     named is in its Findings (of many, the surest 16): only a cap or a trial in
//     vain weakens that.
//
// A Planner has no clock and is used from one goroutine.
package plan
