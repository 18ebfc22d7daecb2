/*
 * Garbage collections of CPython in training processes: how many, and how long they took.
 *
 * The agent attaches these to one process each and names that process here before; a hit of any other one (a child
 * that was forked with the breakpoints in it) is counted and left alone. A collection holds the interpreter's lock,
 * so one that is under way is all that need be known of a process.
 */
#include "common.bpf.h"

/* One process with probes on its interpreter. The agent chooses the entry, and reads it through a memory map. */
struct gc_entry {
	u64 tgid;
	u64 hits; /* entries into these programs: what watching costs */
	u64 pauses;
	u64 ns;
	u64 since;  /* beginning of the collection that is under way, or 0 */
	u64 thread; /* which thread is at it */
	u64 lost;   /* hits that could not be classified: the word that does so was not in memory */
	u64 unread; /* where the last such word lies, for the agent to fetch */
};

/* As many as there are processes: 0.06 MB. */
BPF_F_TABLE("array", u32, struct gc_entry, gc_entries, PROCESSES, BPF_F_MMAPABLE);
BPF_TABLE("hash", u64, u32, gc_entry_of, PROCESSES);
BPF_F_TABLE("array", u32, u64, gc_foreign_hits, 1, BPF_F_MMAPABLE);

static __always_inline struct gc_entry *gc_entry(u64 id)
{
	u64 tgid = id >> 32, *foreign;
	u32 *index = gc_entry_of.lookup(&tgid), first = 0;
	struct gc_entry *found = index ? gc_entries.lookup(index) : 0;

	if (found) {
		ADD(found->hits, 1);
		return found;
	}
	foreign = gc_foreign_hits.lookup(&first);
	if (foreign)
		ADD(*foreign, 1);
	return 0;
}

static __always_inline void begin_pause(struct gc_entry *found, u64 id)
{
	found->thread = id;
	found->since = bpf_ktime_get_ns();
}

static __always_inline void end_pause(struct gc_entry *found, u64 id)
{
	u64 since = found->since;

	if (!since || found->thread != id)
		return; /* it began before the probes came */
	found->since = 0;
	ADD(found->pauses, 1);
	ADD(found->ns, bpf_ktime_get_ns() - since);
}

/* At a trace point before the collection, or at the entry of its function where the return is probed too. */
int python_begin(struct pt_regs *ctx)
{
	u64 id = caller();
	struct gc_entry *found = gc_entry(id);

	if (found)
		begin_pause(found, id);
	return 0;
}

/* At a trace point behind the collection, or at the return of its function. */
int python_end(struct pt_regs *ctx)
{
	u64 id = caller();
	struct gc_entry *found = gc_entry(id);

	if (found)
		end_pause(found, id);
	return 0;
}

/* At the entry of a collection with an end that no probe sees. */
int python_count(struct pt_regs *ctx)
{
	struct gc_entry *found = gc_entry(caller());

	if (found)
		ADD(found->pauses, 1);
	return 0;
}

#define STAR 0x72617473 /* the first four bytes of "start" */
#define STOP 0x706f7473

/*
 * At the entry of invoke_gc_callback, which CPython enters before and after each collection with "start" or "stop" as
 * its second argument, whether there are callbacks or not; the first one where the compiler dropped what is unused.
 * Guessing where the word cannot be read could take all that lies between the collections for collections.
 */
int python_phase(struct pt_regs *ctx)
{
	u64 id = caller();
	struct gc_entry *found = gc_entry(id);
	u32 word = 0;

	if (!found)
		return 0;
	bpf_probe_read_user(&word, sizeof(word), (void *)argument(ctx, 1));
	if (word != STAR && word != STOP)
		bpf_probe_read_user(&word, sizeof(word), (void *)argument(ctx, 0));
	if (word == STAR)
		begin_pause(found, id);
	else if (word == STOP)
		end_pause(found, id);
	else {
		ADD(found->lost, 1);
		found->unread = argument(ctx, 1) >= 4096 ? argument(ctx, 1) : argument(ctx, 0);
	}
	return 0;
}
