/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The kernel's types of networks that netq.bpf.c looks into, as in ../bpf/kernel.h. */
#ifndef QUELL_NETQ_NET_H
#define QUELL_NETQ_NET_H

#include "../bpf/kernel.h"

/* linux/if.h, linux/in.h, net/tcp_states.h */
enum {
	IFF_LOOPBACK = 1 << 3,
	IPPROTO_TCP = 6,
	TCP_TIME_WAIT = 6,
	TCP_NEW_SYN_RECV = 12,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_cgroup_data {
	struct cgroup *cgroup; /* 5.15; in v2, of who made the socket */
};

struct sock_common {
	volatile unsigned char skc_state;
};

struct sock {
	struct sock_common __sk_common;
	struct sock_cgroup_data sk_cgrp_data;
	__u16 sk_protocol; /* 5.6: not of some bits */
};

struct socket {
	struct sock *sk;
};

struct ns_common {
	unsigned int inum;
};

struct user_namespace {
	int level; /* 0: the machine's */
};

struct net {
	struct ns_common ns;
	struct user_namespace *user_ns; /* in which it was made */
};

typedef struct {
	struct net *net;
} possible_net_t;

struct Qdisc {
	void *enqueue; /* NULL: noqueue */
};

struct netdev_queue {
	struct Qdisc *qdisc;
};

struct device {
	struct device *parent; /* NULL: no hardware */
};

struct net_device {
	struct device dev;
	unsigned int flags;
	int ifindex;
	struct netdev_queue *_tx;
	possible_net_t nd_net;
};

struct sk_buff {
	struct sk_buff *next;
	struct net_device *dev;
	struct sock *sk;
	unsigned int len;
	__u16 queue_mapping; /* which of the interface's queues */
	__s64 tstamp; /* of what TCP sends: since when it may go, CLOCK_MONOTONIC */
};

#pragma clang attribute pop

#endif
