/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types that quell's programs look into. preserve_access_index
 * makes every offset a CO-RE relocation, so only names and types matter here,
 * and only of the fields listed. Written by hand: a dump of one kernel's BTF
 * would be three megabytes of one kernel's truth.
 */
#ifndef QUELL_KERNEL_H
#define QUELL_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
enum { false, true };

/* linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_TASK_STORAGE = 29, /* 5.11 */
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1 << 0,
	BPF_F_MMAPABLE = 1 << 10,
	BPF_LOCAL_STORAGE_GET_F_CREATE = 1 << 0,
};

/* linux/sched.h, linux/sched/prio.h */
enum {
	SCHED_NORMAL = 0,
	SCHED_BATCH = 3,
	SCHED_IDLE = 5,
	NICE_0 = 120, /* static_prio */
};

/* linux/blk_types.h */
enum {
	REQ_OP_MASK = 255,
	REQ_OP_READ = 0,
	REQ_OP_WRITE = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node {
	__u64 id; /* 5.5; the inode of the directory */
};

struct cgroup_root {
	int hierarchy_id; /* 0: cgroup v2 */
	unsigned int subsys_mask; /* its controllers */
};

struct cgroup_subsys_state {
	struct cgroup *cgroup; /* NULL for an autogroup */
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	int level; /* 0: the root */
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct css_set {
	struct cgroup *dfl_cgrp; /* in cgroup v2 */
};

struct rq {
	__u64 clock;
	__u64 clock_task; /* without interrupts and steal, where they are accounted */
};

struct cfs_rq {
	struct rq *rq;
	int throttle_count; /* of it and its ancestors */
	__u64 throttled_clock_self;	 /* 6.6: since when, 0: not throttled */
	__u64 throttled_clock_self_time; /* 6.6: sum of what is over */
};

struct task_group {
	struct cgroup_subsys_state css;
	struct cfs_rq **cfs_rq; /* by CPU */
};

struct sched_entity {
	struct cfs_rq *cfs_rq; /* of the thread's cgroup, on its CPU */
	unsigned char sched_delayed; /* 6.12: asleep but still queued */
};

struct thread_info {
	__u32 cpu; /* 5.16 */
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state; /* 5.14 */
	int on_cpu;
	int on_rq;
	int static_prio;
	unsigned int policy;
	struct sched_entity se;
	struct task_group *sched_task_group;
	int pid;
	struct css_set *cgroups;
};

struct task_struct___v5_13 {
	long state;
};

struct task_struct___v5_15 {
	unsigned int cpu;
};

struct bpf_iter__task {
	struct task_struct *task;
};

struct blkcg {
	struct cgroup_subsys_state css;
};

struct blkcg_gq {
	struct blkcg *blkcg;
};

struct gendisk {
	int major, first_minor;
};

struct block_device {
	struct gendisk *bd_disk; /* 5.11 */
};

struct bio {
	struct block_device *bi_bdev; /* 5.12 */
	struct blkcg_gq *bi_blkg;
};

struct request {
	struct bio *bio;
	__u32 cmd_flags;
	__u64 start_time_ns; /* 0 where the queue keeps no time (iostats off) */
};

#pragma clang attribute pop

#endif
