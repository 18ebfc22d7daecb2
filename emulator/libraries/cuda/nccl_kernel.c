/*
 * Plays NCCL's kernels on a stream's thread: waits for credits and data as a GPU does (prims_simple.h in NVIDIA's
 * source), and writes sizes, heads and tails, so that NCCL's proxies move bytes through real sockets. What is sent has
 * no content.
 */
#define _GNU_SOURCE
#include "nccl_device.h"
#include "private.h"

#include "fabric.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define FIFO_STEPS 8

/* Where a part of a channel's program stands. */
struct progress {
	uint64_t operation;
	int slice;
	bool begun, over;
};

/* Of an operation: whether this rank receives in it, and whether it sends. */
static bool receives(const struct part *part, uint64_t operation)
{
	return part->receive && (!part->loop || operation % part->loop != 0);
}

static bool sends(const struct part *part, uint64_t operation)
{
	return part->send && (!part->loop || operation % part->loop != part->loop - 1);
}

/* Operations begin at whole chunks: what was left of the one before is given up, on both sides alike. */
static void begin(const struct part *part)
{
	uint64_t chunk = (uint64_t)(part->slices * part->steps);

	if (part->receive) {
		part->receive->step = (part->receive->step + chunk - 1) / chunk * chunk;
		*part->receive->head = part->receive->step;
	}
	if (part->send)
		part->send->step = (part->send->step + chunk - 1) / chunk * chunk;
}

static void send_slice(const struct part *part)
{
	struct connection *to = part->send;

	device_set_size(to, to->step, wire_bytes(part->slice_bytes));
	to->step += (uint64_t)part->steps;
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	*to->tail = to->step;
}

/* One slice further, if its data and its credit are there. */
static bool advance(const struct part *part, struct progress *at)
{
	bool receive = receives(part, at->operation), send = sends(part, at->operation);
	uint64_t steps = (uint64_t)part->steps;

	if (receive && *part->receive->tail < part->receive->step + steps)
		return false;
	if (send && *part->send->head + FIFO_STEPS < part->send->step + steps)
		return false;
	if (receive) {
		part->receive->step += steps;
		*part->receive->head = part->receive->step;
	}
	if (send)
		send_slice(part);
	if (++at->slice == part->slices) {
		at->slice = 0;
		at->over = ++at->operation == part->operations;
	}
	return true;
}

/* The parts that are at work: the first that is not over, and those that go on beside it. True: something moved. */
static bool look(const struct program *program, struct progress *at, bool *over)
{
	bool moved = false;

	*over = true;
	for (size_t i = 0; i < program->count; i++) {
		const struct part *part = &program->parts[i];

		if (at[i].over)
			continue;
		if (!part->apart && !*over)
			break;
		*over = false;
		if (!at[i].begun)
			begin(part);
		at[i].begun = true;
		while (!at[i].over && advance(part, &at[i]))
			moved = true;
		if (!part->apart && !at[i].over)
			break;
	}
	return moved;
}

static bool gpu_is_lost(void)
{
	struct fabric_rank *control = fabric_control();

	return control && control->lost;
}

static void play(const struct kernel *kernel, struct program *programs, struct progress **at)
{
	volatile uint32_t *aborted = device_abort_flag(kernel);
	unsigned int idle = 0;

	for (;;) {
		bool all_over = true, moved = false;

		for (unsigned int block = 0; block < kernel->blocks && !gpu_is_lost(); block++) {
			bool over;

			moved |= look(&programs[block], at[block], &over);
			all_over &= over;
		}
		if ((all_over && !gpu_is_lost()) || *aborted)
			return;
		if (moved)
			idle = 0;
		rest(&idle);
	}
}

static void run_kernel(void *argument)
{
	struct kernel *kernel = argument;
	struct program *programs = calloc(kernel->blocks, sizeof(*programs));
	struct progress **at = calloc(kernel->blocks, sizeof(*at));
	bool known = programs && at;

	for (unsigned int block = 0; known && block < kernel->blocks; block++) {
		known = device_program(kernel, block, &programs[block]);
		at[block] = calloc(programs[block].count + 1, sizeof(**at));
	}
	if (known)
		play(kernel, programs, at);
	for (unsigned int block = 0; block < kernel->blocks; block++) {
		free(programs[block].parts);
		free(at[block]);
	}
	free(programs);
	free(at);
	free(kernel);
}

static cudaError_t enqueue(cudaStream_t stream, struct kernel header, const void *arguments)
{
	struct kernel *kernel = malloc(sizeof(*kernel) + header.bytes);

	if (!kernel)
		return cudaErrorMemoryAllocation;
	*kernel = header;
	memcpy(kernel->arguments, arguments, header.bytes);
	return stream_push_block(stream_pick(stream), run_kernel, kernel, sizeof(*kernel) + header.bytes, true)
		   ? cudaSuccess
		   : cudaErrorMemoryAllocation;
}

cudaError_t launch_nccl_kernel(cudaStream_t stream, unsigned int blocks, const void *arguments, size_t bytes)
{
	struct kernel header = {.blocks = blocks, .bytes = bytes};

	memcpy(&header.comm, arguments, sizeof(header.comm));
	memcpy(&header.channels, (const char *)arguments + sizeof(header.comm), sizeof(header.channels));
	return enqueue(stream, header, arguments);
}

cudaError_t launch_old_nccl_kernel(cudaStream_t stream, void *comm, uint64_t channels, void *work)
{
	unsigned int blocks = (unsigned int)__builtin_popcountll(channels);
	struct kernel header = {.comm = comm, .channels = channels, .old_work = work, .blocks = blocks};

	return enqueue(stream, header, "");
}
