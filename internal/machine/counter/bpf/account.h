/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The account of a signal: what every cgroup had done, a struct done, which the
 * program defines before it includes this. Package bpf reads it (Programs).
 */
#ifndef QUELL_ACCOUNT_H
#define QUELL_ACCOUNT_H

/* Its size is set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64); /* as owner() says, or 0 */
	__type(value, struct done);
} work SEC(".maps");

__u64 lost; /* what there was no room for, or could not be counted */

static __always_inline bool followed(__u64 id)
{
	return bpf_map_lookup_elem(&work, &id);
}

static __always_inline void no_room(void)
{
	__sync_fetch_and_add(&lost, 1);
}

#include "made.h"

/*
 * owner says who a thread is: by its cgroup in v2 or, if that is the root, by the
 * one that carries the cpu controller, whose ids are told apart by the top bit.
 * 0: by neither.
 */
static __always_inline __u64 owner(struct task_struct *p)
{
	struct cgroup *cg = p->cgroups->dfl_cgrp;

	if (cg->level > 0)
		return whole(cg->kn->id);
	if (bpf_core_field_exists(p->sched_task_group)) {
		cg = p->sched_task_group->css.cgroup;
		if (cg && cg->level > 0 && cg->root->hierarchy_id != 0)
			return whole(cg->kn->id | 1ULL << 63);
	}
	return 0;
}

/* account is a cgroup's, made if need be; NULL: there is no room. */
static __always_inline struct done *account(__u64 who)
{
	struct done *d = bpf_map_lookup_elem(&work, &who), none = {};

	if (d)
		return d;
	bpf_map_update_elem(&work, &who, &none, BPF_NOEXIST);
	d = bpf_map_lookup_elem(&work, &who);
	if (!d)
		__sync_fetch_and_add(&lost, 1);
	return d;
}

/* note keeps which places somebody used, the first n; more counts uses of others. */
static __always_inline void note(__u64 *places, int n, __u64 *more, __u64 place)
{
	int i;

	for (i = 0; i < n; i++) {
		if (places[i] == place)
			return;
		if (!places[i]) { /* two CPUs may both take it: then one place is noted later, or twice */
			places[i] = place;
			return;
		}
	}
	__sync_fetch_and_add(more, 1);
}

#endif
