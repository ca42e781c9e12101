//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// For tests: what the scheduler did, event by event, for a twin in Go that works
// out by brute force what runq.bpf.c works out on the way.
#include "../bpf/kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum { BPF_MAP_TYPE_RINGBUF = 27, BPF_RB_NO_WAKEUP = 1 };

enum kind { SWITCH, WAKEUP, MIGRATE };

struct event {
	__u64 ns;
	__u64 lost;	 // clock - clock_task of the CPU's rq
	__u64 cgroup[2]; // as owner() of runq.bpf.c; of a switch: of prev and next
	__u64 held[2];	 // likewise; of a migration: where it comes from and goes to
	__u32 pid[2];
	__u32 cpu, dest;
	__u32 kind;
	__u8 wants;  // of a switch: prev goes on to wait
	__u8 queued; // otherwise: the thread is queued, and not asleep
	__u8 runs;
};

__u64 refused; // events for which there was no room

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 25);
	__type(value, struct event);
} events SEC(".maps");

// held reads how long a cfs_rq was out of quota, in ns, where that has a clock.
static __always_inline __u64 held(struct cfs_rq *q)
{
	__u64 from;

	if (!bpf_core_field_exists(q->throttled_clock_self_time))
		return 0;
	from = BPF_CORE_READ(q, throttled_clock_self);
	return BPF_CORE_READ(q, throttled_clock_self_time) + (from ? BPF_CORE_READ(q, rq, clock) - from : 0);
}

static __always_inline __u64 group(struct task_struct *p)
{
	struct cgroup *g = p->sched_task_group->css.cgroup;

	return g ? g->kn->id : 0;
}

static __always_inline __u64 cgroup(struct task_struct *p)
{
	struct cgroup *g = p->cgroups->dfl_cgrp;

	return g->level > 0 ? g->kn->id : group(p) | 1ULL << 63;
}

static __always_inline struct event *event(enum kind kind)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		__sync_fetch_and_add(&refused, 1);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->kind = kind;
	e->ns = bpf_ktime_get_ns();
	e->cpu = bpf_get_smp_processor_id();
	return e;
}

static __always_inline void note(struct event *e, int i, struct task_struct *p)
{
	e->pid[i] = p->pid;
	e->cgroup[i] = cgroup(p);
	e->held[i] = held(p->se.cfs_rq);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(raw_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct event *e = event(SWITCH);

	if (!e)
		return 0;
	note(e, 0, prev);
	note(e, 1, next);
	e->wants = preempt || !prev->__state;
	e->lost = prev->se.cfs_rq->rq->clock - prev->se.cfs_rq->rq->clock_task;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

static __always_inline int of_one(enum kind kind, struct task_struct *p, __u32 dest)
{
	struct event *e = event(kind);
	struct cfs_rq *q;

	if (!e)
		return 0;
	note(e, 0, p);
	if (kind == MIGRATE && !bpf_probe_read_kernel(&q, sizeof(q), p->sched_task_group->cfs_rq + dest))
		e->held[1] = held(q);
	e->cpu = p->thread_info.cpu;
	e->dest = dest;
	e->queued = p->on_rq && !(bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed);
	e->runs = p->on_cpu;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(raw_wakeup, struct task_struct *p)
{
	return of_one(WAKEUP, p, 0);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(raw_wakeup_new, struct task_struct *p)
{
	return of_one(WAKEUP, p, 0);
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(raw_migrate, struct task_struct *p, int dest)
{
	return of_one(MIGRATE, p, dest);
}
