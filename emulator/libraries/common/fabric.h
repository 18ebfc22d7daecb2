/*
 * The fabric: the memory that all ranks of all emulated machines share, a file mapped by each of them.
 *
 * Everything in it is a counter or a flag with one writer, so a rank that dies in the middle leaves nothing locked.
 * Waiting is a futex on the waiter's own word, with a time limit. The first two structures are mirrored in fabric.py.
 */
#ifndef PEERWATCH_FABRIC_H
#define PEERWATCH_FABRIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FABRIC_MAGIC 0x50574642u
#define FABRIC_VERSION 4u
#define FABRIC_RANKS 64
#define FABRIC_GROUPS 256
#define FABRIC_BYTES (32ul << 20) /* sparse: a page costs memory only once it is touched */
#define FABRIC_VALUES 4		  /* two suffice: no rank announces k + 2 before all have read k */

enum fabric_lane { FABRIC_STREAM, FABRIC_HOST, FABRIC_LANES };

struct fabric_head {
	uint32_t magic, version, ranks, gpus;
	double bandwidth; /* bytes per second of one rank's link */
	uint32_t id_ready, unused;
	char id[128]; /* the world's ncclUniqueId */
	uint8_t pad[32];
};

struct fabric_rank {
	double compute_scale, link_scale, copy_scale; /* faults: factors on kernel, transfer and copy time */
	uint32_t fault, epoch;
	double amount;
	double throttle; /* the machine's hardware: a factor on kernel time that comes and goes */
	uint32_t link_down, lost;
	uint64_t iterations; /* what the rank says of itself */
	double iteration_seconds, compute_seconds, collective_seconds, wire_bytes;
	_Atomic uint32_t word;	 /* futex: bumped when something this rank may wait for has changed */
	uint32_t proxy_sleep_ms; /* faults: how long the proxy thread sleeps, now and then */
	double kernel_seconds,
	    nccl_seconds; /* what the GPU has spent so far on kernels and copies, in NCCL's kernels */
	uint8_t pad[8];
};

_Static_assert(sizeof(struct fabric_head) == 192, "mirrored in fabric.py");
_Static_assert(sizeof(struct fabric_rank) == 128, "mirrored in fabric.py");

struct fabric_announcement {
	_Atomic uint64_t count;
	_Atomic uint64_t value[FABRIC_VALUES];
};

struct fabric_member {
	_Atomic uint32_t owner; /* rank in the fabric + 1; 0: has not joined */
	struct fabric_announcement lanes[FABRIC_LANES];
	_Atomic uint64_t sent; /* ring steps finished, over all operations */
};

struct fabric_pipe { /* from one member to another */
	_Atomic uint64_t wanted, moved;
};

struct fabric_group { /* one communicator */
	_Atomic uint64_t key;
	_Atomic uint32_t nranks;
	struct fabric_member members[FABRIC_RANKS];
	struct fabric_pipe pipes[FABRIC_RANKS][FABRIC_RANKS];
};

struct fabric {
	struct fabric_head head;
	struct fabric_rank ranks[FABRIC_RANKS];
	struct fabric_group groups[FABRIC_GROUPS];
};

_Static_assert(sizeof(struct fabric) <= FABRIC_BYTES, "the file is too small for its content");

/* The mapped file named by PEERWATCH_FABRIC, or a private one without it; NULL when that file is unusable. */
struct fabric *fabric_open(void);

/* This process's rank in the fabric (PEERWATCH_RANK, 0 without it), and its control block. */
uint32_t fabric_self(void);
struct fabric_rank *fabric_control(void);

/* Monotonic seconds, and a factor of mean 1 and about 1 % spread. */
double fabric_now(void);
double fabric_jitter(void);

/* Read the own word, look at the condition, then wait for the word to move on; at most `seconds`. */
uint32_t fabric_word(void);
void fabric_wait(uint32_t seen, double seconds);
void fabric_wake(uint32_t rank);
void fabric_wake_member(struct fabric_group *group, int member);
void fabric_wake_group(struct fabric_group *group);

/* Take a member's place in the group of that key. NULL: no room, another size, or the place is taken. */
struct fabric_group *fabric_join(uint64_t key, int nranks, int member);
bool fabric_joined(struct fabric_group *group);

/* Announce number `count` with a value; the last of all members wakes the others. */
void fabric_announce(struct fabric_group *group, int member, enum fabric_lane lane, uint64_t count, uint64_t value);
bool fabric_announced(struct fabric_group *group, enum fabric_lane lane, uint64_t count);
uint64_t fabric_value(struct fabric_group *group, int member, enum fabric_lane lane, uint64_t count);

#endif
