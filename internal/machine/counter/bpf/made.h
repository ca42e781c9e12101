/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Cgroups that are made in an open window: each is part of the nearest one above it
 * that is followed. Else a task that goes on in a new cgroup would be no task's until
 * the next window. The program defines before it includes this: followed(), whether
 * a cgroup is, and no_room(), for one that is noted nowhere.
 */
#ifndef QUELL_MADE_H
#define QUELL_MADE_H

enum {
	MADE = 4096, /* that are noted at once */
	LEVELS = 64, /* from a cgroup up to one that is followed */
};

/* Its size may be set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MADE);
	__type(key, __u64); /* of a cgroup */
	__type(value, __u64); /* of the one that it is part of */
} part_of SEC(".maps");

__u32 parts; /* 0: there are none */

enum cgroup_subsys_id {
	cpu_cgrp_id = 1, /* the value is relocated */
};

/* id_of is a cgroup's id, as of a thread in it; 0: threads are not told apart by it. */
static __always_inline __u64 id_of(struct cgroup *cg)
{
	if (cg->level <= 0)
		return 0;
	if (cg->root->hierarchy_id == 0)
		return cg->kn->id;
	if (!bpf_core_enum_value_exists(enum cgroup_subsys_id, cpu_cgrp_id) ||
	    !(cg->root->subsys_mask & 1u << bpf_core_enum_value(enum cgroup_subsys_id, cpu_cgrp_id)))
		return 0;
	return cg->kn->id | 1ULL << 63;
}

/* whole is the cgroup that one is part of, or itself. */
static __always_inline __u64 whole(__u64 id)
{
	__u64 *w = parts ? bpf_map_lookup_elem(&part_of, &id) : 0;

	return w ? *w : id;
}

SEC("tp_btf/cgroup_mkdir")
int BPF_PROG(on_mkdir, struct cgroup *made)
{
	__u64 key = id_of(made), id, is;
	struct cgroup_subsys_state *css;
	struct cgroup *cg = made;
	int i;

	if (!key)
		return 0;
	for (i = 0; i < LEVELS; i++) {
		css = cg->self.parent;
		if (!css)
			return 0;
		cg = css->cgroup;
		id = id_of(cg);
		if (!id)
			return 0;
		is = whole(id);
		if (is == id && !followed(id))
			continue;
		if (bpf_map_update_elem(&part_of, &key, &is, BPF_ANY))
			no_room();
		else
			__sync_fetch_and_add(&parts, 1);
		return 0;
	}
	return 0;
}

SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(on_rmdir, struct cgroup *cg)
{
	__u64 key = id_of(cg);

	if (key && parts)
		bpf_map_delete_elem(&part_of, &key);
	return 0;
}

#endif
