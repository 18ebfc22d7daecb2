/* How one operation moves: announce, gather, ring steps or a pair's transfer; and the counters it shows outside. */
#include "communicator.h"

#include <math.h>
#include <stdlib.h>

enum { PATTERN_RING, PATTERN_SEND = 13, PATTERN_RECV = 14 }; /* ncclPattern_t */

/* Where the list points to the operation at work on that connection, or to its end. */
static struct ncclProxyArgs **slot_of(struct ncclProxyProgressState *state,
				      const struct ncclProxyConnection *connection)
{
	struct ncclProxyArgs **at = &state->active;

	while (*at && (*at)->subs[0].connection != connection)
		at = &(*at)->next;
	return at;
}

/* Operations of one connection are at work one by one: the first is in the list, the next ones hang on it. */
static void enlist(struct ncclProxyProgressState *state, struct ncclProxyArgs *args)
{
	struct ncclProxyArgs **at = slot_of(state, args->subs[0].connection);

	if (*at) {
		args->state = ncclProxyOpReady;
		for (at = &(*at)->nextPeer; *at;)
			at = &(*at)->nextPeer;
	} else {
		at = &state->active;
		args->next = *at;
	}
	__atomic_store_n(at, args, __ATOMIC_RELEASE);
}

static struct ncclProxyArgs *take_args(struct ncclComm *comm, const struct ncclProxyOp *op)
{
	struct ncclProxyProgressState *state = &comm->proxy.progressState;
	struct ncclProxyArgs *args = state->pool ? state->pool : malloc(sizeof(*args));

	if (!args)
		abort();
	if (args == state->pool)
		state->pool = args->next;
	*args = (struct ncclProxyArgs){.nsubs = 1,
				       .opCount = op->opCount,
				       .sliceSteps = 1,
				       .chunkSteps = 1,
				       .dtype = op->dtype,
				       .pattern = op->pattern,
				       .coll = op->coll,
				       .protocol = NCCL_PROTO_SIMPLE,
				       .state = ncclProxyOpProgress};
	args->subs[0] = (struct ncclProxySubArgs){.connection = op->connection,
						  .nsteps = op->nsteps,
						  .nbytes = op->nbytes,
						  .peer = op->peer,
						  .base = op->connection->step,
						  .posted = (uint64_t)op->nsteps,
						  .end = (uint64_t)op->nsteps};
	op->connection->step += (uint64_t)op->nsteps;
	enlist(state, args);
	return args;
}

static struct ncclProxyConnection *connect_to(struct ncclComm *comm, int send, int peer)
{
	struct ncclProxyConnection *connection = &comm->connections[send][peer];

	connection->send = send;
	connection->transport = TRANSPORT_NET;
	comm->sending[peer].recvMem = &comm->ready[peer];
	connection->transportResources = send ? (void *)&comm->sending[peer] : (void *)&comm->receiving[peer];
	return connection;
}

static struct ncclProxyArgs *append(struct nccl_op *op, int send, int pattern, int peer)
{
	struct ncclProxyConnection *connection = connect_to(op->comm, send, peer);
	struct ncclProxyOp proxy = {.connection = connection,
				    .nbytes = (ssize_t)(op->bytes / op->steps),
				    .opCount = op->turn,
				    .nsteps = op->steps,
				    .dtype = (uint8_t)op->datatype,
				    .coll = (uint8_t)op->func,
				    .pattern = (uint8_t)pattern,
				    .peer = peer};

	return take_args(op->comm, &proxy);
}

void op_activate(struct nccl_op *op)
{
	int rank = op->comm->rank, ranks = op->comm->nRanks;

	if (op->func == ncclFuncSend)
		op->send = append(op, 1, PATTERN_SEND, op->peer);
	else if (op->func == ncclFuncRecv)
		op->recv = append(op, 0, PATTERN_RECV, op->peer);
	else {
		op->recv = append(op, 0, PATTERN_RING, (rank + ranks - 1) % ranks);
		op->send = append(op, 1, PATTERN_RING, (rank + 1) % ranks);
	}
}

static void return_args(struct ncclComm *comm, struct ncclProxyArgs *args)
{
	struct ncclProxyProgressState *state = &comm->proxy.progressState;
	struct ncclProxyArgs **at, *following;

	if (!args)
		return;
	at = slot_of(state, args->subs[0].connection);
	following = args->nextPeer;
	if (*at != args) { /* aborted before its turn */
		while (*at != args)
			at = &(*at)->nextPeer;
	} else if (following) {
		following->next = args->next;
		following->state = ncclProxyOpProgress;
	} else {
		following = args->next;
	}
	__atomic_store_n(at, following, __ATOMIC_RELEASE);
	args->state = ncclProxyOpNone;
	args->done = 1;
	args->nextPeer = NULL;
	args->next = state->pool;
	state->pool = args;
}

void op_deactivate(struct nccl_op *op)
{
	return_args(op->comm, op->send);
	return_args(op->comm, op->recv);
	op->comm->workFifoConsumed++;
}

static void show(uint64_t *counter, uint64_t value)
{
	__atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

/* What has arrived lies in the buffers until the GPU is there to take it. */
static void show_received(struct nccl_op *op, uint64_t steps)
{
	struct ncclProxySubArgs *sub = &op->recv->subs[0];

	steps = steps < (uint64_t)op->steps ? steps : (uint64_t)op->steps;
	show(&sub->received, steps);
	show(&sub->flushed, steps);
	show(&sub->transmitted, steps);
	if (op->batch->launched)
		show(&sub->done, steps);
}

/* So many steps of a transfer does the GPU hold ready for the network. */
static void make_ready(struct nccl_op *op, int steps)
{
	struct ncclProxySubArgs *sub = &op->send->subs[0];

	show(&op->comm->ready[sub->peer].tail, sub->base + (uint64_t)steps);
}

static void start_step(struct nccl_op *op, double now)
{
	struct fabric *fabric = fabric_open();
	struct ncclProxySubArgs *sub = &op->send->subs[0];
	double seconds = op->bytes / op->steps / fabric->head.bandwidth;

	op->sending = true;
	op->until = now + seconds * fabric_control()->link_scale * fabric_jitter();
	make_ready(op, op->moved + 1);
	show(&sub->transmitted, (uint64_t)op->moved + 1);
}

/* When to look again at a step that is on its way; 0: it is through. */
static double on_its_way(struct nccl_op *op, double now)
{
	if (now < op->until)
		return op->until;
	return fabric_control()->link_down ? now + 0.05 : 0;
}

static void finish_step(struct nccl_op *op)
{
	op->sending = false;
	op->moved++;
	show(&op->send->subs[0].done, (uint64_t)op->moved);
}

/* Ring steps finished by the slowest member, counted from the start of the operation. */
static bool all_sent(struct fabric_group *group, int ranks, uint64_t count)
{
	for (int i = 0; i < ranks; i++)
		if (atomic_load(&group->members[i].sent) < count)
			return false;
	return true;
}

static void publish_step(struct nccl_op *op)
{
	struct ncclComm *comm = op->comm;
	uint64_t count = comm->sent + (uint64_t)op->moved;

	atomic_store(&comm->group->members[comm->rank].sent, count);
	if (op->moved == op->steps && all_sent(comm->group, comm->nRanks, count))
		fabric_wake_group(comm->group);
	else
		fabric_wake_member(comm->group, (comm->rank + 1) % comm->nRanks);
}

/* Ranks that disagree on the operation wait for data that never comes: so does the real one. */
static bool predecessor_agrees(struct nccl_op *op, int before)
{
	return fabric_value(op->comm->group, before, FABRIC_STREAM, op->index + 1) == op->signature;
}

/* Steps that have come from the rank before; it announces an operation before it sends the first. */
static uint64_t arrived_steps(struct nccl_op *op)
{
	struct ncclComm *comm = op->comm;
	int before = (comm->rank + comm->nRanks - 1) % comm->nRanks;
	uint64_t sent = atomic_load(&comm->group->members[before].sent);

	return sent > comm->sent && predecessor_agrees(op, before) ? sent - comm->sent : 0;
}

static double move_ring(struct nccl_op *op, double now)
{
	for (;;) {
		uint64_t arrived = arrived_steps(op);

		show_received(op, arrived);
		double again = op->sending ? on_its_way(op, now) : 0;

		if (again > 0)
			return again;
		if (op->sending) {
			finish_step(op);
			publish_step(op);
		} else if (op->moved == op->steps) {
			op->stage = OP_FLUSH;
			return now;
		} else if (arrived < (uint64_t)op->moved) {
			return INFINITY;
		} else {
			start_step(op, now);
		}
	}
}

/* A rank has all its data only when all the others have sent all of theirs. */
static double flush_ring(struct nccl_op *op, double now)
{
	struct ncclComm *comm = op->comm;

	if (!all_sent(comm->group, comm->nRanks, comm->sent + (uint64_t)op->steps) || !arrived_steps(op))
		return INFINITY;
	show_received(op, (uint64_t)op->steps);
	comm->sent += (uint64_t)op->steps;
	comm->progressed++;
	op->stage = OP_DONE;
	return now;
}

/* The network receives for an operation that the host has enqueued; nothing is sent before the GPU has come to it. */
static double advance_ring(struct nccl_op *op, double now)
{
	struct ncclComm *comm = op->comm;

	if (comm->progressed != op->index)
		return INFINITY;
	if (op->stage == OP_TURN) {
		show_received(op, arrived_steps(op));
		if (!op->batch->launched)
			return INFINITY;
		fabric_announce(comm->group, comm->rank, FABRIC_STREAM, op->index + 1, op->signature);
		op->stage = OP_MOVE;
	}
	if (op->stage == OP_MOVE)
		return move_ring(op, now);
	return flush_ring(op, now);
}

static double advance_send(struct nccl_op *op, double now)
{
	struct ncclComm *comm = op->comm;
	struct fabric_pipe *pipe = &comm->group->pipes[comm->rank][op->peer];

	if (atomic_load(&pipe->moved) != op->index || !op->batch->launched)
		return INFINITY;
	if (atomic_load(&pipe->wanted) <= op->index) {
		make_ready(op, op->steps);
		return INFINITY;
	}
	while (op->moved < op->steps) {
		if (!op->sending)
			start_step(op, now);
		double again = on_its_way(op, now);

		if (again > 0)
			return again;
		finish_step(op);
	}
	atomic_store(&pipe->moved, op->index + 1);
	fabric_wake_member(comm->group, op->peer);
	op->stage = OP_DONE;
	return now;
}

static double advance_receive(struct nccl_op *op, double now)
{
	struct ncclComm *comm = op->comm;
	struct fabric_pipe *pipe = &comm->group->pipes[op->peer][comm->rank];
	uint64_t moved = atomic_load(&pipe->moved);

	if (op->stage == OP_TURN && moved == op->index) {
		atomic_store(&pipe->wanted, op->index + 1);
		fabric_wake_member(comm->group, op->peer);
		op->stage = OP_MOVE;
	}
	if (moved <= op->index)
		return INFINITY;
	show_received(op, (uint64_t)op->steps);
	if (!op->batch->launched)
		return INFINITY;
	op->stage = OP_DONE;
	return now;
}

double op_advance(struct nccl_op *op, double now)
{
	if (op->func == ncclFuncSend)
		return advance_send(op, now);
	if (op->func == ncclFuncRecv)
		return advance_receive(op, now);
	return advance_ring(op, now);
}
