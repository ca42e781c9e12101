// Package load plays many machines against a server: each with its own
// connection and credentials, sending real batches in order, the next one when
// the one before was acknowledged, as agents do. What it leaves out of an agent
// is the disk. It says what was sent, acknowledged and committed, and what that
// cost the server (quell-server load, docs/scale.md).
package load
