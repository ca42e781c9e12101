// Package command defines the instructions of operators to agents: one type from the
// command line to the agent's loop, and the only place that defines its limits.
//
// A Command is what quell's command line makes of its flags, what the agent's socket and
// quell-server's API accept as JSON, and what the bus carries (wire.EncodeCommand).
// Validate is the same at each of these entry points. The agent calls it again before it
// executes a command from any of them, and the planner applies the same Terms to a cap.
//
// What a command needs of the machine (that the task exists, that it may be capped) is
// not checked here: only the agent knows that.
package command
