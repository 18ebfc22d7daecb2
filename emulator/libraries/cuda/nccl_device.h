/* What NCCL's kernels find in the GPU's memory: the connections of a channel, and the work that they were launched for.
 */
#ifndef PEERWATCH_NCCL_DEVICE_H
#define PEERWATCH_NCCL_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Half of a connection as the GPU sees it (ncclConnInfo, 2.21 and later). */
struct connection {
	char *buffers[3];
	void *handles[3];
	volatile uint64_t *tail, *head;
	int flags, shared, step_size;
	void **exchange;
	uint64_t *exchanged;
	char *fifo; /* ncclConnFifo[8]; NULL: the other side is a GPU */
	uint64_t step;
	uint64_t cleaned;
	char device_handle[32];
};

/* By connection index: collectives use the first, pairs the second (ncclDevChannelPeer). */
struct peer {
	struct connection send[2], receive[2];
};

struct ring {
	int previous, next;
	int *ranks; /* from this rank on */
};

struct channel {
	struct peer *const *peers;
	struct ring ring;
};

/* One transfer, or one rank's part in a collective on one channel. */
struct part {
	struct connection *receive, *send; /* NULL: does not */
	uint64_t operations;		   /* chunks, each of which is received, sent, or both */
	uint64_t loop;			   /* of a ring, after so many the first is only sent, the last only received */
	int slices, steps;		   /* of a chunk, of a slice */
	uint64_t slice_bytes;
	bool apart; /* goes on beside the others of its batch, as pairs do */
};

/* What one channel has to do, in order. */
struct program {
	struct part *parts;
	size_t count, room;
};

struct kernel {
	char *comm;
	uint64_t channels; /* mask */
	void *old_work;	   /* versions before 2.22 */
	unsigned int blocks;
	size_t bytes;
	char arguments[];
};

int device_ranks(const struct kernel *kernel);
volatile uint32_t *device_abort_flag(const struct kernel *kernel);
/* Where the size of what is sent in this step goes. */
void device_set_size(const struct connection *connection, uint64_t step, uint64_t bytes);
/* What the block of this number was launched for; false: something that is not played, which was said. */
bool device_program(const struct kernel *kernel, unsigned int block, struct program *program);

#endif
