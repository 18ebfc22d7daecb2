/*
 * What the probes of one agent share: the caller, per-process and per-thread state, and counts of losses.
 *
 * Durations come from entries alone: a thread that entered a synchronize call is taken to wait until its next probed
 * call. A return probe would cost as much again, and can kill processes under seccomp on some kernels.
 */
#pragma once
#include <linux/types.h>

/*
 * User registers as a uprobe hands them over, and where a call's integer arguments lie. ARM64 (arch/arm64/include/uapi/
 * asm/ptrace.h, AAPCS64) was compiled and never run.
 */
#ifdef REGISTERS_OF_ARM64
struct pt_regs {
	unsigned long regs[31], sp, pc, pstate;
};
#define IN_REGISTERS 8
#define ON_STACK(ctx) ((ctx)->sp)
#define IN_REGISTER(ctx, place) ((ctx)->regs[(place)&7])
#else /* x86-64: arch/x86/include/asm/ptrace.h, System V ABI */
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#define IN_REGISTERS 6
#define ON_STACK(ctx) ((ctx)->sp + 8) /* behind the return address */
#define IN_REGISTER(ctx, place)                                                                                        \
	((place) == 0	? (ctx)->di                                                                                    \
	 : (place) == 1 ? (ctx)->si                                                                                    \
	 : (place) == 2 ? (ctx)->dx                                                                                    \
	 : (place) == 3 ? (ctx)->cx                                                                                    \
	 : (place) == 4 ? (ctx)->r8                                                                                    \
			: (ctx)->r9)
#endif

/* The argument at a place, a constant, counted from 0. */
static __always_inline u64 argument(struct pt_regs *ctx, u32 place)
{
	u64 value = 0;

	if (place < IN_REGISTERS)
		return IN_REGISTER(ctx, place);
	bpf_probe_read_user(&value, sizeof(value), (void *)(ON_STACK(ctx) + 8 * (place - IN_REGISTERS)));
	return value;
}

#define NONE 0xffffffffU

/* What the agent takes off together; in this order in agent/probes/groups.py. */
enum group { LIFE, CALLS, SYNCHRONIZE, LAUNCHES, GRAPHS, COPIES, ALLOCATIONS, GROUPS };

/* One process that called into a library with probes. Read by the agent through a memory map: only additions. */
struct process {
	u64 tgid;
	u64 synchronize_calls;
	u64 synchronize_ns;
	u64 synchronize_since; /* entry into the synchronize call that no other call has followed yet, or 0 */
	u64 launches;
	u64 graph_launches;
	u64 copy_bytes;
	u64 allocated_bytes;
	u64 group_starts;
	u64 group_ends; /* short of group_starts: a group is open, and its operations have not been launched */
	u64 lost;	/* hits of this process that could not be counted */
	/* When it first asked for a communicator, was first seen to have one, and first asked for an operation; or 0 */
	u64 init_ns;
	u64 born_ns;
	u64 operation_ns;
	u64 uid;
	u64 slots;	  /* ever taken by it; the agent counts what it gave back (slot_returns_of) */
	u64 events;	  /* likewise (event_returns_of) */
	u64 hits[GROUPS]; /* without ncclCommGetAsyncError, which its slot counts */
};

/* One communicator of one process. */
struct slot {
	u64 comm; /* its address in the process */
	u64 tgid;
	u64 operations;
	u64 bytes;
	u64 unsized; /* operations of unknown datatype: their bytes are not in the sum */
	u64 blocked_ns;
	u64 blocked_since; /* entry into the synchronize call behind an operation that is still the thread's last call
			    */
	u64 last_ns;
	u64 queries; /* ncclCommGetAsyncError */
	u64 last_kind;
	u64 last_datatype;
	u64 last_count;
	u64 uid;
	u64 ended;  /* destroyed or aborted: its address may be another communicator's by now */
	u64 splits; /* collective calls that make a child: their order is the same on all ranks */
};

/* The last operations of one process in their order: when (1,024 ns, 32 bits), and a signature of 32 bits. */
#define LOGGED 512
struct log {
	u64 tgid;
	u64 count; /* of all there were; two threads that write at once may lose one */
	u64 entries[LOGGED];
};

/* What is known of one thread between two of its calls. */
struct thread {
	u64 synchronize_at; /* 0: not in a synchronize call, as far as is known */
	u64 out;	    /* where a communicator under construction will be written, 0: none */
	u32 process;
	u32 behind;	  /* communicator of the last operation since the last synchronize call */
	u32 synchronizes; /* the communicator that the synchronize call waits for */
	u32 unused;
};

/* The agent names them in this order (agent/sources/nccl.py). */
enum loss {
	LOSS_FOREIGN,
	LOSS_PROCESS,
	LOSS_SLOT,
	LOSS_THREAD,
	LOSS_EVENT,
	LOSS_PROCESS_SHARE,
	LOSS_SLOT_SHARE,
	LOSS_EVENT_SHARE,
	LOSSES
};

/* Sizes: 16 processes on each of 64 devices, 4 communicators each. Memory: 0.1 MB and 0.7 MB; logs 4 MB. */
#define PROCESSES 1024
#define SLOTS 4096

/* What one user, and one process, may hold of it: one that exceeds it loses only its own counts. Users share a place of
 * these tables where their numbers are equal in the lowest 12 bits. */
#define USERS 4096
#define PROCESSES_OF_USER 256
#define SLOTS_OF_USER 2048
#define SLOTS_OF_PROCESS 256
#define EVENTS_OF_USER 512
#define EVENTS_OF_PROCESS 256

BPF_F_TABLE("array", u32, struct process, processes, PROCESSES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, u64, losses, LOSSES, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct log, logs, PROCESSES, BPF_F_MMAPABLE); /* by the index of the process */
BPF_TABLE("hash", u64, u32, process_of, PROCESSES);
BPF_TABLE("lru_hash", u64, struct thread, threads, 16384);
BPF_F_TABLE("array", u32, struct slot, slots, SLOTS, BPF_F_MMAPABLE);
/* Indices that the agent has put up for use; it puts them back when the process or the communicator is gone. */
BPF_STACK(free_processes, u32, PROCESSES);
BPF_STACK(free_slots, u32, SLOTS);
/* Taken ever, written here, and given back ever, written by the agent: neither waits for the other. */
BPF_F_TABLE("array", u32, u64, process_takes, USERS, 0);
BPF_F_TABLE("array", u32, u64, process_returns, USERS, 0);
BPF_F_TABLE("array", u32, u64, slot_takes, USERS, 0);
BPF_F_TABLE("array", u32, u64, slot_returns, USERS, 0);
BPF_F_TABLE("array", u32, u64, slot_returns_of, PROCESSES, 0);
BPF_F_TABLE("array", u32, u64, event_takes, USERS, 0);
BPF_F_TABLE("array", u32, u64, event_returns, USERS, 0);
BPF_F_TABLE("array", u32, u64, event_returns_of, PROCESSES, 0);

#define ADD(field, amount) __sync_fetch_and_add(&(field), (amount))

static __always_inline void lose(u32 kind)
{
	u64 *count = losses.lookup(&kind);

	if (count)
		ADD(*count, 1);
}

/* More may be held: what the agent gave back late, or of a process before, only makes a share larger. */
static __always_inline int room(u64 taken, u64 *given_back, u64 most)
{
	return given_back && (s64)(taken - *given_back) < (s64)most;
}

static __always_inline u32 user_place(u64 uid)
{
	return uid & (USERS - 1);
}

#ifdef PID_NAMESPACE
struct own_namespace {
	u64 device;
	u64 inode;
};

BPF_TABLE("array", u32, struct own_namespace, own_namespaces, 1);

static __always_inline struct own_namespace *own_namespace(void)
{
	u32 first = 0;

	return own_namespaces.lookup(&first);
}
#endif

/* Process and thread as the agent's PID namespace numbers them; 0 for a process outside of it. */
static __always_inline u64 caller(void)
{
#ifdef PID_NAMESPACE
	struct own_namespace *own = own_namespace();
	struct bpf_pidns_info ids = {};

	if (!own || bpf_get_ns_current_pid_tgid(own->device, own->inode, &ids, sizeof(ids)))
		return 0;
	return (u64)ids.tgid << 32 | ids.pid;
#else
	return bpf_get_current_pid_tgid();
#endif
}

static __always_inline u32 process_index(u64 tgid)
{
	u32 *known = process_of.lookup(&tgid), index, uid = bpf_get_current_uid_gid(), user = user_place(uid);
	u64 *taken = process_takes.lookup(&user);
	struct process *process;

	if (known)
		return *known;
	if (!taken || !room(*taken, process_returns.lookup(&user), PROCESSES_OF_USER)) {
		lose(LOSS_PROCESS_SHARE);
		return NONE;
	}
	if (free_processes.pop(&index)) {
		lose(LOSS_PROCESS);
		return NONE;
	}
	process = processes.lookup(&index);
	if (!process)
		return NONE;
	process->uid = uid;
	process->tgid = tgid; /* the rest is zero: the agent cleared it before it put the index up */
	if (!process_of.insert(&tgid, &index)) {
		ADD(*taken, 1);
		return index;
	}
	/* Another thread of this process was faster. */
	process->tgid = process->uid = 0;
	free_processes.push(&index, BPF_ANY);
	known = process_of.lookup(&tgid);
	return known ? *known : NONE;
}

/* Close the wait that this thread's last synchronize call began: the thread is here, so it waits no more. */
static __always_inline void settle(struct thread *thread, struct process *process, u64 tgid, u64 now)
{
	u64 waited = now - thread->synchronize_at;
	struct slot *slot;

	if (!thread->synchronize_at)
		return;
	thread->synchronize_at = 0;
	ADD(process->synchronize_ns, waited);
	process->synchronize_since = 0;
	slot = slots.lookup(&thread->synchronizes);
	if (slot && slot->tgid == tgid) {
		ADD(slot->blocked_ns, waited);
		slot->blocked_since = 0;
	}
}

/* The calling thread and its process, both settled; null where there is no room (counted) or nothing to count. */
static __always_inline struct thread *enter(u64 id, u64 now, struct process **process, enum group group)
{
	struct thread *thread, fresh = {.behind = NONE, .synchronizes = NONE};
	u64 tgid = id >> 32;

	*process = 0;
	if (!id) {
		lose(LOSS_FOREIGN);
		return 0;
	}
	thread = threads.lookup(&id);
	if (thread)
		*process = processes.lookup(&thread->process);
	if (!thread || !*process || (*process)->tgid != tgid) { /* first call, or the number was another process's */
		fresh.process = process_index(tgid);
		*process = processes.lookup(&fresh.process);
		if (!*process)
			return 0; /* counted above */
		threads.update(&id, &fresh);
		thread = threads.lookup(&id);
	}
	if (!thread) {
		lose(LOSS_THREAD);
		ADD((*process)->lost, 1);
		return 0;
	}
	ADD((*process)->hits[group], 1);
	settle(thread, *process, tgid, now);
	return thread;
}
