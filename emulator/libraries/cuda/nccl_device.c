/*
 * Reads what a kernel of NCCL's was launched for, as the kernel does (src/device/common.h in NVIDIA's source): the
 * works of each channel, and from each the number of chunks that go over which connections. Ring and Simple alone are
 * played: the ranks' environment asks for nothing else.
 */
#include "nccl_device.h"

#include "private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIFO_STEPS 8 /* NCCL_STEPS */
#define GRAIN 512    /* bytes: what chunks of the protocol Simple are counted in */
#define PAIR_BYTES 48

/* What moved from version to version; offsets and sizes in bytes. */
struct layout {
	int from; /* version */
	int channels, channel_bytes;
	int fifo_bytes, fifo_size;
	int counts, collective_bytes; /* in ncclDevWorkColl */
	int function_bits;
};

static const struct layout layouts[] = {
    {22105, 64, 368, 24, 8, 0, 0, 0}, /* works of another form */
    {22200, 56, 368, 24, 8, 24, 64, 15},   {22300, 64, 368, 24, 8, 56, 96, 15},	 {22500, 64, 352, 24, 8, 56, 96, 15},
    {22600, 64, 368, 24, 8, 56, 96, 15},   {22700, 56, 368, 24, 8, 56, 96, 15},	 {23000, 56, 368, 24, 8, 80, 128, 15},
    {23100, 56, 368, 32, 16, 80, 128, 15}, {23200, 56, 368, 32, 16, 56, 96, 11},
};

static const struct layout *layout(void)
{
	const struct layout *found = &layouts[0];

	for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++)
		if (layouts[i].from <= nccl_library.version)
			found = &layouts[i];
	return found;
}

#define AT(type, base, offset) (*(type *)((char *)(base) + (offset)))

int device_ranks(const struct kernel *kernel)
{
	return AT(int, kernel->comm, 4);
}

static int device_rank(const struct kernel *kernel)
{
	return AT(int, kernel->comm, 0);
}

volatile uint32_t *device_abort_flag(const struct kernel *kernel)
{
	return AT(volatile uint32_t *, kernel->comm, layout()->channels - 8);
}

void device_set_size(const struct connection *connection, uint64_t step, uint64_t bytes)
{
	if (connection->fifo)
		AT(volatile int64_t, connection->fifo, step % FIFO_STEPS * layout()->fifo_bytes + layout()->fifo_size) =
		    (int64_t)bytes;
}

/* The channel that a block works for: the bit of that number in the mask. */
static int channel_of(const struct kernel *kernel, unsigned int block)
{
	for (int i = 0; i < 64; i++)
		if (kernel->channels >> i & 1 && !block--)
			return i;
	return -1;
}

static struct channel *find_channel(const struct kernel *kernel, int number)
{
	char *channels = AT(char *, kernel->comm, layout()->channels);

	return (struct channel *)(channels + (size_t)number * layout()->channel_bytes);
}

static bool add_part(struct program *program, struct part part)
{
	if (program->count == program->room) {
		size_t room = program->room ? 2 * program->room : 8;
		struct part *parts = realloc(program->parts, room * sizeof(*parts));

		if (!parts)
			return false;
		program->parts = parts;
		program->room = room;
	}
	program->parts[program->count++] = part;
	return true;
}

static bool say_not_played(const char *what)
{
	fprintf(stderr, "emulated GPU: a kernel for %s is not played\n", what);
	return false;
}

/* ------------------------------------------------------------------ collectives */

struct share { /* what a channel does of a collective, in elements */
	uint64_t count, chunk;
};

static int element_bytes(const char *name)
{
	static const struct {
		const char *word;
		int bytes;
	} types[] = {{"_bf16", 2}, {"_f16", 2}, {"32_", 4}, {"64_", 8}};

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (strstr(name, types[i].word))
			return types[i].bytes;
	return 1;
}

static uint64_t up(uint64_t count, uint64_t by)
{
	return (count + by - 1) / by;
}

static struct part ring_part(struct connection *receive, struct connection *send, uint64_t loops, uint64_t length)
{
	return (struct part){receive, send, loops * length, .loop = length, .slices = 2, .steps = 2};
}

/* One chunk after the other down a chain: the first rank only sends, the last one only receives. */
static struct part chain_part(struct connection *receive, struct connection *send, uint64_t chunks)
{
	return (struct part){receive, send, chunks, .slices = 1, .steps = 1};
}

static bool add_collective(const struct kernel *kernel, const struct channel *channel, const char *name, uint32_t root,
			   struct share share, struct program *program)
{
	struct connection *receive = &channel->peers[channel->ring.previous]->receive[0];
	struct connection *send = &channel->peers[channel->ring.next]->send[0];
	uint64_t ranks = (uint64_t)device_ranks(kernel), chunks = up(share.count, share.chunk);
	uint32_t rank = (uint32_t)device_rank(kernel), next = (uint32_t)channel->ring.next;
	uint32_t previous = (uint32_t)channel->ring.previous;
	struct part part;

	if (!strncmp(name, "AllReduce_", 10))
		part = ring_part(receive, send, up(share.count, ranks * share.chunk), 2 * ranks - 1);
	else if (!strncmp(name, "AllGather_", 10) || !strncmp(name, "ReduceScatter_", 14))
		part = ring_part(receive, send, chunks, ranks);
	else if (!strncmp(name, "Broadcast_", 10))
		part = chain_part(rank == root ? NULL : receive, next == root ? NULL : send, chunks);
	else if (!strncmp(name, "Reduce_", 7))
		part = chain_part(previous == root ? NULL : receive, rank == root ? NULL : send, chunks);
	else
		return say_not_played(name);
	part.slice_bytes = (share.count < share.chunk ? share.count : share.chunk) * (uint64_t)element_bytes(name) /
			   (uint64_t)part.slices;
	return add_part(program, part);
}

/* ------------------------------------------------------------------ pairs */

static bool add_half(struct program *program, struct connection *connection, bool send, uint64_t bytes, uint64_t chunk)
{
	struct part part = {.operations = bytes ? up(bytes, chunk) : 1, .slices = 1, .steps = 1, .apart = true};

	*(send ? &part.send : &part.receive) = connection;
	part.slice_bytes = bytes < chunk ? bytes : chunk;
	return add_part(program, part);
}

/* What a rank has for itself is copied within its GPU. */
static bool add_pair(const struct kernel *kernel, const struct channel *channel, int peer, bool send, uint64_t bytes,
		     uint64_t chunk, struct program *program)
{
	if (peer < 0 || peer == device_rank(kernel))
		return true;
	return add_half(program, send ? &channel->peers[peer]->send[1] : &channel->peers[peer]->receive[1], send, bytes,
			chunk);
}

/* ------------------------------------------------------------------ works of 2.22 and later */

struct arguments { /* ncclDevKernelArgs */
	char *comm;
	uint64_t channels;
	uint8_t storage; /* 0: behind the arguments; 1: in a ring of the communicator's; 2: in a buffer of their own */
	uint32_t mask;
	char *works;
};

struct batch { /* ncclDevWorkBatch */
	uint32_t jump : 14, extends : 1, type : 2, function : 15;
	uint32_t offset;
	uint64_t set;
};

struct pair_work { /* ncclDevWorkP2p */
	void *from, *to;
	size_t send_bytes, receive_bytes;
	int send_rank, receive_rank;
	uint8_t channels, first_channel, send_channels, receive_channels;
	uint8_t send_chunk, receive_chunk; /* as decode_size takes them */
};

enum { PAIR, COLLECTIVE };

/* A size in eight bits, three of them the mantissa. */
static uint64_t decode_size(uint8_t code)
{
	uint32_t exponent = code >> 3, mantissa = (code & 7) | (exponent ? 8 : 0);

	return (uint64_t)mantissa << (exponent ? exponent - 1 : 0);
}

static const char *function_name(uint32_t function)
{
	const char *name = NULL;

	function &= (1u << layout()->function_bits) - 1;
	if (function < nccl_library.functions)
		name = kernel_name(nccl_library.kernel_of_function[function]);
	return name ? name : "a function without a name";
}

/* Channels in the middle share alike, the first and the last have shares of their own. */
static struct share share_of(const char *work, int channel, int bytes)
{
	const char *counts = work + layout()->counts;
	uint64_t grains = AT(uint64_t, counts, 24), low = (uint8_t)work[0], high = (uint8_t)work[1];
	int at = channel == (int)low ? 0 : channel == (int)high ? 2 : 1;

	return (struct share){AT(uint64_t, counts, 8 * at), (grains >> 21 * at & 0x1fffff) * GRAIN / (uint64_t)bytes};
}

static bool add_pair_work(const struct kernel *kernel, const struct channel *channel, const struct pair_work *work,
			  struct program *program)
{
	return add_pair(kernel, channel, work->send_channels ? work->send_rank : -1, true, work->send_bytes,
			decode_size(work->send_chunk), program) &&
	       add_pair(kernel, channel, work->receive_channels ? work->receive_rank : -1, false, work->receive_bytes,
			decode_size(work->receive_chunk), program);
}

static bool add_work(const struct kernel *kernel, int number, const struct batch *batch, const char *work,
		     struct program *program)
{
	const struct channel *channel = find_channel(kernel, number);
	const char *name = function_name(batch->function);

	if (batch->type == PAIR)
		return add_pair_work(kernel, channel, (const struct pair_work *)work, program);
	if (batch->type != COLLECTIVE)
		return say_not_played("registered buffers");
	return add_collective(kernel, channel, name, AT(const uint32_t, work, 4),
			      share_of(work, number, element_bytes(name)), program);
}

static bool read_batches(const struct kernel *kernel, unsigned int block, struct program *program)
{
	const struct arguments *arguments = (const void *)kernel->arguments;
	const struct batch *batches = (const void *)(arguments + 1);
	const char *base = arguments->storage ? arguments->works : kernel->arguments;

	for (size_t at = block;; at += batches[at].jump) {
		const struct batch *batch = &batches[at];
		uint32_t bytes = batch->type == PAIR ? PAIR_BYTES : (uint32_t)layout()->collective_bytes;

		for (int bit = 0; bit < 64; bit++) {
			uint32_t offset = batch->offset + (uint32_t)bit * bytes;

			if (arguments->storage == 1)
				offset &= arguments->mask;
			if (batch->set >> bit & 1 &&
			    !add_work(kernel, channel_of(kernel, block), batch, base + offset, program))
				return false;
		}
		if (!batch->jump)
			return true;
	}
}

/* ------------------------------------------------------------------ works before 2.22 */

enum { OLD_COLLECTIVE = 1, OLD_PAIR = 2, OLD_SEND = 1, OLD_WORK_BYTES = 512, OLD_ELEMENTS = 9, OLD_PAIRS = 16 };

struct old_work { /* ncclWork, 512 bytes */
	int32_t next;
	uint16_t function;
	uint8_t is_last : 1, in_fifo : 1;
	uint8_t type;
	char elements[OLD_WORK_BYTES - 8];
};

struct old_element { /* ncclWorkElem */
	uint8_t is_used : 1;
	uint8_t flags[3];
	uint32_t root;
	void *from, *to;
	size_t bytes;
	uint64_t operand;
	uint64_t chunk : 25, count : 39;
	uint64_t rest;
};

struct old_pair { /* ncclWorkElemP2p */
	int32_t peer : 30, protocol : 2;
	uint8_t type, warps, first_warp, groups;
	uint32_t address_high, address_low, count_high, count_low;
	int32_t chunk;
};

static bool add_old_elements(const struct kernel *kernel, const struct channel *channel, const struct old_work *work,
			     struct program *program)
{
	const struct old_element *elements = (const void *)work->elements;
	const struct old_pair *pairs = (const void *)work->elements;
	const char *name = work->function < nccl_library.functions
			       ? kernel_name(nccl_library.kernel_of_function[work->function])
			       : NULL;

	for (int i = 0; work->type == OLD_COLLECTIVE && i < OLD_ELEMENTS && elements[i].is_used; i++)
		if (!add_collective(kernel, channel, name ? name : "a function without a name", elements[i].root,
				    (struct share){elements[i].count, elements[i].chunk}, program))
			return false;
	for (int i = 0; work->type == OLD_PAIR && i < OLD_PAIRS; i++) {
		uint64_t bytes = (uint64_t)pairs[i].count_high << 32 | pairs[i].count_low;

		if (pairs[i].type && !add_pair(kernel, channel, pairs[i].peer, pairs[i].type == OLD_SEND, bytes,
					       (uint64_t)pairs[i].chunk, program))
			return false;
	}
	return true;
}

static bool read_old_works(const struct kernel *kernel, unsigned int block, struct program *program)
{
	const struct channel *channel = find_channel(kernel, channel_of(kernel, block));
	const struct old_work *works = kernel->old_work, *work = &works[block];

	for (;; work = &works[work->next]) {
		if (!add_old_elements(kernel, channel, work, program))
			return false;
		if (work->is_last)
			break;
	}
	/* tells the host that the works may be overwritten */
	if (work->in_fifo)
		*AT(volatile uint32_t *, channel, 352) = (uint32_t)work->next;
	return true;
}

bool device_program(const struct kernel *kernel, unsigned int block, struct program *program)
{
	return kernel->old_work ? read_old_works(kernel, block, program) : read_batches(kernel, block, program);
}
