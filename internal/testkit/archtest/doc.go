// Package archtest holds the rules of the code that matter enough to fail a
// build: which package may import which and why, a core that is pure, no
// global state, the agent's list of dependencies. It is tests only. Each rule
// is also run over a small bad tree (testdata) to show that it can fail.
package archtest
