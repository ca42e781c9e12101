//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Events of the whole machine, told apart by cgroup. Each CPU counts a group of
// events all the time. Where a thread of one cgroup follows one of another, the
// counters are read, and what was counted since the last time goes to the cgroup
// that ran. Nothing is written to a counter at a switch.
#include "../bpf/kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* linux/bpf.h */
enum { BPF_MAP_TYPE_PERF_EVENT_ARRAY = 4 };
#define BPF_F_CURRENT_CPU 0xffffffffULL

struct bpf_perf_event_value {
	__u64 counter, enabled, running;
};

enum {
	EVENTS = 3,	 // the largest group
	MEASURED = 32, // switches at a measurement
};

// What a cgroup was charged with. Several CPUs add to it at once.
struct done {
	__u64 value[EVENTS];
	__u64 enabled, running; // ns, of the group: when it was on, and when it had counters
	__u64 slices;		// charged
	__u64 missed;		// slices that could not be read
	__u64 events;		// that value has
};

#include "../bpf/account.h"

const volatile __u32 nevent = 1; // events of the group
__u32 window;			 // number of the open window, from 1

// What a CPU's counters said when they were last read. Only that CPU writes it, with
// preemption off.
struct cpu {
	__u64 value[EVENTS];
	__u64 enabled, running;
	__u64 before;  // enabled when the window began here
	__u64 runs;    // the cgroup that it runs
	__u32 begun;   // the newest window that has begun here
	__u32 ended;   // the newest that is over here
	__u32 unknown; // the counters could not be read the last time
};

// The events of each CPU's group: a map has one of each. Sizes are set by the loader.
struct event {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32); // CPU
	__type(value, __u32);
};

struct event first SEC(".maps"), second SEC(".maps"), third SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

// miss notes that a slice of a cgroup could not be counted.
static __always_inline void miss(__u64 who)
{
	struct done *d = who ? bpf_map_lookup_elem(&work, &who) : 0;

	if (!d)
		return;
	__sync_fetch_and_add(&d->missed, 1);
	__sync_fetch_and_add(&lost, 1);
}

// charge gives what this CPU counted since the last time to the cgroup that it ran. was is
// the cgroup that it ran until now, is the one that it runs from now on, 0 for none.
static __always_inline void charge(struct cpu *c, __u64 was, __u64 is)
{
	struct bpf_perf_event_value v[EVENTS] = {};
	__u64 who = c->runs;
	bool unknown;
	struct done *d;
	__u32 i;

	unknown = bpf_perf_event_read_value(&first, BPF_F_CURRENT_CPU, &v[0], sizeof(v[0])) ||
		  (nevent > 1 && bpf_perf_event_read_value(&second, BPF_F_CURRENT_CPU, &v[1], sizeof(v[1]))) ||
		  (nevent > 2 && bpf_perf_event_read_value(&third, BPF_F_CURRENT_CPU, &v[2], sizeof(v[2])));
	if (c->begun != window) {
		c->begun = window;
		c->before = v[0].enabled;
	} else if (unknown || c->unknown || was != who) {
		// Kernels may hide switches from programs: then it is not known which part
		// of the slice is whose.
		miss(who);
		if (was != who)
			miss(was);
	} else {
		d = who ? bpf_map_lookup_elem(&work, &who) : 0;
		if (d) {
			for (i = 0; i < EVENTS; i++)
				__sync_fetch_and_add(&d->value[i], v[i].counter - c->value[i]);
			__sync_fetch_and_add(&d->enabled, v[0].enabled - c->enabled);
			__sync_fetch_and_add(&d->running, v[0].running - c->running);
			__sync_fetch_and_add(&d->slices, 1);
			d->events = nevent;
		}
	}
	for (i = 0; i < EVENTS; i++)
		c->value[i] = v[i].counter;
	c->enabled = v[0].enabled;
	c->running = v[0].running;
	c->unknown = unknown;
	c->runs = is;
}

// The idle task is outside all tasks.
static __always_inline __u64 who(struct task_struct *p)
{
	return p->pid ? owner(p) : 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	__u64 was, is;

	if (!c || c->ended == window)
		return 0;
	was = who(prev);
	is = who(next);
	if (was == is && c->runs == is && c->begun == window)
		return 0;
	charge(c, was, is);
	return 0;
}

static __always_inline int edge(bool last)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	__u64 now = who(bpf_get_current_task_btf());

	if (!c || c->ended == window)
		return 0;
	charge(c, now, now);
	if (last)
		c->ended = window;
	return 0;
}

// Run on each CPU when a window opens and when a task is removed: threads that run
// meanwhile are charged with what they did until now.
SEC("raw_tp/sched_switch")
int sync(void *ctx)
{
	return edge(false);
}

// Run to measure what a switch costs: it reads the counters as often as MEASURED says.
SEC("raw_tp/sched_switch")
int measure(void *ctx)
{
	int i;

	for (i = 0; i < MEASURED; i++)
		edge(false);
	return 0;
}

// Run on each CPU when a window closes, which is over there then.
SEC("raw_tp/sched_switch")
int finish(void *ctx)
{
	return edge(true);
}
