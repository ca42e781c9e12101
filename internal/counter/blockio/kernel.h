/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The few kernel types that blockio.bpf.c looks into. preserve_access_index
 * makes every offset a CO-RE relocation, so only names and types matter here,
 * and only of the fields listed.
 */
#ifndef QUELL_BLOCKIO_KERNEL_H
#define QUELL_BLOCKIO_KERNEL_H

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

/* linux/bpf.h */
enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
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
};

struct cgroup {
	int level; /* 0: the root */
	struct kernfs_node *kn;
	struct cgroup_root *root;
};

struct css_set {
	struct cgroup *dfl_cgrp; /* in cgroup v2 */
};

struct cgroup_subsys_state {
	struct cgroup *cgroup; /* NULL for an autogroup */
};

struct task_group {
	struct cgroup_subsys_state css;
};

struct task_struct {
	struct css_set *cgroups;
	struct task_group *sched_task_group;
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
