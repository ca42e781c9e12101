//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The run-queue accounting. For a thread that waits to run, what happened
// meanwhile is told by three clocks of the CPU it waits on:
//
//   busy       runs while the CPU runs anything but its idle task
//   run        runs while the CPU runs a thread of the waiter's own task
//   throttled  runs while the waiter's cfs_rq is out of quota
//
// Their readings when it became runnable are kept; when it is switched in,
// the differences are its wait behind others, behind itself, and for quota.
#include "kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

// A clock is one word, so that other CPUs can read it without a lock: a value
// >= 0 is a stopped clock's reading; a clock that runs holds reading - now,
// which is negative because the monotonic time is larger than any sum of
// slices. Clocks are never reset: only differences count.
typedef __s64 clock;

static __always_inline __u64 reading(volatile clock *c, __u64 now)
{
	__s64 v = *c;

	return v < 0 ? now + v : v;
}

static __always_inline void start(volatile clock *c, __u64 now)
{
	__s64 v = *c;

	if (v >= 0)
		*c = v - now;
}

static __always_inline void stop(volatile clock *c, __u64 now)
{
	__s64 v = *c;

	if (v < 0)
		*c = v + now > 0 ? v + now : 0;
}

static __always_inline __u64 since(__u64 now, __u64 then)
{
	return now > then ? now - then : 0;
}

// What a CPU does. Written by that CPU only, with interrupts off.
struct cpu {
	clock busy;
	__u32 slot; // of the task it runs; 0: of no target
	__u32 pad;
};

// What a target did on one CPU. `run` is written like struct cpu, the rest
// under that CPU's rq lock or, by the edge of a window, without: so atomically.
struct record {
	clock run;
	__u64 other, self, throttled; // waits, ns
	__u64 wakeups;		      // threads that became runnable
	__u64 waits;		      // begun
	__u64 dropped;		      // waits that could not be noted
	__u64 marked;		      // when last switched out throttled; before 6.6 only
};

// The owner of a cgroup: a slot, and a serial that tells its users apart.
struct owner {
	__u32 slot, serial;
};

// A thread that is waiting.
struct wait {
	__u64 began, busy, run, throttled; // all clocks, when it began
	struct owner owner;
	__u32 window;
	__u32 cpu;
};

const volatile __u32 ncpu = 1;	 // CPU numbers possible
const volatile __u32 nslot = 1;	 // slots, slot 0 included
const volatile bool marks_only;	 // do as before 6.6, where throttling has no clock
__u32 window;			 // number of the open window

// Sizes are set by the loader. Only cgroups of targets have an owner, and only
// their threads have an entry in waits.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct owner);
} owners SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u32); // thread id
	__type(value, struct wait);
} waits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32); // slot * ncpu + CPU
	__type(value, struct record);
} records SEC(".maps");

static __always_inline struct record *record(__u32 slot, __u32 cpu)
{
	__u32 i = slot * ncpu + cpu;

	return slot && slot < nslot && cpu < ncpu ? bpf_map_lookup_elem(&records, &i) : 0;
}

// owner says to which target a thread belongs: by its cgroup in v2 or, if that
// is the root, by the one that carries the cpu controller, whose ids are told
// apart by the top bit.
static __always_inline struct owner *owner(struct task_struct *p)
{
	struct cgroup *cg = p->cgroups->dfl_cgrp;
	__u64 id;

	if (cg->level > 0)
		id = cg->kn->id;
	else if (bpf_core_field_exists(p->sched_task_group))
		id = p->sched_task_group->css.cgroup->kn->id | 1ULL << 63;
	else
		return 0;
	return bpf_map_lookup_elem(&owners, &id);
}

static __always_inline __u32 cpu_of(struct task_struct *p)
{
	if (bpf_core_field_exists(p->thread_info.cpu))
		return p->thread_info.cpu;
	return BPF_CORE_READ((struct task_struct___v5_15 *)p, cpu);
}

static __always_inline bool runnable(struct task_struct *p)
{
	if (bpf_core_field_exists(p->__state))
		return !p->__state;
	return !BPF_CORE_READ((struct task_struct___v5_13 *)p, state);
}

static __always_inline struct cfs_rq *cfs_rq(struct task_struct *p, __u32 cpu)
{
	struct cfs_rq *q = 0;

	if (!bpf_core_field_exists(p->sched_task_group) || !bpf_core_field_exists(q->throttle_count))
		return 0;
	bpf_probe_read_kernel(&q, sizeof(q), p->sched_task_group->cfs_rq + cpu);
	return q;
}

// throttled reads the clock of the thread's cfs_rq. It is in rq_clock time:
// only differences may meet the other clocks. Before 6.6 there is none: then
// it tells, as 0 or 1, whether the cfs_rq is throttled.
static __always_inline __u64 throttled(struct task_struct *p, __u32 cpu)
{
	struct cfs_rq *q = cfs_rq(p, cpu);
	__u64 t, from;

	if (!q)
		return 0;
	if (marks_only || !bpf_core_field_exists(q->throttled_clock_self_time))
		return BPF_CORE_READ(q, throttle_count) > 0;
	t = BPF_CORE_READ(q, throttled_clock_self_time);
	from = BPF_CORE_READ(q, throttled_clock_self);
	return from ? t + since(BPF_CORE_READ(q, rq, clock), from) : t;
}

static __always_inline bool has_throttled_clock(void)
{
	struct cfs_rq *q = 0;

	return !marks_only && bpf_core_field_exists(q->throttled_clock_self_time);
}

// begin notes that a thread of a target waits on a CPU.
static __always_inline void begin(struct task_struct *p, struct owner *o, __u32 cpu, __u64 now)
{
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	struct record *r = record(o->slot, cpu);
	__u32 pid = p->pid;

	if (!c || !r)
		return;

	struct wait w = {
		.began = now,
		.busy = reading(&c->busy, now),
		.run = reading(&r->run, now),
		.throttled = throttled(p, cpu),
		.owner = *o,
		.window = window,
		.cpu = cpu,
	};
	__sync_fetch_and_add(&r->waits, 1);
	if (bpf_map_update_elem(&waits, &pid, &w, BPF_ANY))
		__sync_fetch_and_add(&r->dropped, 1);
}

// settle ends a wait and charges it. Whoever deletes the entry has it: the edge
// of a window looks at threads that their CPUs may be switching in.
static __always_inline void settle(struct task_struct *p, struct owner *o, __u64 now)
{
	__u32 pid = p->pid;
	struct wait *found = bpf_map_lookup_elem(&waits, &pid);

	if (!found)
		return;
	struct wait w = *found;

	if (bpf_map_delete_elem(&waits, &pid) || w.window != window || w.owner.serial != o->serial)
		return;

	struct cpu *c = bpf_map_lookup_elem(&cpus, &w.cpu);
	struct record *r = record(w.owner.slot, w.cpu);

	if (!c || !r)
		return;

	__u64 left = since(now, w.began);
	__u64 busy = since(reading(&c->busy, now), w.busy);
	__u64 self = since(reading(&r->run, now), w.run);
	__u64 held = throttled(p, w.cpu);

	if (has_throttled_clock())
		held = since(held, w.throttled);
	else // seen throttled at either end, or when its task was switched out
		held = held || w.throttled || r->marked >= w.began ? left : 0;

	// Held back by quota it waits for nobody, whoever runs: that time comes
	// off first, then its own task's, which does not run while throttled.
	held = held < left ? held : left;
	left -= held;
	busy = since(busy, self);
	self = self < left ? self : left;
	left -= self;
	busy = busy < left ? busy : left;
	if (held)
		__sync_fetch_and_add(&r->throttled, held);
	if (self)
		__sync_fetch_and_add(&r->self, self);
	if (busy)
		__sync_fetch_and_add(&r->other, busy);
}

// enter sets the clocks of this CPU for a thread of target `slot` running.
static __always_inline void enter(struct cpu *c, __u32 cpu, __u32 slot, bool idle, __u64 now)
{
	struct record *r;

	if (idle)
		stop(&c->busy, now);
	else
		start(&c->busy, now);
	if (c->slot != slot) {
		r = record(c->slot, cpu);
		if (r)
			stop(&r->run, now);
		c->slot = slot;
	}
	r = record(slot, cpu);
	if (r)
		start(&r->run, now);
}

static __always_inline int wakeup(struct task_struct *p)
{
	struct owner *o;
	struct record *r;
	__u32 cpu;

	// Woken before it slept: it runs, it does not wait.
	if (p->on_cpu)
		return 0;
	o = owner(p);
	if (!o)
		return 0;
	cpu = cpu_of(p);
	r = record(o->slot, cpu);
	if (r)
		__sync_fetch_and_add(&r->wakeups, 1);
	begin(p, o, cpu, bpf_ktime_get_ns());
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	return wakeup(p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	return wakeup(p);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	__u64 now = bpf_ktime_get_ns();
	struct owner *o;
	__u32 slot = 0;

	if (!c)
		return 0;
	if (c->slot && (preempt || runnable(prev)) && prev->pid) {
		o = owner(prev);
		if (o) {
			begin(prev, o, cpu, now);
			if (!has_throttled_clock() && throttled(prev, cpu)) {
				struct record *r = record(o->slot, cpu);

				if (r)
					r->marked = now;
			}
		}
	}
	if (next->pid) {
		o = owner(next);
		if (o) {
			slot = o->slot;
			settle(next, o, now);
		}
	}
	enter(c, cpu, slot, !next->pid, now);
	return 0;
}

// Before the thread's CPU changes. One that sleeps is moved too, when woken:
// only a queued one can be waiting.
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int dest)
{
	struct owner *o;
	__u64 now;

	if (!p->on_rq)
		return 0;
	o = owner(p);
	if (!o)
		return 0;
	now = bpf_ktime_get_ns();
	settle(p, o, now);
	begin(p, o, dest, now);
	return 0;
}

// Run once on each CPU when a window opens: what the CPU runs is not known
// before its first switch.
SEC("raw_tp/sched_switch")
int sync(void *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	struct owner *o = p->pid ? owner(p) : 0;

	if (c)
		enter(c, cpu, o ? o->slot : 0, !p->pid, bpf_ktime_get_ns());
	return 0;
}

// Run over all threads at both edges of a window: waits are cut there.
SEC("iter/task")
int edge(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct owner *o;
	__u64 now;

	if (!p || !p->on_rq || p->on_cpu)
		return 0;
	if (bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed)
		return 0;
	o = owner(p);
	if (!o)
		return 0;
	now = bpf_ktime_get_ns();
	settle(p, o, now);
	begin(p, o, cpu_of(p), now);
	return 0;
}
