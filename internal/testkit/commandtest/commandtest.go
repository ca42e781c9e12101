// Package commandtest holds valid and invalid commands with the expected answer to each.
// The tests of every entry point for commands (the command line, the agent's socket, the
// server's API, the bus) run all of them, so that all entry points answer the same in the
// same words.
package commandtest

import (
	_ "embed"
	"strconv"
	"strings"
)

// Case is a command as it arrives at the entry points.
type Case struct {
	Name string
	Args []string // for quell; nil: a command line cannot express it
	JSON string   // for the socket and, with a machine, the server's API
	Want string   // what the refusal says; "": it is valid
	// Agent is why an agent refuses it although it is valid; "": it does not.
	Agent string
}

// text has a line per field and an empty line between cases. Arguments may be quoted as
// in Go, without blanks; LONG is a name of 5000 bytes.
//
//go:embed cases.txt
var text string

// Cases returns the cases. The valid ones are for an agent with a task /batch/job-1, of a
// job named job, that executes them in order.
func Cases() (all []Case) {
	for block := range strings.SplitSeq(strings.ReplaceAll(text, "LONG", strings.Repeat("x", 5000)), "\n\n") {
		var c Case
		for line := range strings.SplitSeq(strings.TrimSpace(block), "\n") {
			switch key, value, _ := strings.Cut(line, ": "); key {
			case "name":
				c.Name = value
			case "args":
				for _, a := range strings.Fields(value) {
					if s, err := strconv.Unquote(a); err == nil {
						a = s
					}
					c.Args = append(c.Args, a)
				}
			case "json":
				c.JSON = value
			case "want":
				c.Want = value
			case "agent":
				c.Agent = value
			default:
				panic("commandtest: cases.txt: " + line)
			}
		}
		all = append(all, c)
	}
	return all
}
