// Package remote runs the lab's environments on other hosts, over SSH. Nothing is
// installed there beforehand: one static program, quell itself, is pushed once,
// and makes with package env what it would make here.
//
//	inv, err := remote.ReadInventory("hosts.yaml", text)
//	h, err := remote.Dial(ctx, inv, "h1", remote.Options{Helper: exe, Words: []string{"lab-remote"}})
//	e, err := h.Make(ctx, part) // a lab.Environment
//	p, err := e.Start(ctx, job)
//	began, err := remote.Begin(ctx, procs, 0) // on all hosts at one instant
//
// What a host is told lasts as long as it hears of the lab. A helper that hears
// nothing for three quarters of its lease, because the lab, the network or the
// host's sshd is gone, uses the last quarter to thaw, kill and remove all that it
// has made. What a helper that was killed itself leaves is removed by the next one.
// From this side a host that is silent for half of the lease is lost: every call,
// pending or new, fails with a *LostError, and other hosts' go on.
//
// A host's key must be known, from the inventory or a known_hosts file; there is no
// way to leave that out. Keys to log in with come from an agent or a file and are
// never written anywhere.
//
// Clocks are compared by round trips, whose shortest says most, and processes
// begin at one instant by their own host's clock. How far apart they began is
// measured and not assumed.
package remote
