//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The block I/O accounting: for every cgroup and disk, how many requests were
// completed, of how many bytes, and how long they took from when the kernel
// made them: so with their time in the scheduler's queue, but without what
// blk-throttle held back before; and whom the disk served meanwhile.
#include "../bpf/kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define DISKS 4

// What a cgroup had done. A disk is major << 32 | minor; which of them it used
// is kept for the first few only.
struct done {
	__u64 ops, bytes, ns;
	__u64 disks[DISKS];
	__u64 more; // requests to further disks
};

#include "../bpf/account.h"
#include "../bpf/service.h"

// Who made a request that is under way, by its first bio. A request whose bio
// got another one before it (a front merge) is not found again, and its entry
// is pushed out by newer ones. The size is set by the loader.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64); // the bio's address
	__type(value, __u64);
} makers SEC(".maps");

// charged returns the cgroup that a bio is charged to, if it is one of v2: the
// nearest above its writer's that has the io controller.
static __always_inline __u64 charged(struct bio *bio)
{
	struct blkcg_gq *g = bio->bi_blkg;
	struct cgroup *cg;

	if (!g)
		return 0;
	cg = g->blkcg->css.cgroup;
	return cg->root->hierarchy_id == 0 && cg->level > 0 ? whole(cg->kn->id) : 0;
}

// A request is made: by the thread or, where that is nobody's, by who v2 says
// wrote to memory, long before, what the kernel writes back now.
SEC("tp_btf/block_getrq")
int BPF_PROG(on_make, struct bio *bio)
{
	__u64 who = owner(bpf_get_current_task_btf()), key = (__u64)bio;

	if (!who)
		who = charged(bio);
	bpf_map_update_elem(&makers, &key, &who, BPF_ANY);
	return 0;
}

// A request, or a part of one, is done.
SEC("tp_btf/block_rq_complete")
int BPF_PROG(on_complete, struct request *rq, __u32 error, unsigned int bytes)
{
	struct bio *bio = rq->bio;
	__u32 op = rq->cmd_flags & REQ_OP_MASK;
	// A copy: what a helper has seen of the stack is no pointer any more to
	// verifiers before 6.2 or so (refused on 6.1).
	__u64 key = (__u64)bio;
	__u64 now = bpf_ktime_get_ns(), cgroup, disk, *who;
	struct done *d;

	if (!bio || (op != REQ_OP_READ && op != REQ_OP_WRITE))
		return 0; // flushes, discards: not work by the byte
	who = bpf_map_lookup_elem(&makers, &key);
	cgroup = who ? *who : 0;
	if (who)
		bpf_map_delete_elem(&makers, &key);
	// Made before the window, or merged: what is noted then is of an earlier bio at this address.
	if (!who || rq->start_time_ns < opened)
		cgroup = charged(bio);
	d = account(cgroup);
	if (!d)
		return 0;
	if (!rq->start_time_ns) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	__sync_fetch_and_add(&d->ops, 1);
	__sync_fetch_and_add(&d->bytes, bytes);
	disk = (__u64)bio->bi_bdev->bd_disk->major << 32 | bio->bi_bdev->bd_disk->first_minor;
	if (now > rq->start_time_ns) {
		__sync_fetch_and_add(&d->ns, now - rq->start_time_ns);
		serve(disk, false, cgroup, rq->start_time_ns, now);
	}
	note(d->disks, DISKS, &d->more, disk);
	return 0;
}
