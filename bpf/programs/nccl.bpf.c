/*
 * NCCL's public calls: what each communicator was asked to do, and the life of communicators.
 *
 * Operations are counted in place; only the life of communicators is streamed. Arguments are counted from
 * 0, as NCCL's public header has them (nccl.h, 2.18 to 2.31). A function here has the name of the symbol it is
 * attached to; `<name>Config` forms take one argument more at the end and share the program.
 */
#include "common.bpf.h"

enum event_kind { INIT = 1, INIT_ALL, SPLIT, SHRINK, BORN, FINALIZE, DESTROY, ABORT, GROW, REVOKE };

struct event {
	u64 kind;
	u64 ns;
	u64 tgid;
	u64 comm;  /* the communicator meant, or the parent */
	u64 out;   /* where the address of the new communicator is written */
	u64 ranks; /* InitAll: devices; Shrink: ranks left out */
	s64 rank;
	s64 color;
	u64 nth;     /* which child of its parent this is */
	u64 uid;     /* user of the process */
	u64 process; /* its entry in the array of processes */
	u8 id[128];
};

struct slot_key {
	u64 comm;
	u64 tgid;
};

/* 256 KB: room for 1,100 events between two looks of the agent, more than 16 per process of a full machine. */
BPF_RINGBUF_OUTPUT(events, 64);
BPF_TABLE("hash", struct slot_key, u32, slot_of, SLOTS);

/* Bytes of each ncclDataType_t, four bits each: int8, uint8, int32, uint32, int64, uint64, f16, f32, f64, bf16, fp8 x2.
 */
#define DATATYPE_SIZES 0x112842884411ULL
#define DATATYPES 12

static __always_inline struct slot *slot_for(u64 comm, struct thread *thread, struct process *process, u32 *index)
{
	struct slot_key key = {.comm = comm, .tgid = process->tgid};
	u32 *known = slot_of.lookup(&key), user = user_place(process->uid);
	struct slot *slot;
	u64 *taken;

	if (known) {
		*index = *known;
		return slots.lookup(index);
	}
	taken = slot_takes.lookup(&user);
	if (!taken || !room(*taken, slot_returns.lookup(&user), SLOTS_OF_USER) ||
	    !room(process->slots, slot_returns_of.lookup(&thread->process), SLOTS_OF_PROCESS)) {
		lose(LOSS_SLOT_SHARE);
		return 0;
	}
	if (free_slots.pop(index)) {
		lose(LOSS_SLOT);
		return 0;
	}
	slot = slots.lookup(index);
	if (!slot)
		return 0;
	slot->comm = comm;
	slot->uid = process->uid;
	slot->tgid = process->tgid;
	if (!slot_of.insert(&key, index)) {
		ADD(*taken, 1);
		ADD(process->slots, 1);
		return slot;
	}
	/* Another thread saw this communicator first. */
	slot->comm = slot->tgid = slot->uid = 0;
	free_slots.push(index, BPF_ANY);
	known = slot_of.lookup(&key);
	if (!known)
		return 0;
	*index = *known;
	return slots.lookup(index);
}

static __always_inline struct event *new_event(u64 kind, struct thread *thread, struct process *process, u64 now)
{
	u32 user = user_place(process->uid);
	u64 *taken = event_takes.lookup(&user);
	struct event *event;

	if (!taken || !room(*taken, event_returns.lookup(&user), EVENTS_OF_USER) ||
	    !room(process->events, event_returns_of.lookup(&thread->process), EVENTS_OF_PROCESS)) {
		lose(LOSS_EVENT_SHARE);
		return 0;
	}
	event = events.ringbuf_reserve(sizeof(struct event));
	if (!event) {
		lose(LOSS_EVENT);
		return 0;
	}
	ADD(*taken, 1);
	ADD(process->events, 1);
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->ns = now;
	event->tgid = process->tgid;
	event->uid = process->uid;
	event->process = thread->process;
	event->rank = -1;
	return event;
}

/* The agent drains the ring once a period: waking it up for each event would cost more than the event. */
static __always_inline void send(struct event *event)
{
	events.ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* A communicator under construction has its address by the time its thread calls again: tell the agent which. */
static __always_inline void deliver(struct thread *thread, struct process *process, u64 now)
{
	u64 comm = 0, out = thread->out;
	struct event *event;

	if (!out || bpf_probe_read_user(&comm, sizeof(comm), (void *)out) || !comm)
		return;
	thread->out = 0;
	if (!process->born_ns)
		process->born_ns = now;
	event = new_event(BORN, thread, process, now);
	if (!event)
		return;
	event->comm = comm;
	event->out = out;
	send(event);
}

static __always_inline struct thread *enter_nccl(u64 id, u64 now, struct process **process, enum group group)
{
	struct thread *thread = enter(id, now, process, group);

	if (thread)
		deliver(thread, *process, now);
	return thread;
}

/* Signature: 12 bits of the communicator's index, 4 of the kind, 16 of a hash of count and datatype. */
static __always_inline void note(struct thread *thread, u64 tgid, u32 kind, u64 what, u64 now)
{
	struct log *log = logs.lookup(&thread->process);
	u64 signature = (u64)(thread->behind << 4 | (kind & 15)) << 16 & 0xffffffffULL;

	if (!log)
		return;
	if (log->tgid != tgid) { /* the place was another process's */
		log->tgid = tgid;
		log->count = 0;
	}
	signature |= what * 0x9e3779b97f4a7c15ULL >> 48;
	log->entries[log->count % LOGGED] = now >> 10 << 32 | signature;
	log->count++;
}

static __always_inline int operation(u64 comm, u64 count, u32 datatype, u32 kind)
{
	u64 id = caller(), now = bpf_ktime_get_ns();
	struct process *process;
	struct thread *thread = enter_nccl(id, now, &process, CALLS);
	struct slot *slot;
	u32 index = NONE;

	if (!thread)
		return 0;
	if (!process->operation_ns)
		process->operation_ns = now;
	slot = slot_for(comm, thread, process, &index);
	if (!slot) {
		ADD(process->lost, 1);
		return 0;
	}
	thread->behind = index;
	if (datatype < DATATYPES)
		ADD(slot->bytes, count * (DATATYPE_SIZES >> (4 * datatype) & 15));
	else
		ADD(slot->unsized, 1);
	slot->last_ns = now;
	slot->last_kind = kind;
	slot->last_datatype = datatype;
	slot->last_count = count;
	ADD(slot->operations, 1);
	note(thread, id >> 32, kind, count << 4 | (datatype & 15), now);
	return 0;
}

#define AT(place) argument(ctx, place)

/* Order of kinds: agent/nccl/row.py, OPERATIONS. */
#define OPERATION(name, kind, comm, count, datatype)                                                                   \
	int name(struct pt_regs *ctx)                                                                                  \
	{                                                                                                              \
		return operation(comm, count, datatype, kind);                                                         \
	}

OPERATION(ncclAllReduce, 0, AT(5), AT(2), AT(3))
OPERATION(ncclReduceScatter, 1, AT(5), AT(2), AT(3))
OPERATION(ncclAllGather, 2, AT(4), AT(2), AT(3))
OPERATION(ncclBroadcast, 3, AT(5), AT(2), AT(3))
OPERATION(ncclReduce, 4, AT(6), AT(2), AT(3))
OPERATION(ncclSend, 5, AT(4), AT(1), AT(2))
OPERATION(ncclRecv, 6, AT(4), AT(1), AT(2))
OPERATION(ncclAlltoAll, 7, AT(4), AT(2), AT(3))
OPERATION(ncclGather, 8, AT(5), AT(2), AT(3))
OPERATION(ncclScatter, 9, AT(5), AT(2), AT(3))

/* Of RCCL: another spelling, a bias behind the other arguments, and counts by rank, which are not added up. */
OPERATION(ncclAllToAll, 7, AT(4), AT(2), AT(3))
OPERATION(ncclAllReduceWithBias, 0, AT(5), AT(2), AT(3))
OPERATION(ncclAllToAllv, 10, AT(7), 0, DATATYPES)

/* One-sided, from 2.29 on. A signal carries no data. */
OPERATION(ncclPutSignal, 11, AT(9), AT(1), AT(2))
OPERATION(ncclSignal, 12, AT(4), 0, 0)
OPERATION(ncclWaitSignal, 13, AT(2), 0, 0)

int ncclCommGetAsyncError(struct pt_regs *ctx)
{
	struct slot_key key = {.comm = AT(0)};
	u64 id = caller();
	struct slot *slot;
	u32 *index;

	/* Often thousands a second from PyTorch's watchdog, which neither makes communicators nor waits: no more than
	 * this. */
	key.tgid = id >> 32;
	index = slot_of.lookup(&key);
	if (!index)
		return 0;
	slot = slots.lookup(index);
	if (!slot)
		return 0;
	ADD(slot->queries, 1);
	return 0;
}

int ncclGroupStart(struct pt_regs *ctx)
{
	struct process *process;
	u64 id = caller();

	if (enter_nccl(id, bpf_ktime_get_ns(), &process, CALLS))
		ADD(process->group_starts, 1);
	return 0;
}

int ncclGroupEnd(struct pt_regs *ctx)
{
	struct process *process;
	u64 id = caller();

	if (enter_nccl(id, bpf_ktime_get_ns(), &process, CALLS))
		ADD(process->group_ends, 1);
	return 0;
}

/* Remember where the address of a new communicator will appear, and tell the agent what is known of it. */
static __always_inline int init(u64 kind, u64 out, u64 ranks, s64 rank, u64 unique_id)
{
	u64 id = caller(), now = bpf_ktime_get_ns();
	struct process *process;
	struct thread *thread = enter_nccl(id, now, &process, LIFE);
	struct event *event;

	if (!thread)
		return 0;
	if (!process->init_ns)
		process->init_ns = now;
	event = new_event(kind, thread, process, now);
	if (!event) {
		ADD(process->lost, 1);
		return 0;
	}
	event->out = thread->out = out;
	event->ranks = ranks;
	event->rank = rank;
	if (unique_id)
		bpf_probe_read_user(event->id, sizeof(event->id), (void *)unique_id);
	send(event);
	return 0;
}

/*
 * The unique id is 128 bytes by value. On x86-64 it lies in the caller's argument area and takes no register; on ARM64
 * the caller makes a copy and hands over its address.
 */
int ncclCommInitRank(struct pt_regs *ctx)
{
#ifdef REGISTERS_OF_ARM64
	return init(INIT, AT(0), (u32)AT(1), (s32)AT(3), AT(2));
#else
	return init(INIT, AT(0), (u32)AT(1), (s32)AT(2), ON_STACK(ctx));
#endif
}

int ncclCommInitRankScalable(struct pt_regs *ctx)
{
	/* Several unique ids may be given, the same ones in the same order on all ranks: the first tells enough. */
	return init(INIT, AT(0), (u32)AT(1), (s32)AT(2), AT(4));
}

int ncclCommInitAll(struct pt_regs *ctx)
{
	return init(INIT_ALL, AT(0), (u32)AT(1), -1, 0);
}

/*
 * Of the old communicator's ranks not all are given the unique id, and new ranks have no old communicator: who the new
 * one is stands in its memory.
 */
int ncclCommGrow(struct pt_regs *ctx)
{
	return init(GROW, AT(4), (u32)AT(1), (s32)AT(3), 0);
}

static __always_inline int child(u64 kind, u64 parent, u64 out, u64 left_out, s64 color)
{
	u64 id = caller(), now = bpf_ktime_get_ns();
	struct process *process;
	struct thread *thread = enter_nccl(id, now, &process, LIFE);
	struct event *event;
	struct slot *slot;
	u32 index = NONE;

	if (!thread)
		return 0;
	slot = slot_for(parent, thread, process, &index);
	event = slot ? new_event(kind, thread, process, now) : 0;
	if (!event) {
		ADD(process->lost, 1);
		return 0;
	}
	event->comm = parent;
	event->out = out;
	thread->out = kind == SPLIT && color < 0 ? 0 : out; /* NCCL_SPLIT_NOCOLOR: this rank gets no child */
	event->ranks = left_out;
	event->color = color;
	event->nth = slot->splits;
	ADD(slot->splits, 1);
	send(event);
	return 0;
}

int ncclCommSplit(struct pt_regs *ctx)
{
	return child(SPLIT, AT(0), AT(3), 0, (s32)AT(1));
}

int ncclCommShrink(struct pt_regs *ctx)
{
	return child(SHRINK, AT(0), AT(3), (u32)AT(2), 0);
}

static __always_inline int end(u64 kind, u64 comm)
{
	u64 id = caller(), now = bpf_ktime_get_ns();
	struct slot_key key = {.comm = comm, .tgid = id >> 32};
	struct process *process;
	struct thread *thread = enter_nccl(id, now, &process, LIFE);
	struct event *event;
	struct slot *slot;
	u32 *index;

	if (!thread)
		return 0;
	index = slot_of.lookup(&key);
	slot = index ? slots.lookup(index) : 0;
	if (slot && kind != FINALIZE && kind != REVOKE) {
		slot->ended = 1;
		slot_of.delete(&key);
	}
	event = new_event(kind, thread, process, now);
	if (!event) {
		ADD(process->lost, 1);
		return 0;
	}
	event->comm = comm;
	send(event);
	return 0;
}

int ncclCommFinalize(struct pt_regs *ctx)
{
	return end(FINALIZE, AT(0));
}

int ncclCommDestroy(struct pt_regs *ctx)
{
	return end(DESTROY, AT(0));
}

int ncclCommAbort(struct pt_regs *ctx)
{
	return end(ABORT, AT(0));
}

/* What was under way is dropped. Its ranks may still be split from it before it is destroyed. */
int ncclCommRevoke(struct pt_regs *ctx)
{
	return end(REVOKE, AT(0));
}
