/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who was served while others waited. Each place where one is served after the
 * other, such as a disk, writes down whom it served, newest last: from when the one
 * before was done until this one was. Whoever has been served reads back to when it
 * came, and adds to the pair of the two for how long each was served meanwhile, itself
 * too: for as long as it was there the place had something to do. Package bpf reads
 * the pairs (Programs).
 */
#ifndef QUELL_SERVICE_H
#define QUELL_SERVICE_H

enum {
	PLACES = 64,	/* that are told apart; a power of two */
	APART = 16,	/* further ones, that tenants made; a power of two */
	SERVICES = 512, /* that a place remembers; a power of two */
	NEAR = 4,	/* where in the table a place may be */
};

struct service {
	__u64 who, from, to; /* to 0: it is being written */
};

struct place {
	__u64 key; /* 0: free */
	__u64 last; /* when a service was last over */
	__u32 begun; /* services; the newest is at (begun - 1) % SERVICES */
	struct service services[SERVICES];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES + APART);
	__type(key, __u32);
	__type(value, struct place);
} places SEC(".maps");

struct pair {
	__u64 waits, by; /* as owner() says */
};

/* Its size is set by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct pair);
	__type(value, __u64); /* ns */
} pairs SEC(".maps");

const volatile bool unserved; /* do not tell who was served */
__u64 opened; /* CLOCK_MONOTONIC, ns: what was noted before may be over, which was not seen */
__u64 refused; /* services that had no room in places or pairs */

/*
 * Always 0, hidden from the verifier. That of 6.1 checks the callback of bpf_loop as
 * if it ran once: with a known sum at the start it removed the addition that only a
 * second step reaches.
 */
volatile __u64 nothing;

/* Tenants can make places by the hundred: apart, these take no other's. */
static __always_inline struct place *place(__u64 key, bool apart)
{
	__u32 hash = key * 0x9e3779b97f4a7c15ULL >> 32, at, i;
	struct place *p;
	__u64 was;

	for (i = 0; i < NEAR; i++) {
		at = apart ? PLACES + (hash + i & (APART - 1)) : hash + i & (PLACES - 1);
		p = bpf_map_lookup_elem(&places, &at);
		if (!p)
			return 0;
		was = p->key;
		if (!was)
			was = __sync_val_compare_and_swap(&p->key, 0, key);
		if (!was || was == key)
			return p;
	}
	return 0;
}

struct walk {
	struct place *place;
	__u64 who, since, left; /* ns that are not anybody's yet */
	__u64 by, sum; /* the last that was served, and for how long in a row */
	__u32 newest;
};

static __always_inline void add(struct walk *w)
{
	struct pair key = {w->who, w->by};
	__u64 *t, sum = w->sum;

	if (!sum)
		return;
	t = bpf_map_lookup_elem(&pairs, &key);
	if (!t) {
		if (!bpf_map_update_elem(&pairs, &key, &sum, BPF_NOEXIST))
			return;
		t = bpf_map_lookup_elem(&pairs, &key);
	}
	if (t)
		__sync_fetch_and_add(t, sum);
	else
		__sync_fetch_and_add(&refused, 1);
}

/* back looks at a service, from the newest back, and returns 1 at the last. */
static long back(__u32 i, struct walk *w)
{
	struct place *p = w->place;
	__u32 n = w->newest - i;
	volatile struct service *s = &p->services[n & (SERVICES - 1)];
	__u64 to = s->to, from = s->from, who = s->who, d;

	if (*(volatile __u32 *)&p->begun - n > SERVICES)
		return 1; /* written over since */
	if (!to)
		return 0;
	if (to <= w->since)
		return 1;
	if (to <= from)
		return 0; /* two at once, on two CPUs */
	d = to - (from > w->since ? from : w->since);
	d = d < w->left ? d : w->left;
	if (who != w->by) {
		add(w);
		w->by = who;
		w->sum = 0;
	}
	w->sum += d;
	w->left -= d;
	return from <= w->since || !w->left;
}

/* serve notes that a place has served somebody now who came at a given time. */
static __always_inline void serve(__u64 key, bool apart, __u64 who, __u64 came, __u64 now)
{
	volatile struct service *s;
	struct walk w = {};
	struct place *p;
	__u64 from;

	if (unserved || now <= came)
		return;
	p = place(key, apart);
	if (!p) {
		__sync_fetch_and_add(&refused, 1);
		return;
	}
	from = __sync_lock_test_and_set(&p->last, now);
	w.newest = __sync_fetch_and_add(&p->begun, 1);
	s = &p->services[w.newest & (SERVICES - 1)];
	s->to = 0;
	s->who = who;
	s->from = from;
	asm volatile("" ::: "memory");
	s->to = now;
	if (!who)
		return; /* whose wait it was nobody asks */
	w.place = p;
	w.who = w.by = who;
	w.since = came;
	w.left = now - came;
	w.sum = nothing;
	bpf_loop(SERVICES, back, &w, 0);
	add(&w);
}

#endif
