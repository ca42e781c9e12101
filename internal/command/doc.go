// Package command is what operators tell agents to do: one type from the command
// line to the agent's loop, and the only place where its limits stand.
//
// A Command is what quell's command line makes of its flags, what the agent's
// socket and quell-server's API take as JSON, and what the bus carries
// (wire.EncodeCommand). Validate is the same at each of these doors. The agent
// calls it again before it carries a command out, whichever way that came, and
// the planner holds a cap to the same Terms.
//
// What a command needs of the machine (that there is such a task, that it may be
// capped) is not asked here: the agent knows that.
package command
