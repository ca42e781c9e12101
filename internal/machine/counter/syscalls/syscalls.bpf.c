//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// System calls by cgroup. CPU time is the kernel's own, which package usage reads.
#include "../bpf/kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct done {
	__u64 calls;
};

#include "../bpf/account.h"

// There is room only for followed cgroups: what others do is not asked for.
SEC("tp_btf/sys_enter")
int BPF_PROG(on_enter, void *regs, long id)
{
	__u64 who = owner(bpf_get_current_task_btf());
	struct done *d = who ? bpf_map_lookup_elem(&work, &who) : 0;

	if (d)
		__sync_fetch_and_add(&d->calls, 1);
	return 0;
}
