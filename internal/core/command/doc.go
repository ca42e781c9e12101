// Package command defines the instructions of operators to agents: one type from the
// command line to the agent's loop, and the only place that defines its limits.
//
// A Command is what quell's command line makes of its flags, and what the agent's socket
// and quell-server's API accept as JSON. Validate is the same at each of these entry points.
// The agent calls it again before it executes a command from any of them, and the planner
// applies the same Terms to a cap.
//
// A Decision is a command that stands: it has an owner, a time and an end. What operators
// decide for a cluster or for one of its machines is a list of decisions, which the bus
// carries as a whole (wire.Decisions); what they override on a machine is such a list in its
// agent. Add and the functions that read a list are the rules of both.
//
// What a command needs of the machine (that the task exists, that it may be capped) is
// not checked here: only the agent knows that.
package command
