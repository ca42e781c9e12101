//go:build ignore

// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//
// The run-queue accounting. For a thread that waits to run, what happened
// meanwhile is told by three clocks of the CPU it waits on:
//
//   busy       runs while the CPU runs anything but its idle task
//   run        runs while the CPU runs a thread of the waiter's own task
//   throttled  runs while the waiter's cfs_rq is out of quota
//
// Their readings when it became runnable are kept; when it is switched in,
// the differences are its wait behind others, behind itself, and for quota.
//
// Each CPU also writes down whom it ran, newest last. When a wait ends, that is
// read back to where the wait began, and each other target's part of the wait
// is added to the pair of the two.
#include "../bpf/kernel.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual BSD/GPL";

// A clock is one word, so that other CPUs can read it without a lock: a value
// >= 0 is a stopped clock's reading; a clock that runs holds reading - now,
// which is negative because the monotonic time is larger than any sum of
// slices. Clocks are never reset: only differences count.
typedef __s64 clock;

static __always_inline __u64 reading(volatile clock *c, __u64 now)
{
	__s64 v = *c;

	return v < 0 ? now + v : v;
}

static __always_inline void start(volatile clock *c, __u64 now)
{
	__s64 v = *c;

	if (v >= 0)
		*c = v - now;
}

static __always_inline void stop(volatile clock *c, __u64 now)
{
	__s64 v = *c;

	if (v < 0)
		*c = v + now > 0 ? v + now : 0;
}

static __always_inline __u64 since(__u64 now, __u64 then)
{
	return now > then ? now - then : 0;
}

// The owner of a cgroup: a slot, and a serial that tells its users apart.
struct owner {
	__u32 slot, serial; // slot 0: no target
};

enum {
	SLICES = 1024, // that a CPU remembers; a power of two
	PAIRS = 4096, // that are told apart on a CPU; a power of two
	PROBES = 8,   // places where a pair may be
	ROW = 64,     // pairs in a row of the table, if nobody has more
	AWAY = 1499,  // from one of these places to the next
};

// A slice is a stretch of time in which a CPU ran threads of one target, or of
// none, without a pause.
struct slice {
	__u64 from, to; // to 0: it is not over
	__u64 lost;	// of it, to interrupts and the hypervisor; while it is not
			// over: the reading of that clock when it began
	__u32 slot;
};

// What a CPU does. Written by that CPU only, under its rq lock, interrupts off.
// Threads of one target after each other are one slice.
struct cpu {
	clock busy;
	struct owner runs;
	__s32 pid;   // of the thread it runs
	__u32 begun; // slices; the newest is at (begun - 1) % SLICES
	__u32 open;  // the newest is not over
	struct slice slices[SLICES];
};

// What a target did on one CPU. `run` is written like struct cpu, the rest
// under that CPU's rq lock or, by the edge of a window, without: so atomically.
struct record {
	clock run;
	__u64 other, self, throttled; // waits, ns
	__u64 niced;		      // of other: of threads that ask to be served last
	__u64 wakeups;		      // threads that became runnable
	__u32 waits;		      // begun
	__u32 dropped;		      // waits that could not be noted: see struct wait
	__u64 marked;		      // when last switched out throttled; before 6.6 only
};

// How long threads of one target waited while another was served.
struct pair {
	__u64 key; // window << 32 | slot of the one that waits << 16 | of the other; free, if of another window
	__u64 time;
};

// A stretch of a wait that is to be charged to those that were served in it.
struct stretch {
	__u64 from, to;
	__u64 most;  // to be charged yet
	__u64 lost;  // reading of the CPU's clock at its end
	__u64 scale; // by how much of each slice, times 2^16; 0: by all
	__u64 row;   // key of its pairs, without the other
	__u32 begun; // slices
};

// The pairs of one CPU, or of the edge of a window. Each table has one writer at
// a time: the holder of the CPU's rq lock, or the reader of the iterator.
struct pairs {
	__u64 refused; // slices of waits that had no place
	struct stretch now; // that is being charged; here, since the verifier
			    // loses itself in numbers on the stack of a loop
	struct pair pair[PAIRS];
};

// A thread's wait. Threads of targets get one when a window opens or when they
// begin, where memory may be allocated; on the scheduler's paths, under its
// locks, there is only looking. So a thread that is moved into a target's cgroup
// in an open window has none, and its waits are dropped.
struct wait {
	__u64 began;		    // 0: it does not wait
	__u64 busy, run, throttled; // the clocks when it began
	struct owner owner;
	__u32 window;
	__u32 cpu;
};

const volatile __u32 ncpu = 1;	 // CPU numbers possible
const volatile __u32 nslot = 1;	 // slots, slot 0 included
const volatile __u32 nrecord;	 // records to give out; 0: each slot has one for each CPU
const volatile bool marks_only;	 // do as before 6.6, where throttling has no clock
const volatile bool unserved;	 // do not tell who was served
const volatile __u32 npair = PAIRS; // places used of a table of pairs, a power of two
__u32 window;			 // number of the open window; odd: it is about to open
__u32 given;			 // records that were given out; 0 is none
__u64 wanting;			 // how often there was none left, or no room for a cgroup that was made

// Sizes are set by the loader.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, struct owner);
} owners SEC(".maps");

static __always_inline bool followed(__u64 id)
{
	return bpf_map_lookup_elem(&owners, &id);
}

static __always_inline void no_room(void)
{
	__sync_fetch_and_add(&wanting, 1);
}

#include "../bpf/made.h"

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct wait);
} waits SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32); // slot * ncpu + CPU, or as numbers says
	__type(value, struct record);
} records SEC(".maps");

// With many CPUs most targets run on few of them: records are given out where they are
// needed.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32); // of slot * ncpu + CPU the half: an element takes 8 bytes
	__type(value, __u32[2]); // of records; 0: none yet
} numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32); // CPU; ncpu: the edge's
	__type(value, struct pairs);
} served SEC(".maps");

// give returns the number of a record for a slot on a CPU, 0 if none is left, or if there is
// none yet and that is not to change. Two CPUs may ask at once; then one record is lost.
static __noinline __u32 give(__u32 i, bool anew)
{
	__u32 half = i / 2, *number = bpf_map_lookup_elem(&numbers, &half), n, was;

	if (!number)
		return 0;
	number += i & 1;
	n = *number;
	if (n || !anew)
		return n;
	if (given + 1 >= nrecord) {
		__sync_fetch_and_add(&wanting, 1);
		return 0;
	}
	n = __sync_fetch_and_add(&given, 1) + 1;
	was = __sync_val_compare_and_swap(number, 0, n);
	return was ? was : n;
}

static __always_inline struct record *find(__u32 slot, __u32 cpu, bool anew)
{
	__u32 i = slot * ncpu + cpu;

	if (!slot || slot >= nslot || cpu >= ncpu)
		return 0;
	if (nrecord) {
		i = give(i, anew);
		if (!i)
			return 0;
	}
	return bpf_map_lookup_elem(&records, &i);
}

static __always_inline struct record *record(__u32 slot, __u32 cpu)
{
	return find(slot, cpu, true);
}

// owner says to which target a thread belongs: by its cgroup in v2 or, if that
// is the root, by the one that carries the cpu controller, whose ids are told
// apart by the top bit.
static __always_inline struct owner *owner(struct task_struct *p)
{
	struct cgroup *cg = p->cgroups->dfl_cgrp;
	struct owner *o;
	__u64 id, *above;

	if (cg->level > 0)
		id = cg->kn->id;
	else if (bpf_core_field_exists(p->sched_task_group))
		id = p->sched_task_group->css.cgroup->kn->id | 1ULL << 63;
	else
		return 0;
	o = bpf_map_lookup_elem(&owners, &id);
	if (o || !parts)
		return o;
	above = bpf_map_lookup_elem(&part_of, &id);
	return above ? bpf_map_lookup_elem(&owners, above) : 0;
}

static __always_inline __u32 cpu_of(struct task_struct *p)
{
	if (bpf_core_field_exists(p->thread_info.cpu))
		return p->thread_info.cpu;
	return BPF_CORE_READ((struct task_struct___v5_15 *)p, cpu);
}

static __always_inline bool runnable(struct task_struct *p)
{
	if (bpf_core_field_exists(p->__state))
		return !p->__state;
	return !BPF_CORE_READ((struct task_struct___v5_13 *)p, state);
}

// asleep says whether a thread is queued only since the scheduler has put off
// taking it out (6.12).
static __always_inline bool asleep(struct task_struct *p)
{
	return bpf_core_field_exists(p->se.sched_delayed) && p->se.sched_delayed;
}

// Whether throttling has a clock (6.6). It runs while the cfs_rq, or one above
// it, is out of quota and a thread of it wants to run.
static __always_inline bool has_throttled_clock(void)
{
	struct cfs_rq *q = 0;

	return !marks_only && bpf_core_field_exists(q->throttled_clock_self_time);
}

// throttled reads the clock of the thread's cfs_rq, which is that of the CPU
// it is on. It is in rq_clock time: only differences may meet the other clocks.
// Where there is no clock it tells, as 0 or 1, whether the cfs_rq is throttled.
static __always_inline __u64 throttled(struct task_struct *p)
{
	struct cfs_rq *q = 0;
	__u64 t, from;

	if (!bpf_core_field_exists(p->se.cfs_rq) || !bpf_core_field_exists(q->throttle_count))
		return 0;
	q = p->se.cfs_rq;
	if (!has_throttled_clock())
		return q->throttle_count > 0;
	t = q->throttled_clock_self_time;
	from = q->throttled_clock_self;
	return from ? t + since(q->rq->clock, from) : t;
}

// throttled_on is throttled for another CPU than the thread's.
static __always_inline __u64 throttled_on(struct task_struct *p, __u32 cpu)
{
	struct cfs_rq *q = 0;
	__u64 t, from;

	if (!bpf_core_field_exists(p->sched_task_group) || !bpf_core_field_exists(q->throttle_count) ||
	    bpf_probe_read_kernel(&q, sizeof(q), p->sched_task_group->cfs_rq + cpu))
		return 0;
	if (!has_throttled_clock())
		return BPF_CORE_READ(q, throttle_count) > 0;
	t = BPF_CORE_READ(q, throttled_clock_self_time);
	from = BPF_CORE_READ(q, throttled_clock_self);
	return from ? t + since(BPF_CORE_READ(q, rq, clock), from) : t;
}

// lost reads a clock of the thread's CPU that runs while it runs nobody but
// interrupts, or is not there at all: where the kernel accounts that. It lags by
// what happened since the CPU's rq clock was last updated.
static __always_inline __u64 lost(struct task_struct *p)
{
	struct cfs_rq *q = 0;
	struct rq *rq;

	if (!bpf_core_field_exists(p->se.cfs_rq) || !bpf_core_field_exists(q->rq))
		return 0;
	rq = p->se.cfs_rq->rq;
	return since(rq->clock, rq->clock_task);
}

// niced says whether a thread asks to be served after others.
static __always_inline bool niced(struct task_struct *p)
{
	switch (p->policy) {
	case SCHED_NORMAL:
	case SCHED_BATCH:
		return p->static_prio > NICE_0;
	case SCHED_IDLE:
		return true;
	}
	return false;
}

static __always_inline void charge(struct pairs *t, __u64 row, __u32 runs, __u64 ns)
{
	// A row is a stretch of the table, as in a matrix, since slots are given
	// out from 1 on. Where rows meet, the one that came later looks elsewhere.
	__u32 at = ((__u32)row >> 16) * ROW + runs, i;
	__u64 key = row | runs;

	for (i = 0; i < PROBES; i++) {
		struct pair *e = &t->pair[(at + AWAY * i) & (npair - 1) & (PAIRS - 1)];

		if (e->key == key) {
			e->time += ns;
			return;
		}
		if (e->key >> 32 != key >> 32) {
			e->key = key;
			e->time = ns;
			return;
		}
	}
	t->refused++;
}

struct walk {
	struct cpu *cpu;
	struct pairs *pairs;
};

enum { STRIDE = 4 }; // slices at a step, so that few calls are made

// step looks at some slices, from the newest back, and returns 1 where there is
// none further back to look at. Most callers hold the CPU's rq lock and see the
// slices stand still; for the edge of a window, which does not, one that is being
// written over is the end.
static long step(__u32 i, struct walk *w)
{
	volatile struct stretch *s = &w->pairs->now;
	struct cpu *c = w->cpu;
	__u64 begin = s->from, most = s->most, row = s->row;
	__u32 n = s->begun - 1 - STRIDE * i, k;

#pragma unroll
	for (k = 0; k < STRIDE; k++, n--) {
		volatile struct slice *e = &c->slices[n & (SLICES - 1)];
		__u64 from = e->from, to = e->to, gone = e->lost, d = to - from, end, scale;
		__u32 slot = e->slot;

		if (*(volatile __u32 *)&c->begun - n >= SLICES)
			return 1;
		if (from <= begin || !to || gone || s->scale) { // few are like this
			end = s->to;
			if (!to) {
				to = end;
				gone = since(s->lost, gone);
			}
			if (to <= begin)
				return 1;
			d = since(to < end ? to : end, from > begin ? from : begin);
			// What was lost in a part of a slice is taken to be its share.
			if (gone && d < to - from)
				gone = gone * (d >> 10) / (((to - from) >> 10) + 1);
			d = since(d, gone);
			scale = s->scale;
			if (scale)
				d = d * scale >> 16;
		}
		if (slot != (__u16)(row >> 16)) {
			if (d >= most) {
				charge(w->pairs, row, slot, most);
				return 1;
			}
			most -= d;
			charge(w->pairs, row, slot, d);
		}
		if (from <= begin)
			return 1;
	}
	s->most = most;
	return 0;
}

// begin notes that a thread of a target waits on a CPU.
static __always_inline void begin(struct wait *w, struct record *r, struct owner o, __u32 cpu, __u64 now,
				  __u64 throttled)
{
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);

	if (!c)
		return;
	__sync_fetch_and_add(&r->waits, 1);
	if (!w) {
		__sync_fetch_and_add(&r->dropped, 1);
		return;
	}
	w->busy = reading(&c->busy, now);
	w->run = reading(&r->run, now);
	w->throttled = throttled;
	w->owner = o;
	w->window = window;
	w->cpu = cpu;
	w->began = now;
}

// serve charges a stretch of a thread's wait on a CPU.
static __always_inline void serve(struct task_struct *p, struct cpu *c, __u32 table, struct stretch *s)
{
	struct walk w = {c, bpf_map_lookup_elem(&served, &table)};

	if (!w.pairs)
		return;
	s->lost = lost(p);
	s->begun = *(volatile __u32 *)&c->begun;
	w.pairs->now = *s;
	bpf_loop(SLICES / STRIDE, step, &w, 0);
}

// settle ends a wait and charges it. Two may try at once: the edge of a window
// looks at threads that their CPUs may be switching in. The others hold the rq
// lock of the CPU that the thread waits on.
static __always_inline void settle(struct task_struct *p, struct wait *w, struct owner o, __u64 now, __u64 throttled,
				   bool at_edge)
{
	__u64 began, busy, others, self, held, left;
	struct record *r;
	struct cpu *c;
	__u32 cpu;

	if (!w || !w->began || w->window != window || window & 1 || w->owner.serial != o.serial)
		return;
	cpu = w->cpu;
	c = bpf_map_lookup_elem(&cpus, &cpu);
	r = record(o.slot, cpu);
	if (!c || !r)
		return;
	began = w->began;
	busy = since(reading(&c->busy, now), w->busy);
	self = since(reading(&r->run, now), w->run);
	left = since(now, began);
	if (has_throttled_clock())
		held = since(throttled, w->throttled);
	else // seen throttled at either end, or when a thread was switched out
		held = throttled || w->throttled || r->marked >= began ? left : 0;
	if (__sync_val_compare_and_swap(&w->began, began, 0) != began)
		return;

	// Held back by quota it waits for nobody, whoever runs: that time comes
	// off first, then its own task's, which does not run while throttled.
	held = held < left ? held : left;
	left -= held;
	others = since(busy, self);
	self = self < left ? self : left;
	left -= self;
	busy = others < left ? others : left;
	if (held)
		__sync_fetch_and_add(&r->throttled, held);
	if (self)
		__sync_fetch_and_add(&r->self, self);
	if (!busy)
		return;
	__sync_fetch_and_add(&r->other, busy);
	if (niced(p))
		__sync_fetch_and_add(&r->niced, busy);
	if (!unserved && cpu == cpu_of(p))
		serve(p, c, at_edge ? ncpu : cpu, &(struct stretch){
			// When in the wait the quota was out is not known. A thread that
			// is switched out for it waits for it first. Where threads of its
			// own ran meanwhile it may have been later: then all have their
			// share of that.
			.from = held && !self ? began + held : began,
			.scale = self && busy < others ? (busy << 16) / others : 0,
			.to = now, .most = busy, .row = (__u64)window << 32 | o.slot << 16,
		});
}

// enter sets the clocks of this CPU for a thread of target `o` running; with anew
// the newest slice is over in any case.
static __always_inline void enter(struct cpu *c, __u32 cpu, struct owner o, struct task_struct *p, __u64 now, bool anew)
{
	bool idle = !p->pid;
	struct record *r;
	struct slice *e;
	__u64 gone;

	c->pid = p->pid;

	if (idle)
		stop(&c->busy, now);
	else
		start(&c->busy, now);
	if (c->runs.slot != o.slot) {
		r = find(c->runs.slot, cpu, false);
		if (r)
			stop(&r->run, now);
	}
	if (!unserved && (c->runs.slot != o.slot || c->open == idle || anew)) {
		gone = lost(p);
		if (c->open) {
			e = &c->slices[(c->begun - 1) & (SLICES - 1)];
			e->lost = since(gone, e->lost);
			e->to = now;
		}
		c->open = !idle;
		if (!idle) {
			e = &c->slices[c->begun & (SLICES - 1)];
			e->from = now;
			e->to = 0;
			e->lost = gone;
			e->slot = o.slot;
			(*(volatile __u32 *)&c->begun)++;
		}
	}
	c->runs = o;
	r = record(o.slot, cpu);
	if (r)
		start(&r->run, now);
}

static __always_inline int wakeup(struct task_struct *p)
{
	struct owner *o;
	struct record *r;
	__u32 cpu;

	// Woken before it slept: it runs, it does not wait.
	if (p->on_cpu)
		return 0;
	o = owner(p);
	if (!o)
		return 0;
	cpu = cpu_of(p);
	r = record(o->slot, cpu);
	if (!r)
		return 0;
	__sync_fetch_and_add(&r->wakeups, 1);
	begin(bpf_task_storage_get(&waits, p, 0, 0), r, *o, cpu, bpf_ktime_get_ns(), throttled(p));
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *p)
{
	return wakeup(p);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *p)
{
	return wakeup(p);
}

// unseen is for a thread that is switched out and was not seen to be switched in:
// kernels may hide that from programs. What the CPU ran since it was last seen
// goes to whom it was last seen to run; the thread's wait is not known to be over.
static __always_inline void unseen(struct cpu *c, __u32 cpu, struct task_struct *p, __u64 now)
{
	struct owner o = {}, *found = p->pid ? owner(p) : 0;
	struct record *r;
	struct wait *w;

	if (found) {
		o = *found;
		w = bpf_task_storage_get(&waits, p, 0, 0);
		r = record(o.slot, cpu);
		if (w && r && w->began) {
			if (w->window == window)
				__sync_fetch_and_add(&r->dropped, 1);
			w->began = 0;
		}
	}
	enter(c, cpu, o, p, now, false);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	__u64 now = bpf_ktime_get_ns();
	struct owner o = {}, *found;
	struct record *r;

	if (!c)
		return 0;
	if (c->pid != prev->pid)
		unseen(c, cpu, prev, now);
	r = record(c->runs.slot, cpu);
	if (r && (preempt || runnable(prev))) {
		__u64 t = throttled(prev);

		if (!has_throttled_clock() && t)
			r->marked = now;
		begin(bpf_task_storage_get(&waits, prev, 0, 0), r, c->runs, cpu, now, t);
	}
	if (next->pid) {
		found = owner(next);
		if (found) {
			o = *found;
			settle(next, bpf_task_storage_get(&waits, next, 0, 0), o, now, throttled(next), false);
		}
	}
	enter(c, cpu, o, next, now, false);
	return 0;
}

// Before the thread's CPU changes. One that sleeps is moved too, when woken:
// only a queued one can be waiting.
SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *p, int dest)
{
	struct record *r;
	struct owner *o;
	struct wait *w;
	__u64 now;

	if (!p->on_rq || asleep(p))
		return 0;
	o = owner(p);
	if (!o)
		return 0;
	r = record(o->slot, dest);
	if (!r)
		return 0;
	w = bpf_task_storage_get(&waits, p, 0, 0);
	now = bpf_ktime_get_ns();
	settle(p, w, *o, now, throttled(p), false);
	begin(w, r, *o, dest, now, throttled_on(p, dest));
	return 0;
}

// A thread begins, not yet woken: the last chance to allocate.
SEC("tp_btf/task_newtask")
int BPF_PROG(on_newtask, struct task_struct *p)
{
	if (owner(p))
		bpf_task_storage_get(&waits, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	return 0;
}

// Run once on each CPU when a window opens: what the CPU runs is not known
// before its first switch.
SEC("raw_tp/sched_switch")
int sync(void *ctx)
{
	struct task_struct *p = bpf_get_current_task_btf();
	__u32 cpu = bpf_get_smp_processor_id();
	struct cpu *c = bpf_map_lookup_elem(&cpus, &cpu);
	struct owner none = {}, *o = p->pid ? owner(p) : 0;

	if (c)
		enter(c, cpu, o ? *o : none, p, bpf_ktime_get_ns(), true);
	return 0;
}

// Run over all threads at both edges of a window: waits are cut there.
SEC("iter/task")
int edge(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct record *r;
	struct owner *o;
	struct wait *w;
	__u32 cpu;
	__u64 now;

	if (!p)
		return 0;
	o = owner(p);
	if (!o)
		return 0;
	w = bpf_task_storage_get(&waits, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!p->on_rq || p->on_cpu || asleep(p))
		return 0;
	cpu = cpu_of(p);
	r = record(o->slot, cpu);
	if (!r)
		return 0;
	now = bpf_ktime_get_ns();
	settle(p, w, *o, now, throttled(p), true);
	begin(w, r, *o, cpu, now, throttled(p));
	return 0;
}
