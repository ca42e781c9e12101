// Package evaluation makes the figures of CPI²'s section 7 out of incidents,
// wherever those come from: a live agent, a recording, the simulator. Nothing
// here needs to know what was true: an outcome is whether a cap helped. How
// often accusations were right, where that is known, is another figure, and
// stands beside it under its own name.
package evaluation
