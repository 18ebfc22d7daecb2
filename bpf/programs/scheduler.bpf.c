/*
 * What training processes wait for: a CPU, and disks; what their sockets send again; which of them run out of memory.
 *
 * The agent names the processes. The switches of all others leave after one bit of a filter. Programs here are
 * attached to the kernel's tracepoints; `OFFSET_`, `BIT_`, `ARGUMENTS_` and `TYPE_` words are put in by the compiler
 * from what the kernel tells of its own layout, and the verifier checks each direct access against the same source.
 */
#include "common.bpf.h"

/* What the threads of one GPU's processes waited for. Only additions, so a sum outlives the processes. */
struct waits {
	u64 cpu_ns;
	u64 disk_ns;
	u64 blocked; /* threads that wait for a disk now */
	u64 since;   /* sum of the times at which they began to */
	u64 switches;
	u64 timed; /* switches of which the counting was timed, and how long it took */
	u64 timed_ns;
};

/* A thread that waits for a disk. */
struct blocked {
	u64 since;
	u32 place;
	u32 unused;
};

/* A socket that had to send again, by the number that its process sees, and how many segments it has sent again. */
struct retransmit {
	u64 inode;
	u64 total;
};

struct victim {
	u64 tgid;
};

/* The agent's entry of a process: which `waits` are its own. A machine has few GPUs, and few processes for each. */
#define PLACES 1024
/* One switch of so many is timed. */
#define TIMED 256
BPF_F_TABLE("array", u32, struct waits, waits, PLACES, BPF_F_MMAPABLE);
BPF_TABLE("hash", u64, u32, watched, 8192);
/* One bit for each remainder of a process number: most that are not watched never reach the hash. */
#define PID_FILTER_BITS 4096
BPF_TABLE("array", u32, u64, pid_filter, PID_FILTER_BITS / 64);
/* By thread: the wait for CPUs that has been counted. 100 threads of 160 processes; a thread that was evicted
 * begins again at zero. 1.5 MB. */
BPF_TABLE("lru_hash", u32, u64, counted, 16384);
/* By thread. Each entry goes when its thread runs again: nothing may be forgotten here. */
BPF_TABLE("hash", u32, struct blocked, blocked, 8192);
/* 64 KB: 2,700 between two looks of the agent; the newest total of a socket makes up for those that are lost. */
BPF_RINGBUF_OUTPUT(retransmits, 16);
BPF_RINGBUF_OUTPUT(victims, 1);

#define PID_OF(task) (*(u32 *)((task) + OFFSET_task_struct__pid))
#define WAITS_FOR_DISK(task) (*(u8 *)((task) + BIT_task_struct__in_iowait / 8) >> (BIT_task_struct__in_iowait % 8) & 1)

#ifdef TYPE_sched_switch
/* Every process that is watched, and a few more. */
static __always_inline u32 *place_of(u64 tgid)
{
	u32 word = tgid % PID_FILTER_BITS / 64;
	u64 *bits = pid_filter.lookup(&word);

	return bits && *bits >> (tgid % 64) & 1 ? watched.lookup(&tgid) : 0;
}

#ifdef OFFSET_sched_info__run_delay
/* The kernel keeps each thread's wait for CPUs itself: what came since the thread's last switch is added. */
static __always_inline void count_delay(u64 task, struct waits *sum)
{
	u64 delay = *(u64 *)(task + OFFSET_task_struct__sched_info + OFFSET_sched_info__run_delay);
	u32 pid = PID_OF(task);
	u64 *before = counted.lookup(&pid);

	if (!before) {
		counted.update(&pid, &delay);
		return;
	}
	if (delay > *before) /* else nothing came, or the number was another thread's */
		ADD(sum->cpu_ns, delay - *before);
	*before = delay;
}
#else
#define count_delay(task, sum)
#endif

static __always_inline void begin_block(u64 task, u32 place, struct waits *sum)
{
	struct blocked begun = {.since = bpf_ktime_get_ns(), .place = place};
	u32 pid = PID_OF(task);

	if (blocked.insert(&pid, &begun)) {
		lose(LOSS_THREAD);
		return;
	}
	ADD(sum->blocked, 1);
	ADD(sum->since, begun.since);
}

/* End the wait that a thread is known to be in, with or without counting it. */
static __always_inline void end_block(u64 task, bool count)
{
	u64 now = bpf_ktime_get_ns(), since;
	u32 pid = PID_OF(task);
	struct blocked *begun = blocked.lookup(&pid);
	struct waits *sum;

	if (!begun)
		return;
	since = begun->since;
	sum = waits.lookup(&begun->place);
	if (sum) {
		if (count)
			ADD(sum->disk_ns, now - since);
		ADD(sum->blocked, -1);
		ADD(sum->since, -since);
	}
	blocked.delete(&pid);
}

/* (bool preempt, struct task_struct *prev, struct task_struct *next, …): the first of the two is the caller still. */
int tp_btf__sched_switch(u64 *ctx)
{
	u64 prev = ctx[1], next = ctx[2], begun = 0, id;
	struct waits *sum;
	u32 *place;

#ifdef BIT_task_struct__in_iowait
	/* A thread marks itself before it gives up the CPU, and takes the mark off when it has got one again. */
	if (WAITS_FOR_DISK(next))
		end_block(next, true);
#endif
	id = caller();
	place = place_of(id >> 32);
	sum = place ? waits.lookup(place) : 0;
	if (!sum)
		return 0;
	if (sum->switches % TIMED == 0)
		begun = bpf_ktime_get_ns();
	ADD(sum->switches, 1);
	count_delay(prev, sum);
#ifdef BIT_task_struct__in_iowait
	/* Now and then no program is run when a thread gets a CPU. A thread that leaves one did not wait: an open wait
	 * of it ended at an unknown time. */
	if (sum->blocked)
		end_block(prev, false);
	if (WAITS_FOR_DISK(prev))
		begin_block(prev, *place, sum);
#endif
	if (begun) {
		ADD(sum->timed, 1);
		ADD(sum->timed_ns, bpf_ktime_get_ns() - begun);
	}
	return 0;
}
#endif

#if defined(TYPE_tcp_retransmit_skb) && defined(OFFSET_tcp_sock__total_retrans) && defined(OFFSET_inode__i_ino)
/* (const struct sock *, …): mostly in an interrupt, where the caller is any process. So the socket identifies it. */
int tp_btf__tcp_retransmit_skb(u64 *ctx)
{
	u64 sock = ctx[0], socket = *(u64 *)(sock + OFFSET_sock__sk_socket), inode = 0;
	u32 total = 0;
	struct retransmit *again;

	if (!socket) /* closed by its process: what is still sent belongs to none */
		return 0;
	bpf_probe_read_kernel(&inode, sizeof(inode),
			      (void *)socket + OFFSET_socket_alloc__vfs_inode + OFFSET_inode__i_ino);
	bpf_probe_read_kernel(&total, sizeof(total), (void *)sock + OFFSET_tcp_sock__total_retrans);
	again = retransmits.ringbuf_reserve(sizeof(struct retransmit));
	if (!again)
		return 0; /* the socket's next one brings the total */
	again->inode = inode;
	again->total = total;
	retransmits.ringbuf_submit(again, BPF_RB_NO_WAKEUP);
	return 0;
}
#endif

#if defined(TYPE_mark_victim) && (ARGUMENTS_mark_victim > 1 || !defined(PID_NAMESPACE))
/* The number of the victim's process in our PID namespace; 0 outside of it. */
static __always_inline u64 number_of(u64 victim)
{
#ifdef PID_NAMESPACE
	struct own_namespace *own = own_namespace();
	u64 leader = *(u64 *)(victim + OFFSET_task_struct__group_leader), namespace = 0;
	u64 pid = *(u64 *)(leader + OFFSET_task_struct__thread_pid);
	u32 level, last = *(u32 *)(pid + OFFSET_pid__level), inode = 0, number = 0;

	if (!own)
		return 0;
	/* One struct upid for each namespace that the process is in. */
	for (level = 0; level < 8 && level <= last; level++) {
		void *upid = (void *)pid + OFFSET_pid__numbers + level * SIZE_upid;

		bpf_probe_read_kernel(&number, sizeof(number), upid + OFFSET_upid__nr);
		bpf_probe_read_kernel(&namespace, sizeof(namespace), upid + OFFSET_upid__ns);
		bpf_probe_read_kernel(&inode, sizeof(inode),
				      (void *)namespace + OFFSET_pid_namespace__ns + OFFSET_ns_common__inum);
		if (inode == own->inode)
			return number;
	}
	return 0;
#else
	return *(u32 *)(victim + OFFSET_task_struct__tgid);
#endif
}

/* (struct task_struct *, uid_t); on older kernels (int pid). */
int tp_btf__mark_victim(u64 *ctx)
{
	u64 tgid = ARGUMENTS_mark_victim > 1 ? number_of(ctx[0]) : (u32)ctx[0];
	u32 *place = watched.lookup(&tgid);
	struct victim *victim;

	if (!place)
		return 0;
	victim = victims.ringbuf_reserve(sizeof(struct victim));
	if (!victim) {
		lose(LOSS_EVENT);
		return 0;
	}
	victim->tgid = tgid;
	victims.ringbuf_submit(victim, BPF_RB_NO_WAKEUP);
	return 0;
}
#endif
