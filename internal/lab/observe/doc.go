// Package observe watches a run of the lab: what its parts got of the machine,
// what was counted in them, and whether anything else disturbed it; says what
// the machine is; and gives it what a study wants for its time.
//
//	o := observe.Options{Host: h, Observe: s.Observe, Run: s.Run}
//	err = lab.Run(ctx, lab.Options{Observe: o.Open, …})
//
// # Samples
//
// Each second has these values; what was not asked for (observe.sets) or is not
// to be had is absent, which is not zero. PART is the name of a part, rates
// are per second of the real time that passed.
//
//	cpu.PART              CPU seconds/s
//	cpu.user.PART         the same, in user mode, and
//	cpu.system.PART       in the kernel
//	cpu.throttled.PART    seconds/s held back by a quota, over its CPUs
//	cpu.foreign           share of the parts' CPUs that nobody of the run used
//	cpu.lab               CPU seconds/s of the lab itself, not in cpu.foreign
//	cpu.irq               share of the parts' CPUs in interrupts
//	cpu.steal             share of the parts' CPUs that the hypervisor took
//	psi.RESOURCE.some     share of the second with somebody waiting, machine
//	psi.RESOURCE.full     the same, with all waiting at once
//	psi.RESOURCE.some.PART  in the part's cgroup (cgroup2)
//	sched.delay.PART      seconds/s that its threads were ready and waited
//	sched.switches.PART   context switches/s
//	sched.migrations.PART changes of CPU/s
//	net.IF.rx_bytes       and tx_bytes, rx_packets, tx_packets, rx_dropped, tx_dropped /s
//	energy.watts          over the second, of the source that Energy names
//	swap.in, swap.out     bytes/s, machine
//	kmsg.lines            lines of the kernel's log in this second
//	clock.offset          seconds by which CLOCK_REALTIME went away from CLOCK_MONOTONIC
//	cache.A-B             round trip of a cache line between CPUs A and B, ns; see below
//
// # Signals
//
// What observe.signals names is counted over the steady window, for each part: cpi,
// cps and runq of its own events and threads, io and net by the sources that the
// agent has for them (packages blockio and netq), which tell parts by their cgroups.
//
// # Foreign CPU time
//
// It is what ran on the parts' CPUs, less what the parts and the lab's own
// process used in all. Where the root of the v1 cpuacct hierarchy is to be seen,
// time on each CPU is exact (ns); else it is /proc/stat's, in ticks: then
// a single second is good to about 1 % of a CPU, a window to that over its length.
//
// # Sharing a cache
//
// A hypervisor may move virtual CPUs between caches. Measuring that takes two
// threads that spin for some ms, so it is done in a virtual machine only, before the
// steady window and after it, never in it: a change that comes back within
// the window is not seen. Where the placement promises a shared cache its loss makes
// the run invalid; else it is only recorded.
package observe
