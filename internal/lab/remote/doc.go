// Package remote runs the lab's environments on other hosts, over SSH. Nothing is
// installed there beforehand. One static program, quell itself, is pushed once and makes
// environments with package env, as the lab does locally.
//
//	inv, err := remote.ReadInventory("hosts.yaml", text)
//	h, err := remote.Dial(ctx, inv, "h1", remote.Options{Helper: exe, Words: []string{"lab-remote"}})
//	e, err := h.Make(ctx, part) // a lab.Environment
//	p, err := e.Start(ctx, job)
//	began, err := helper.Begin(ctx, procs) // on all hosts at one instant
//
// What runs on a host depends on a lease that the lab renews. A helper that receives
// nothing for three quarters of its lease, because the lab, the network or the host's
// sshd is gone, uses the last quarter to thaw, kill and remove all that it has made. What
// a killed helper leaves is removed by the next one. On the lab's side a host that is
// silent for half of the lease is lost: every call, pending or new, fails with a
// *LostError. Other hosts continue.
//
// A host's key must be known, from the inventory or a known_hosts file; this check cannot
// be disabled. Keys to log in with come from an agent or a file and are never written
// anywhere.
//
// Clocks are compared by round trips; the shortest gives the best estimate. Processes
// begin at one instant by their own host's clock. How far apart they began is measured,
// not assumed.
package remote
