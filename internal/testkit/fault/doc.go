// Package fault has the test that kills quell at critical moments, on the kernel's real
// quota files and on real journals, and checks that every limit comes back. `make fault`
// kills more often.
//
// Half of the points kill quell-agent as it is shipped, with caps on, half a loop of
// package enforce. The moments are found by ptrace: the process is stopped before each
// system call, and a call that is about to change the journal or a limit shows the phase of
// the cap's life. The tested programs are not instrumented. Other points kill at random
// times, untraced.
//
// TestSingleFaults lets the agent live and changes one of its system calls on the way of a cap:
// it fails, is made and fails, writes half, takes long, or the agent is killed there.
//
// It fails if a limit was left, or if another process's limit was overwritten.
package fault
