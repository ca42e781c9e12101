//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// A token bucket in front of everything that the sockets of a cgroup send.
#include "../counter/bpf/kernel.h"

struct bpf_spin_lock {
	__u32 val;
};

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
};

#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LOOPBACK 1 // its number in every network namespace
#define SECOND 1000000000LL

// What a cgroup program may answer (kernel/bpf/cgroup.c): bit 0 lets the packet
// pass, bit 1 tells the sender of congestion.
#define PASS 1
#define DROP 2

struct bucket {
	__u64 rate;  // bytes/s
	__u64 seen;  // up to when tokens were counted
	__s64 tokens; // bytes; below 0 for what a packet was too large
	__u64 dropped, passed; // bytes
	struct bpf_spin_lock lock;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bucket);
} buckets SEC(".maps");

volatile __u64 until; // CLOCK_MONOTONIC, ns: the end of the limit

// fill adds the tokens since they were counted last. Only the time of whole bytes counts as counted:
// where packets come faster than bytes, the rest would be lost with each. A CPU whose reading of the
// clock is older than another's finds nothing to count, and must not have that time counted again.
static __always_inline void fill(struct bucket *b, __u64 now)
{
	__s64 most = b->rate / 8; // 125 ms
	__u64 more, whole;

	if (now <= b->seen)
		return;
	more = now - b->seen;
	// Until it is full: so the products below fit, whatever the time.
	if (more >= (__u64)(most - b->tokens) * SECOND / b->rate + 1) {
		b->tokens = most;
		b->seen = now;
		return;
	}
	whole = b->rate * more / SECOND;
	if (!whole)
		return;
	b->tokens += whole;
	b->seen += (whole * SECOND + b->rate - 1) / b->rate;
}

SEC("cgroup_skb/egress")
int limit(struct __sk_buff *skb)
{
	__u64 now = bpf_ktime_get_ns(), len = skb->len;
	struct bucket *b;
	__u32 zero = 0;
	int verdict = DROP;

	if (skb->ifindex == LOOPBACK)
		return PASS;
	b = bpf_map_lookup_elem(&buckets, &zero);
	if (!b || now > until)
		return PASS;
	bpf_spin_lock(&b->lock);
	fill(b, now);
	// A packet of 64 KiB that is still to be cut up may be more than the bucket
	// holds: what is owed is waited for.
	if (b->tokens > 0) {
		b->tokens -= len;
		b->passed += len;
		verdict = PASS;
	} else {
		b->dropped += len;
	}
	bpf_spin_unlock(&b->lock);
	return verdict;
}
