// Package env makes the environments of a study's roles: bare processes, cgroups,
// containers (LXC) and virtual machines (QEMU), behind the engine's interface.
//
//	m, err := env.Open(env.Options{Hold: []string{exe, "lab-hold"}, Agent: []string{exe, "lab-agent"}, Guard: guard})
//	defer m.Close()
//	err = lab.Run(ctx, lab.Options{Maker: m, …})
//
// With every driver, all processes of a part are in a cgroup of its own below
// quell-lab-<pid>-<start time> (or quell-lab-host-…), including QEMU's threads and a
// container's monitor. The part's CPU time is counted there and it is stopped there.
// Sweep finds there what is left of a lab that was killed, by the name alone: it
// contains the owner's pid and start time.
//
// host (bare) must not be in a cgroup of the cpu controller, since that is a scheduling
// group: two busy processes in one that share a CPU with a third process get half of it
// instead of two thirds. Its cgroup is therefore in no v1 hierarchy of that controller.
// On a machine with cgroup2 only this is not possible, and [Maker.Stamp] says so.
//
// The machine's capabilities are determined by trying them, never from versions: KVM,
// for example, by booting a guest. A missing one is a *lab.LackError: the run is
// skipped.
//
// Inside a container and a guest, quell's own binary is PID 1 ([AgentMain]). It holds
// programs at the barrier, passes on their output, and reports its clock, over a socket
// (LXC) or a serial line (QEMU). Neither needs a network, and a guest needs no image: a
// kernel and an initramfs with that binary suffice.
package env
