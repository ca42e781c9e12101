// Package load simulates many machines against a server. Each has its own connection and
// credentials and sends real batches in order, the next one when the previous one was
// acknowledged, as agents do. It omits the agent's disk. It reports what was sent,
// acknowledged and committed, and what that cost the server (quell-server load,
// docs/scale.md).
package load
