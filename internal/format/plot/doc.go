// Package plot draws charts and bars as SVG, for pages that need no script and
// no network: the lab's reports and a replay's. It computes nothing.
package plot
