//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// For tests: which requests disks were given and had done, one by one, for a twin in Go
// that works out by brute force what blockio.bpf.c works out on the way.
#include "../bpf/kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

enum { BPF_MAP_TYPE_RINGBUF = 27, BPF_RB_NO_WAKEUP = 1 };

struct event {
	__u64 who; // as owner() of ../bpf/account.h
	__u64 came, done;
	__u64 disk;
};

__u64 refused; // events for which there was no room

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
	__type(value, struct event);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64); // the bio's address
	__type(value, __u64);
} authors SEC(".maps");

SEC("tp_btf/block_getrq")
int BPF_PROG(raw_make, struct bio *bio)
{
	struct task_struct *p = bpf_get_current_task_btf();
	struct cgroup *g = p->cgroups->dfl_cgrp;
	__u64 key = (__u64)bio, who = 0;

	if (g->level > 0) {
		who = g->kn->id;
	} else {
		g = p->sched_task_group->css.cgroup;
		if (g && g->level > 0 && g->root->hierarchy_id != 0)
			who = g->kn->id | 1ULL << 63;
	}
	bpf_map_update_elem(&authors, &key, &who, BPF_ANY);
	return 0;
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(raw_complete, struct request *rq)
{
	__u32 op = rq->cmd_flags & REQ_OP_MASK;
	struct bio *bio = rq->bio;
	__u64 key = (__u64)bio, *who;
	struct event *e;

	if (!bio || (op != REQ_OP_READ && op != REQ_OP_WRITE))
		return 0;
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		__sync_fetch_and_add(&refused, 1);
		return 0;
	}
	who = bpf_map_lookup_elem(&authors, &key);
	e->who = who ? *who : 0;
	e->came = rq->start_time_ns;
	e->done = bpf_ktime_get_ns();
	e->disk = (__u64)bio->bi_bdev->bd_disk->major << 32 | bio->bi_bdev->bd_disk->first_minor;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}
