// SPDX-License-Identifier: GPL-2.0-only
/*
 * fakepmu: a PMU with modelled counts behind the real perf core, for test
 * guests. See README.md.
 *
 * What is real: perf_event_open, cgroup mode, groups, multiplexing over `ncnt`
 * counters per CPU, enabled and running times, ENOENT for an event that is not
 * in `evmask`. What is modelled: the numbers. While a task of cgroup g runs on
 * a CPU of package p, for every nanosecond
 *
 *	P      = sum of the pressure of what runs meanwhile on p's other CPUs
 *	slow   = (1 + sens(g) * P) * (1 + noise of g in this second)
 *	cycles = MHz / 1000
 *	instructions = cycles / (cpi(g) * slow)
 *	LLC misses   = instructions * mpki(g) * slow / 1000
 *
 * The model changes only when some CPU switches tasks, so everything up to
 * that moment is accounted then: counts are exact, and an idle guest takes no
 * timer interrupts.
 */
#include <linux/cgroup.h>
#include <linux/hash.h>
#include <linux/module.h>
#include <linux/perf_event.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/timekeeping.h>
#include <linux/topology.h>
#include <linux/tracepoint.h>
#include <linux/uaccess.h>
#include <trace/events/sched.h>

/* The parameters can be written while no event is open. */
static int ncnt = 4;
module_param(ncnt, int, 0644);
MODULE_PARM_DESC(ncnt, "counters per CPU");

/* PERF_COUNT_HW_* by number, and LL_READ_MISS. */
#define LL_READ_MISS 16
static int evmask = 0x1023f;
module_param(evmask, int, 0644);
MODULE_PARM_DESC(evmask, "events: bit N for PERF_COUNT_HW_N, bit 16 for last-level read misses");

static int mhz = 2000;
module_param(mhz, int, 0444);
MODULE_PARM_DESC(mhz, "cycles per microsecond");

enum count { CYCLES, INSTRUCTIONS, REFERENCES, MISSES, BRANCHES, BRANCH_MISSES, COUNTS };

/* What is known of a cgroup; the numbers are thousandths. */
struct profile {
	u64 cgroup;
	u32 cpi, mpki, pressure, sens, noise;
};
static const struct profile unknown = { .cpi = 1000, .mpki = 1000 };

#define PROFILES 64

struct fake_cpu {
	struct task_struct *task;	/* that runs; NULL when idle */
	struct profile running;		/* the task's, a copy: the table may change */
	u64 milli[COUNTS];		/* thousandths of an event */
	int used;			/* counters */
};

/* One lock for all: an account takes in every CPU. Taken under rq locks. */
static DEFINE_RAW_SPINLOCK(lock);
static struct profile profiles[PROFILES];
static int nr_profiles;
static u64 accounted;			/* ns; everything until then is in milli */
static DEFINE_PER_CPU(struct fake_cpu, fake_cpus);

/* The nearest of the task's cgroup and its ancestors that has a profile. */
static struct profile profile_of(struct task_struct *p)
{
	struct profile found = unknown;
	struct cgroup *cg;
	int i;

	lockdep_assert_held(&lock);
	rcu_read_lock();
	for (cg = task_dfl_cgroup(p); cg; cg = cgroup_parent(cg))
		for (i = 0; i < nr_profiles; i++)
			if (profiles[i].cgroup == cgroup_id(cg)) {
				found = profiles[i];
				goto out;
			}
out:
	rcu_read_unlock();
	return found;
}

/* Thousandths of noise, -noise..noise: another each second, the same in each run. */
static s64 noise_of(const struct profile *p, u64 ns)
{
	u64 second = div_u64(ns, NSEC_PER_SEC);

	if (!p->noise)
		return 0;
	return (s64)(hash_64(p->cgroup * 1000003 + second, 20) % (2 * p->noise + 1)) - p->noise;
}

static void account_cpu(int cpu, u64 ns, u64 now)
{
	struct fake_cpu *f = per_cpu_ptr(&fake_cpus, cpu);
	u64 pressure = 0, slow, cpi, mpki, cycles, instructions;
	int other;

	if (!f->task)
		return;
	for_each_online_cpu(other) {
		struct fake_cpu *o = per_cpu_ptr(&fake_cpus, other);

		if (other != cpu && o->task && topology_physical_package_id(other) == topology_physical_package_id(cpu))
			pressure += o->running.pressure;
	}
	slow = 1000 + div_u64(f->running.sens * pressure, 1000);
	slow = div_u64(slow * (1000 + noise_of(&f->running, now)), 1000);
	cpi = max(div_u64(f->running.cpi * slow, 1000), 1ULL);
	mpki = div_u64(f->running.mpki * slow, 1000);
	cycles = ns * mhz;
	instructions = div64_u64(cycles * 1000, cpi);
	f->milli[CYCLES] += cycles;
	f->milli[INSTRUCTIONS] += instructions;
	f->milli[REFERENCES] += div_u64(instructions, 20);
	f->milli[MISSES] += div_u64(div_u64(instructions, 1000) * mpki, 1000);
	f->milli[BRANCHES] += div_u64(instructions, 5);
	f->milli[BRANCH_MISSES] += div_u64(instructions, 500);
}

/* Accounts what has been running on all CPUs until now. */
static void account(void)
{
	u64 now = ktime_get_mono_fast_ns();
	int cpu;

	lockdep_assert_held(&lock);
	if ((s64)(now - accounted) <= 0)
		return;
	for_each_online_cpu(cpu)
		account_cpu(cpu, now - accounted, now);
	accounted = now;
}

static void on_switch(void *data, bool preempt, struct task_struct *prev,
		      struct task_struct *next, unsigned int prev_state)
{
	struct fake_cpu *f = this_cpu_ptr(&fake_cpus);
	unsigned long flags;

	raw_spin_lock_irqsave(&lock, flags);
	account();
	f->task = is_idle_task(next) ? NULL : next;
	if (f->task)
		f->running = profile_of(next);
	raw_spin_unlock_irqrestore(&lock, flags);
}

/*
 * The table has changed, or the task its cgroup. The task that runs here is not
 * always current: perf adds the next one's events before it is switched to.
 */
static void look_again(void *unused)
{
	struct fake_cpu *f = this_cpu_ptr(&fake_cpus);
	unsigned long flags;

	raw_spin_lock_irqsave(&lock, flags);
	account();
	if (f->task)
		f->running = profile_of(f->task);
	raw_spin_unlock_irqrestore(&lock, flags);
}

static u64 milli_now(enum count c)
{
	unsigned long flags;
	u64 v;

	raw_spin_lock_irqsave(&lock, flags);
	account();
	v = this_cpu_ptr(&fake_cpus)->milli[c];
	raw_spin_unlock_irqrestore(&lock, flags);
	return v;
}

static struct pmu fake_pmu;

/* How often perf's core has called each, for what a real PMU would be written or read. */
enum call { CALL_ADD, CALL_DEL, CALL_START, CALL_STOP, CALL_READ, NR_CALLS };
static atomic64_t calls[NR_CALLS];

static int count_of(const struct perf_event_attr *a)
{
	static const int hardware[] = {
		[PERF_COUNT_HW_CPU_CYCLES] = CYCLES,
		[PERF_COUNT_HW_INSTRUCTIONS] = INSTRUCTIONS,
		[PERF_COUNT_HW_CACHE_REFERENCES] = REFERENCES,
		[PERF_COUNT_HW_CACHE_MISSES] = MISSES,
		[PERF_COUNT_HW_BRANCH_INSTRUCTIONS] = BRANCHES,
		[PERF_COUNT_HW_BRANCH_MISSES] = BRANCH_MISSES,
		[PERF_COUNT_HW_BUS_CYCLES] = -1,
		[PERF_COUNT_HW_STALLED_CYCLES_FRONTEND] = -1,
		[PERF_COUNT_HW_STALLED_CYCLES_BACKEND] = -1,
		[PERF_COUNT_HW_REF_CPU_CYCLES] = CYCLES,	/* the clock never changes */
	};

	switch (a->type) {
	case PERF_TYPE_HARDWARE:
		if (a->config < ARRAY_SIZE(hardware) && evmask & BIT(a->config))
			return hardware[a->config];
		break;
	case PERF_TYPE_HW_CACHE:
		if (a->config == (PERF_COUNT_HW_CACHE_LL | PERF_COUNT_HW_CACHE_OP_READ << 8 |
				  PERF_COUNT_HW_CACHE_RESULT_MISS << 16) && evmask & BIT(LL_READ_MISS))
			return MISSES;
		break;
	}
	return -1;
}

static int fake_init(struct perf_event *e)
{
	int c = count_of(&e->attr), size = 1;
	struct perf_event *s;

	if (c < 0)
		return -ENOENT;
	e->hw.config = c;
	if (e->group_leader != e) {
		size += e->group_leader->pmu == &fake_pmu;
		for_each_sibling_event(s, e->group_leader)
			size += s->pmu == &fake_pmu;
	}
	return size > ncnt ? -EINVAL : 0;	/* it could never run */
}

static void update(struct perf_event *e)
{
	u64 prev, whole;

	if (e->hw.state & PERF_HES_STOPPED)
		return;
	prev = local64_read(&e->hw.prev_count);
	whole = div_u64(milli_now(e->hw.config) - prev, 1000);
	local64_set(&e->hw.prev_count, prev + whole * 1000);	/* keeps the rest */
	local64_add(whole, &e->count);
}

static void start(struct perf_event *e)
{
	local64_set(&e->hw.prev_count, milli_now(e->hw.config));
	e->hw.state = 0;
}

static void stop(struct perf_event *e)
{
	update(e);
	e->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
}

static void fake_read(struct perf_event *e)
{
	atomic64_inc(&calls[CALL_READ]);
	update(e);
}

static void fake_start(struct perf_event *e, int flags)
{
	atomic64_inc(&calls[CALL_START]);
	start(e);
}

static void fake_stop(struct perf_event *e, int flags)
{
	atomic64_inc(&calls[CALL_STOP]);
	stop(e);
}

static int fake_add(struct perf_event *e, int flags)
{
	struct fake_cpu *f = this_cpu_ptr(&fake_cpus);

	atomic64_inc(&calls[CALL_ADD]);
	if (f->used >= ncnt)
		return -EAGAIN;		/* the core rotates */
	f->used++;
	look_again(NULL);		/* perf also adds when a task has moved */
	e->hw.state = PERF_HES_STOPPED | PERF_HES_UPTODATE;
	if (flags & PERF_EF_START)
		start(e);
	perf_event_update_userpage(e);
	return 0;
}

static void fake_del(struct perf_event *e, int flags)
{
	atomic64_inc(&calls[CALL_DEL]);
	stop(e);
	this_cpu_ptr(&fake_cpus)->used--;
	perf_event_update_userpage(e);
}

static struct pmu fake_pmu = {
	.module = THIS_MODULE,
	.task_ctx_nr = perf_hw_context,
	/* Counting only, and of all modes together. */
	.capabilities = PERF_PMU_CAP_NO_INTERRUPT | PERF_PMU_CAP_NO_EXCLUDE,
	.event_init = fake_init,
	.add = fake_add,
	.del = fake_del,
	.start = fake_start,
	.stop = fake_stop,
	.read = fake_read,
};

/* Replaces or adds a profile; a cgroup of 0 clears the table. */
static int store(const struct profile *p)
{
	unsigned long flags;
	int i, err = 0;

	raw_spin_lock_irqsave(&lock, flags);
	account();
	for (i = 0; i < nr_profiles && profiles[i].cgroup != p->cgroup; i++)
		;
	if (!p->cgroup)
		nr_profiles = 0;
	else if (i == PROFILES)
		err = -ENOSPC;
	else {
		profiles[i] = *p;
		nr_profiles = max(nr_profiles, i + 1);
	}
	raw_spin_unlock_irqrestore(&lock, flags);
	return err;
}

static int parse(const char *line)
{
	struct profile p = { };

	if (!strcmp(line, "clear"))
		return store(&p);
	if (sscanf(line, "set %llu cpi %u mpki %u pressure %u sens %u noise %u",
		   &p.cgroup, &p.cpi, &p.mpki, &p.pressure, &p.sens, &p.noise) != 6 ||
	    !p.cgroup || !p.cpi || p.noise >= 1000)
		return -EINVAL;
	return store(&p);
}

static ssize_t table_write(struct file *file, const char __user *text, size_t n, loff_t *pos)
{
	char *buf, *rest, *line;
	int err = 0;

	if (n > PAGE_SIZE)
		return -E2BIG;
	buf = memdup_user_nul(text, n);
	if (IS_ERR(buf))
		return PTR_ERR(buf);
	for (rest = buf; !err && (line = strsep(&rest, "\n"));)
		if (*line)
			err = parse(line);
	kfree(buf);
	on_each_cpu(look_again, NULL, 1);
	return err ? err : n;
}

static int table_show(struct seq_file *m, void *unused)
{
	int i, cpu;

	for (i = 0; i < nr_profiles; i++)
		seq_printf(m, "set %llu cpi %u mpki %u pressure %u sens %u noise %u\n", profiles[i].cgroup, profiles[i].cpi,
			   profiles[i].mpki, profiles[i].pressure, profiles[i].sens, profiles[i].noise);
	for_each_online_cpu(cpu) {
		struct fake_cpu *f = per_cpu_ptr(&fake_cpus, cpu);

		seq_printf(m, "# cpu %d: busy %d, counters in use %d, cycles %llu, instructions %llu\n", cpu, !!f->task, f->used,
			   div_u64(f->milli[CYCLES], 1000), div_u64(f->milli[INSTRUCTIONS], 1000));
	}
	seq_printf(m, "# calls: add %lld, del %lld, start %lld, stop %lld, read %lld\n", (long long)atomic64_read(&calls[CALL_ADD]),
		   (long long)atomic64_read(&calls[CALL_DEL]), (long long)atomic64_read(&calls[CALL_START]), (long long)atomic64_read(&calls[CALL_STOP]),
		   (long long)atomic64_read(&calls[CALL_READ]));
	return 0;
}

static int table_open(struct inode *inode, struct file *file) { return single_open(file, table_show, NULL); }

static const struct proc_ops table_ops = {
	.proc_open = table_open,
	.proc_read = seq_read,
	.proc_write = table_write,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
};

static struct tracepoint *sched_switch;

static void find_switch(struct tracepoint *tp, void *unused)
{
	if (!strcmp(tp->name, "sched_switch"))
		sched_switch = tp;
}

static int __init fakepmu_load(void)
{
	int err;

	if (ncnt < 1 || mhz < 1)
		return -EINVAL;
	for_each_kernel_tracepoint(find_switch, NULL);
	if (!sched_switch)
		return -ENOENT;
	accounted = ktime_get_mono_fast_ns();
	err = tracepoint_probe_register(sched_switch, on_switch, NULL);
	if (err)
		return err;
	if (!proc_create("fakepmu", 0600, NULL, &table_ops)) {
		err = -ENOMEM;
		goto unhook;
	}
	err = perf_pmu_register(&fake_pmu, "cpu", PERF_TYPE_RAW);
	if (err)
		goto unlist;
	pr_info("fakepmu: %d counters per CPU, events %#x, %d MHz\n", ncnt, evmask, mhz);
	return 0;
unlist:
	remove_proc_entry("fakepmu", NULL);
unhook:
	tracepoint_probe_unregister(sched_switch, on_switch, NULL);
	tracepoint_synchronize_unregister();
	return err;
}

/*
 * It cannot be unloaded: perf keeps a PMU of type PERF_TYPE_RAW in its table
 * when it is unregistered (kernel/events/core.c).
 */
module_init(fakepmu_load);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("a PMU with modelled counts, for test guests");
