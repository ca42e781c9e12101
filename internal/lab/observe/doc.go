// Package observe watches a run of the lab: which resources of the machine its parts got,
// what was counted in them, and whether anything else disturbed the run. It also
// describes the machine and applies the settings that a study wants for its duration.
//
//	o := observe.Options{Host: h, Observe: s.Observe, Run: s.Run}
//	err = lab.Run(ctx, lab.Options{Observe: o.Open, …})
//
// # Samples
//
// Each second has these values. A value is absent, which is not zero, if the study does
// not ask for it (observe.sets) or the machine does not provide it. PART is the name of a
// part, rates are per second of the real time that passed.
//
//	cpu.PART              CPU seconds/s
//	cpu.user.PART         the same, in user mode, and
//	cpu.system.PART       in the kernel
//	cpu.throttled.PART    seconds/s held back by a quota, over its CPUs
//	cpu.foreign           share of the parts' CPUs used by tasks outside the run
//	cpu.busy              on a machine without parts: share of its CPUs in use
//	cpu.lab               CPU seconds/s of the lab itself
//	cpu.irq               share of the parts' CPUs in interrupts
//	cpu.steal             share of the parts' CPUs that the hypervisor took
//	psi.RESOURCE.some     share of the second in which at least one task waits, machine
//	psi.RESOURCE.full     the same, in which all tasks wait at once
//	psi.RESOURCE.some.PART  in the part's cgroup (cgroup2)
//	sched.delay.PART      seconds/s that its threads were ready and waited for a CPU
//	sched.switches.PART   context switches/s
//	sched.migrations.PART changes of CPU/s
//	net.IF.rx_bytes       and tx_bytes, rx_packets, tx_packets, rx_dropped, tx_dropped /s
//	energy.watts          over the second, of the source that Energy names
//	swap.in, swap.out     bytes/s, machine
//	kmsg.lines            lines of the kernel's log in this second
//	clock.offset          seconds by which CLOCK_REALTIME drifted from CLOCK_MONOTONIC
//	cache.A-B             round trip of a cache line between CPUs A and B, ns; see below
//
// # Signals
//
// The signals in observe.signals are counted over the steady window, for each part: cpi,
// cps and runq from its own events and threads, io and net from the agent's sources
// (packages blockio and netq), which identify parts by their cgroups.
//
// # Foreign CPU time
//
// It is the CPU time of everything that ran on the parts' CPUs, minus the CPU time of the
// parts, and minus that of the lab's own process where this may run on no other CPU. Elsewhere
// it is not known on which CPUs the lab ran: to subtract what it used on others would hide as
// much of other processes on the parts'. Where the root of the v1 cpuacct hierarchy is
// visible, the time of each CPU is exact (ns). Otherwise it comes from /proc/stat, in
// ticks: a single second then has an error of about 1 % of a CPU, and a window that
// error divided by its length.
//
// # Sharing a cache
//
// A hypervisor may move virtual CPUs between caches. The measurement needs two threads
// that spin for some ms, so it is done in a virtual machine only, before the steady
// window and after it, never in it: a move that is reverted within the window is not
// seen. Where the placement promises a shared cache, losing it makes the run invalid.
// Otherwise the move is only recorded.
package observe
