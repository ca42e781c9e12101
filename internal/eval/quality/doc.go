// Package quality counts how often rules are right: rules × scenarios of the simulator,
// with exact confidence intervals. docs/rules.md defines the counts and has the newest
// table.
package quality
