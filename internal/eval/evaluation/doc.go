// Package evaluation computes the figures of CPI²'s section 7 from incidents of any source:
// a live agent, a recording, the simulator. It does not need the truth: an outcome is
// whether a cap helped. The share of right accusations, if labels are known, is a separate
// figure with its own name.
package evaluation
