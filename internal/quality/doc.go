// Package quality counts how often rules are right: rules × scenarios of the
// simulator, with exact intervals. docs/rules.md says what is counted and has
// the newest table.
package quality
