//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The network accounting: for every cgroup and interface that has a queue, how
// many packets were handed to it, of how many bytes, how many left it, and how
// long those waited in it; and whose packets left it meanwhile. Interfaces without one (lo, veth, bridges as they are
// made) hold nobody up and are only followed through.
#include "net.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define LINKS 4

// How long a packet may take from one interface to the next, and by how much it
// may grow there (tunnels). Kernel memory is used again: a packet of somebody
// else's may soon stand where this one stood.
#define PASSING_NS 10000000ULL
#define GROWTH 128

// An interface's queues that are told apart, as a power of two.
#define QUEUE_BITS 10

// How old a packet may be that leaves its queue.
#define STALE_NS 60000000000ULL

// How many pieces of a packet that the kernel cuts up are followed: 64 KiB hold
// 45 of a usual link's, and a task may ask for 128 (UDP_MAX_SEGMENTS).
#define PIECES 128

// What a cgroup had done. A link is network namespace << 32 | interface; which
// of them it used is kept for the first few only.
struct done {
	__u64 queued, bytes, sent, ns, resent;
	__u64 links[LINKS];
	__u64 more; // packets to further links
};

#include "../bpf/account.h"
#include "../bpf/service.h"

// A packet that is under way.
struct passage {
	__u64 who;
	__u64 at; // ns, when it was handed to the interface
	__u32 waits; // whether that has a queue
	__u32 len;
};

// Sizes are set by the loader.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64); // of the struct sk_buff
	__type(value, struct passage);
} packets SEC(".maps");

// Who sent last on a socket. TCP sends most of its packets when others' arrive,
// whoever runs then.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, __u64); // of the struct sock
	__type(value, __u64);
} senders SEC(".maps");

// holder says whose a socket is: who sent on it last or, where that is not
// known, whose cgroup in v2 made it.
static __always_inline __u64 holder(struct sock *sk)
{
	__u64 key = (__u64)sk, *who;
	struct cgroup *cg;
	unsigned char state;

	if (!sk)
		return 0;
	state = sk->__sk_common.skc_state;
	if (state == TCP_TIME_WAIT || state == TCP_NEW_SYN_RECV)
		return 0; // not a whole socket (sk_fullsock)
	who = bpf_map_lookup_elem(&senders, &key);
	if (who)
		return *who;
	if (!bpf_core_field_exists(sk->sk_cgrp_data.cgroup))
		return 0;
	// By helpers: the compiler would make one load of this and of *who, which
	// the verifier does not take.
	cg = BPF_CORE_READ(sk, sk_cgrp_data.cgroup);
	return cg && BPF_CORE_READ(cg, level) > 0 ? whole(BPF_CORE_READ(cg, kn, id)) : 0;
}

static __always_inline bool is_tcp(struct sock *sk)
{
	unsigned char state = sk ? sk->__sk_common.skc_state : TCP_TIME_WAIT;

	return state != TCP_TIME_WAIT && state != TCP_NEW_SYN_RECV && sk->sk_protocol == IPPROTO_TCP;
}

// queued reports whether an interface has a queue.
static __always_inline bool queued(struct net_device *dev)
{
	struct netdev_queue *tx = dev->_tx;
	struct Qdisc *q = tx->qdisc;

	return q && q->enqueue;
}

static __always_inline void sends(struct sock *sk)
{
	__u64 key = (__u64)sk, who = owner(bpf_get_current_task_btf()), *was;

	if (!who)
		return;
	was = bpf_map_lookup_elem(&senders, &key);
	if (!was || *was != who)
		bpf_map_update_elem(&senders, &key, &who, BPF_ANY);
}

SEC("fentry/inet_sendmsg")
int BPF_PROG(on_send, struct socket *sock)
{
	sends(sock->sk);
	return 0;
}

SEC("fentry/inet6_sendmsg")
int BPF_PROG(on_send6, struct socket *sock)
{
	sends(sock->sk);
	return 0;
}

// Where functions may not be hooked: what was sent before on a new socket, its
// first packet as a rule, is nobody's.
SEC("tp_btf/sock_send_length")
int BPF_PROG(on_sent, struct sock *sk)
{
	sends(sk);
	return 0;
}

// A packet is handed to an interface.
SEC("tp_btf/net_dev_queue")
int BPF_PROG(on_queue, struct sk_buff *skb)
{
	struct net_device *dev = skb->dev;
	struct passage now = {}, *was;
	__u64 key = (__u64)skb;
	struct done *d;

	if (dev->flags & IFF_LOOPBACK)
		return 0;
	now.at = bpf_ktime_get_ns();
	now.who = holder(skb->sk);
	if (!skb->sk) { // out of a container: on its way it has lost its socket
		was = bpf_map_lookup_elem(&packets, &key);
		if (was && !was->waits && now.at - was->at < PASSING_NS && skb->len - was->len <= GROWTH)
			now.who = was->who;
	}
	now.len = skb->len;
	now.waits = queued(dev);
	bpf_map_update_elem(&packets, &key, &now, BPF_ANY);
	if (!now.waits)
		return 0;
	d = account(now.who);
	if (!d)
		return 0;
	__sync_fetch_and_add(&d->queued, 1);
	__sync_fetch_and_add(&d->bytes, skb->len);
	note(d->links, LINKS, &d->more, (__u64)dev->nd_net.net->ns.inum << 32 | (__u32)dev->ifindex);
	return 0;
}

// The kernel has cut a packet into several that the interface can send.
SEC("fexit/__skb_gso_segment")
int BPF_PROG(on_cut, struct sk_buff *skb, __u64 features, bool tx_path, struct sk_buff *piece)
{
	__u64 key = (__u64)skb;
	struct passage *was = bpf_map_lookup_elem(&packets, &key), whole;
	int i;

	if (!was)
		return 0;
	whole = *was;
	for (i = 0; i < PIECES; i++) {
		key = (__u64)piece;
		if (!key || key >= (__u64)-4095) // none, or an error
			return 0;
		whole.len = piece->len;
		bpf_map_update_elem(&packets, &key, &whole, BPF_ANY);
		piece = piece->next;
	}
	return 0;
}

// left counts a packet that has left a queue. One leaves each of an interface's
// queues after the other, so each has a place of its own.
static __always_inline void left(struct sk_buff *skb, struct net_device *dev, __u64 who, __u64 at, __u64 now)
{
	struct done *d = bpf_map_lookup_elem(&work, &who);
	// Any task may make a user namespace, and interfaces in a network namespace of that.
	bool apart = !dev->dev.parent && dev->nd_net.net->user_ns->level > 0;

	serve((__u64)dev->nd_net.net->ns.inum << 32 | (__u32)dev->ifindex << QUEUE_BITS | (skb->queue_mapping & (1 << QUEUE_BITS) - 1),
	      apart, who, at, now);

	if (!d)
		return;
	__sync_fetch_and_add(&d->sent, 1);
	if (now > at)
		__sync_fetch_and_add(&d->ns, now - at);
}

// A packet has left its queue: the interface's driver gets it.
SEC("tp_btf/net_dev_start_xmit")
int BPF_PROG(on_leave, struct sk_buff *skb, struct net_device *dev)
{
	__u64 key = (__u64)skb, now, at;
	struct passage *p;

	if (!queued(dev))
		return 0; // it goes on to another interface, or nobody held it up
	now = bpf_ktime_get_ns();
	p = bpf_map_lookup_elem(&packets, &key);
	if (p && p->waits && p->at >= opened && skb->len - p->len <= GROWTH) {
		left(skb, dev, p->who, p->at, now);
		if (dev->dev.parent) {
			bpf_map_delete_elem(&packets, &key);
		} else { // a container may have given its interface a queue: it goes on
			p->at = now;
			p->waits = 0;
		}
		return 0;
	}
	// Handed over before the window or, where functions may not be hooked, a
	// piece. TCP's know since when they might go; others' times are other clocks', or
	// what their task says (SO_TXTIME).
	at = skb->tstamp;
	if (is_tcp(skb->sk) && at <= now && now - at < STALE_NS)
		left(skb, dev, holder(skb->sk), at, now);
	return 0;
}

// TCP sends again what it takes for lost.
SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_resend, struct sock *sk)
{
	struct done *d = account(holder(sk));

	if (d)
		__sync_fetch_and_add(&d->resent, 1);
	return 0;
}
