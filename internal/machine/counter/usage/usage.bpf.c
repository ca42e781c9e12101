//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// Usage and pressure of many cgroups in one read. The kernel keeps both anyway. Here it
// walks over the cgroups of a hierarchy and copies what it keeps of those that are
// followed into rows that the agent has mapped, as cpu.stat, cpuacct.usage and
// cpu.pressure would print it. Nothing runs at a context switch.
#include "../bpf/kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum {
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	MOST_STATES = 8, // psi.h: NR_PSI_STATES, at most
	TRIES = 3,
};

// ns: more than the clock of a run queue is late, also where the host takes a virtual CPU away, and
// less than 2^32 less the 2 s after which the kernel adds up (PSI_FREQ).
#define STALE 1000000000u

// What rows hold.
enum {
	USAGE = 1,
	THROTTLED = 2,
	STALLED = 4,
};

/* linux/cgroup-defs.h */
enum cgroup_subsys_id {
	cpu_cgrp_id___q = 1, // values are relocated
	cpuacct_cgrp_id___q = 2,
};

/* linux/psi_types.h */
enum psi_states {
	PSI_CPU_SOME___q = 4,
	PSI_NONIDLE___q = 6,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_cputime {
	unsigned long long sum_exec_runtime;
};

struct cgroup_base_stat {
	struct task_cputime cputime;
};

struct work_struct {
	struct {
		long counter;
	} data; // its lowest bit: it is pending
};

struct delayed_work {
	struct work_struct work;
};

struct psi_group_cpu {
	__u32 state_mask;
	__u32 times[7]; // ns, modulo 2^32
	__u64 state_start;
	__u32 times_prev[14]; // when they were last added to the total
};

struct psi_group {
	bool enabled;
	struct psi_group_cpu *pcpu; // __percpu
	struct delayed_work avgs_work;
	__u64 total[12];
};

struct cgroup___usage {
	struct cgroup_subsys_state self;
	struct cgroup_subsys_state *subsys[12];
	struct cgroup_base_stat bstat;
	struct psi_group *psi;
};

struct cfs_bandwidth {
	__u64 throttled_time;
};

struct task_group___usage {
	struct cgroup_subsys_state css;
	struct cfs_bandwidth cfs_bandwidth;
};

struct cpuacct {
	struct cgroup_subsys_state css;
	__u64 *cpuusage; // __percpu
};

struct bpf_iter_meta {
	__u64 seq_num;
};

struct bpf_iter__cgroup {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

struct bpf_array {
	__u32 index_mask;
	void *pptrs[0];
};

#pragma clang attribute pop

extern void css_rstat_flush(struct cgroup_subsys_state *css) __ksym __weak; // 6.16
extern void cgroup_rstat_flush(struct cgroup *cgrp) __ksym __weak;	    // before

const volatile __u32 ncpu = 1; // possible CPUs
__u32 reading;		       // number of the newest read, from 1
__u64 tree;		       // the hierarchy that is read: the upper two bits of keys

struct row {
	__u64 usage, throttled, stalled; // ns since the cgroup was made
	__u32 reading;			 // in which it was written
	__u32 has;
};

// Sizes of these three are set by the loader.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct row);
} rows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64); // a cgroup's id, and its hierarchy
	__type(value, __u32);
} numbers SEC(".maps");

// What is to be added to a per-CPU pointer on each CPU.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} offsets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} anything SEC(".maps");

static long learn(__u32 cpu, void *unused)
{
	struct bpf_array *map = (void *)&anything, *a;
	__u32 zero = 0;
	__u64 *offset = bpf_map_lookup_elem(&offsets, &cpu), pointer, address;
	void *there = bpf_map_lookup_percpu_elem(&anything, &zero, cpu);

	// The verifier refuses to calculate with these pointers. What was read has no type.
	if (offset && there && !bpf_probe_read_kernel(&a, sizeof(a), &map) &&
	    !bpf_probe_read_kernel(&address, sizeof(address), &there) &&
	    !bpf_core_read(&pointer, sizeof(pointer), &a->pptrs))
		*offset = address - pointer;
	return 0;
}

// Run once, before anything is read.
SEC("syscall")
int prepare(void *unused)
{
	bpf_loop(ncpu, learn, 0, 0);
	return 0;
}

// A sum over CPUs.
struct sum {
	__u64 pointer; // per CPU
	__u64 time;    // of cpuacct
	__u64 now;     // by the scheduler's clock
	__u64 some, nonidle;
};

static long add_usage(__u32 cpu, struct sum *s)
{
	__u64 *offset = bpf_map_lookup_elem(&offsets, &cpu), t;

	if (offset && !bpf_probe_read_kernel(&t, sizeof(t), (void *)(s->pointer + *offset)))
		s->time += t;
	return 0;
}

// How long a state lasted on a CPU since the total was made; the state may last.
static __always_inline __u32 lasted(__u32 time, __u32 prev, bool lasts, __u64 from, __u64 now)
{
	if (lasts && now > from)
		time += now - from;
	time -= prev;
	// The kernel may have added it up since now was read, by a tick at most.
	return time < -STALE ? time : 0;
}

// Adds what the kernel would add to the total if it did so now (psi.c: collect_percpu_times).
static long add_stall(__u32 cpu, struct sum *s)
{
	__u64 *offset = bpf_map_lookup_elem(&offsets, &cpu), start, again;
	__u32 some = bpf_core_enum_value(enum psi_states, PSI_CPU_SOME___q);
	__u32 nonidle = bpf_core_enum_value(enum psi_states, PSI_NONIDLE___q);
	__u32 times[MOST_STATES], prev[MOST_STATES], mask, active;
	struct psi_group_cpu *p;
	int i;

	if (!offset || some >= MOST_STATES || nonidle >= MOST_STATES)
		return 0;
	p = (void *)(s->pointer + *offset);
	for (i = 0; i < TRIES; i++) {
		if (bpf_core_read(&start, sizeof(start), &p->state_start) ||
		    bpf_core_read(&mask, sizeof(mask), &p->state_mask) ||
		    bpf_core_read(&times, sizeof(times), &p->times) ||
		    bpf_core_read(&prev, sizeof(prev), &p->times_prev) ||
		    bpf_core_read(&again, sizeof(again), &p->state_start))
			return 0;
		if (again == start)
			break;
	}
	active = lasted(times[nonidle], prev[nonidle], mask & 1 << nonidle, start, s->now);
	s->nonidle += active;
	// In µs, so that the product of two times cannot overflow.
	s->some += (__u64)(lasted(times[some], prev[some], mask & 1 << some, start, s->now) / 1000) * (active / 1000);
	return 0;
}

static __always_inline bool stalled(struct psi_group *g, __u64 *total)
{
	__u32 some = bpf_core_enum_value(enum psi_states, PSI_CPU_SOME___q);
	struct sum s = {};
	bool enabled;
	long data;

	if (!g || bpf_core_read(&enabled, sizeof(enabled), &g->enabled) || !enabled ||
	    bpf_probe_read_kernel(total, sizeof(*total), (void *)g + bpf_core_field_offset(g->total) + 8 * some))
		return false;
	// Without work that is to add to the total there is nothing to add.
	if (bpf_core_read(&data, sizeof(data), &g->avgs_work.work.data.counter) || !(data & 1) ||
	    bpf_core_read(&s.pointer, sizeof(s.pointer), &g->pcpu))
		return true;
	s.now = bpf_get_current_task_btf()->se.cfs_rq->rq->clock;
	bpf_loop(ncpu, add_stall, &s, 0);
	if (s.nonidle >= 1000)
		*total += s.some * 1000 / (s.nonidle / 1000);
	return true;
}

static __always_inline void copy(struct cgroup *cg, struct row *r)
{
	struct cgroup___usage *c = (void *)cg;
	struct task_group___usage *tg = 0;
	struct cpuacct *acct;
	struct sum s = {};
	__u32 has = 0;
	__u64 at = (__u64)cg + bpf_core_field_offset(c->subsys);

	if (cg->root->hierarchy_id == 0) {
		r->usage = BPF_CORE_READ(c, bstat.cputime.sum_exec_runtime);
		has |= USAGE;
		if (stalled(BPF_CORE_READ(c, psi), &r->stalled))
			has |= STALLED;
	} else if (bpf_core_enum_value_exists(enum cgroup_subsys_id, cpuacct_cgrp_id___q) &&
		   !bpf_probe_read_kernel(&acct, sizeof(acct), (void *)(at + 8 * bpf_core_enum_value(enum cgroup_subsys_id, cpuacct_cgrp_id___q))) &&
		   acct && !bpf_core_read(&s.pointer, sizeof(s.pointer), &acct->cpuusage)) {
		bpf_loop(ncpu, add_usage, &s, 0);
		r->usage = s.time;
		has |= USAGE;
	}
	if (bpf_core_field_exists(tg->cfs_bandwidth) &&
	    !bpf_probe_read_kernel(&tg, sizeof(tg), (void *)(at + 8 * bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id___q))) &&
	    tg && !bpf_core_read(&r->throttled, sizeof(r->throttled), &tg->cfs_bandwidth.throttled_time))
		has |= THROTTLED;
	r->has = has;
	r->reading = reading;
}

SEC("iter.s/cgroup")
int read(struct bpf_iter__cgroup *ctx)
{
	struct cgroup *cg = ctx->cgroup;
	struct row *r;
	__u32 *n;
	__u64 key;

	if (!cg)
		return 0;
	// The first is above all others: what their CPUs noted is added up at once.
	if (ctx->meta->seq_num == 0 && cg->root->hierarchy_id == 0) {
		if (css_rstat_flush)
			css_rstat_flush(&((struct cgroup___usage *)cg)->self);
		else if (cgroup_rstat_flush)
			cgroup_rstat_flush(cg);
	}
	key = cg->kn->id | tree;
	n = bpf_map_lookup_elem(&numbers, &key);
	if (!n)
		return 0;
	r = bpf_map_lookup_elem(&rows, n);
	if (r)
		copy(cg, r);
	return 0;
}
