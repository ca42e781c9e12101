// Package commandtest holds valid and invalid commands with the expected answer to each.
// The tests of every entry point for commands (the command line, the agent's socket, the
// server's API, the bus) run all of them, so that all entry points answer the same in the
// same words.
package commandtest

import "strings"

// Case is a command as it arrives at the entry points.
type Case struct {
	Name string
	Args []string // for quell; nil: a command line cannot express it
	JSON string   // for the socket and, with a machine, the server's API
	Want string   // what the refusal says; "": it is valid
	// Agent is why an agent refuses it although it is valid; "": it does not.
	Agent string
}

// Cases returns the cases. The valid ones are for an agent with a task /batch/job-1, of a
// job named job, that executes them in order.
func Cases() []Case {
	long := strings.Repeat("x", 5000)
	capped := func(rate, lease string) ([]string, string) {
		return []string{"cap", "/batch/job-1", "--rate", rate, "--for", lease, "--reason", "r"},
			`{"why":"r","cap":{"task":"/batch/job-1","rate":` + rate + `,"for":"` + lease + `"}}`
	}
	cap := func(name, rate, lease, want string) Case {
		args, text := capped(rate, lease)
		return Case{Name: name, Args: args, JSON: text, Want: want}
	}
	one := func(name string, args []string, text, want string) Case {
		return Case{Name: name, Args: args, JSON: text, Want: want}
	}
	const rates, leases = "want 0.001 to 1024 CPU-s/s", "want a duration from 1s to 24h"
	const targets = "want one of task, job, class, all; got "
	const kinds = "want one of cap, uncap, protect, unprotect, enforcement, pardon; got "
	return []Case{
		cap("the lowest rate", "0.001", "1m", ""),
		one("uncap a task", []string{"uncap", "/batch/job-1", "--reason", "r"}, `{"why":"r","uncap":{"task":"/batch/job-1"}}`, ""),
		cap("the highest rate", "1024", "1m", ""),
		one("uncap a job", []string{"uncap", "--job", "job", "--reason", "r"}, `{"why":"r","uncap":{"job":"job"}}`, ""),
		cap("the shortest lease", "0.5", "1s", ""),
		one("uncap a class", []string{"uncap", "--class", "batch", "--reason", "r"}, `{"why":"r","uncap":{"class":"batch"}}`, ""),
		cap("the longest lease", "0.5", "24h", ""),
		one("uncap all", []string{"uncap", "--all", "--reason", "r"}, `{"why":"r","uncap":{"all":true}}`, ""),
		one("cap a job", []string{"cap", "--job", "job", "--rate", "0.5", "--for", "90m", "--reason", "r"},
			`{"why":"r","cap":{"job":"job","rate":0.5,"for":"1h30m"}}`, ""),
		one("protect", []string{"protect", "/batch/job-1", "--reason", "r"}, `{"why":"r","protect":{"task":"/batch/job-1"}}`, ""),
		one("unprotect", []string{"protect", "--class", "batch", "--off", "--reason", "r"}, `{"why":"r","unprotect":{"class":"batch"}}`, ""),
		one("off", []string{"enforcement", "off", "--reason", "r"}, `{"why":"r","enforcement":{"mode":"off"}}`, ""),
		one("advise", []string{"enforcement", "advise", "--reason", "r"}, `{"why":"r","enforcement":{"mode":"advise"}}`, ""),
		{Name: "pardon", Args: []string{"pardon", "job", "--reason", "r"}, JSON: `{"why":"r","pardon":{"job":"job"}}`, Agent: "no cap on it is known to have helped"},
		one("on", []string{"enforcement", "on", "--reason", "r"}, `{"why":"r","enforcement":{"mode":"on"}}`, ""),

		cap("a rate of 0", "0", "1m", "rate 0: "+rates),
		cap("a rate below 0", "-1", "1m", "rate -1: "+rates),
		cap("a rate too low", "0.0009", "1m", "rate 0.0009: "+rates),
		cap("a rate too high", "1025", "1m", "rate 1025: "+rates),
		one("a rate that is NaN", []string{"cap", "x", "--rate", "nan", "--for", "1m", "--reason", "r"}, "", "rate NaN: "+rates),
		one("an infinite rate", []string{"cap", "x", "--rate", "inf", "--for", "1m", "--reason", "r"}, "", "rate +Inf: "+rates),
		one("no rate", []string{"cap", "x", "--for", "1m", "--reason", "r"}, `{"why":"r","cap":{"task":"x","for":"1m"}}`, "rate 0: "+rates),

		cap("a lease of 11 years", "0.5", "99999h", "for 99999h: "+leases),
		cap("a lease a second too long", "0.5", "24h0m1s", "for 24h0m1s: "+leases),
		cap("a lease too short", "0.5", "999ms", "for 999ms: "+leases),
		cap("a lease below 0", "0.5", "-1h", "for -1h: "+leases),
		cap("a lease in words", "0.5", "soon", `for "soon": `+leases),
		cap("a lease without a unit", "0.5", "5", `for "5": `+leases),
		cap("a lease out of range", "0.5", "9999999h", `for "9999999h": `+leases),
		one("no lease", []string{"cap", "x", "--rate", "1", "--reason", "r"}, `{"why":"r","cap":{"task":"x","rate":1}}`, "for 0s: "+leases),

		one("no task", []string{"cap", "--rate", "1", "--for", "1m", "--reason", "r"}, `{"why":"r","cap":{"rate":1,"for":"1m"}}`, "cap: "+targets+"none"),
		one("an empty name", []string{"uncap", "", "--reason", "r"}, `{"why":"r","uncap":{"task":""}}`, "uncap: "+targets+"none"),
		one("a task and a job", []string{"uncap", "x", "--job", "job", "--reason", "r"}, `{"why":"r","uncap":{"task":"x","job":"job"}}`, "uncap: "+targets+"task and job"),
		one("a class and all", []string{"protect", "--class", "batch", "--all", "--reason", "r"}, `{"why":"r","protect":{"class":"batch","all":true}}`, "protect: "+targets+"class and all"),
		one("a job and all, unprotect", []string{"protect", "--job", "job", "--all", "--off", "--reason", "r"}, `{"why":"r","unprotect":{"job":"job","all":true}}`, "unprotect: "+targets+"job and all"),
		one("an odd class", []string{"uncap", "--class", "web", "--reason", "r"}, `{"why":"r","uncap":{"class":"web"}}`, `class "web": want latency-sensitive, batch or best-effort`),
		one("a long name", []string{"uncap", long, "--reason", "r"}, `{"why":"r","uncap":{"task":"`+long+`"}}`, "task has 5000 bytes: want at most 4096"),
		one("a long job", []string{"uncap", "--job", long, "--reason", "r"}, `{"why":"r","uncap":{"job":"`+long+`"}}`, "job has 5000 bytes: want at most 4096"),

		one("an odd mode", []string{"enforcement", "hard", "--reason", "r"}, `{"why":"r","enforcement":{"mode":"hard"}}`, `mode "hard": want off, advise or on`),
		one("no mode", nil, `{"why":"r","enforcement":{}}`, `mode "": want off, advise or on`),
		one("pardon no job", []string{"pardon", "", "--reason", "r"}, `{"why":"r","pardon":{}}`, "pardon: want a job"),

		one("no reason for a cap", []string{"cap", "x", "--rate", "1", "--for", "1m"}, `{"cap":{"task":"x","rate":1,"for":"1m"}}`, "why is empty: want a reason"),
		one("no reason for an uncap", []string{"uncap", "x"}, `{"uncap":{"task":"x"}}`, "why is empty: want a reason"),
		one("no reason to protect", []string{"protect", "x"}, `{"protect":{"task":"x"}}`, "why is empty: want a reason"),
		one("a blank reason", []string{"enforcement", "on", "--reason", " \t"}, `{"why":" \t","enforcement":{"mode":"on"}}`, "why is empty: want a reason"),
		one("no reason to pardon", []string{"pardon", "job"}, `{"pardon":{"job":"job"}}`, "why is empty: want a reason"),
		one("a long reason", []string{"uncap", "x", "--reason", long}, `{"why":"`+long+`","uncap":{"task":"x"}}`, "why has 5000 bytes: want at most 1024"),

		one("all problems at once", []string{"cap", "--class", "web", "--all", "--rate", "0", "--for", "25h"}, `{"cap":{"class":"web","all":true,"rate":0,"for":"25h"}}`,
			"cap: "+targets+`class and all; class "web": want latency-sensitive, batch or best-effort; rate 0: `+rates+"; for 25h: "+leases+"; why is empty: want a reason"),
		one("nothing to do", nil, `{"why":"r"}`, kinds+"none"),
		one("two things to do", nil, `{"why":"r","uncap":{"task":"x"},"enforcement":{"mode":"on"}}`, kinds+"uncap and enforcement"),
		one("an unknown field", nil, `{"why":"r","uncap":{"task":"x","tasks":["y"]}}`, `unknown field "tasks"`),
		one("two values", nil, `{"why":"r","uncap":{"task":"x"}} {"why":"r"}`, "more than one value"),
		one("truncated JSON", nil, `{"why":"r","uncap"`, "unexpected EOF"),
		one("a rate in words", nil, `{"why":"r","cap":{"task":"x","rate":"fast","for":"1m"}}`, "cannot unmarshal string"),
	}
}
