// Package env makes the environments that a study's roles run in: bare
// processes, cgroups, containers (LXC) and virtual machines (QEMU), behind the
// engine's one interface.
//
//	m, err := env.Open(env.Options{Hold: []string{exe, "lab-hold"}, Agent: []string{exe, "lab-agent"}, Guard: guard})
//	defer m.Close()
//	err = lab.Run(ctx, lab.Options{Maker: m, …})
//
// Whatever the driver, all that a part is made of lives in a cgroup of its own
// below quell-lab-<pid>-<start time> (or quell-lab-host-…), QEMU's threads and a
// container's monitor too. Its CPU time is counted there, it is stopped there, and
// Sweep finds there what a lab that was killed has left, by nothing but the
// name: the owner's pid and start time are in it.
//
// host (bare) wants no cgroup, since a cgroup of the cpu controller is a
// scheduling group: two busy processes beside one get half of a CPU instead of
// two thirds. Its cgroup is therefore in no v1 hierarchy of that controller. On
// a machine with cgroup2 alone there is no way around it, and [Maker.Stamp] says
// so.
//
// What a machine can do is found out by trying it, never from versions: KVM, for
// one, by booting a guest. What it lacks is a *lab.LackError: the run is skipped.
//
// Inside a container and a guest, quell's own binary is PID 1 ([AgentMain]). It
// holds programs at the barrier, passes their output on, and tells its clock,
// over a socket (LXC) or a serial line (QEMU); so neither needs a network, and a
// guest needs no image: a kernel and an initramfs with that binary will do.
package env
