/* The emulated libnccl.so.2, part 1: collectives and groups. Each call puts work on a stream and returns. */
#include "nccl.h"

#include "communicator.h"

#include <stdlib.h>

static __thread int group_depth;
static _Atomic uint64_t groups; /* calls alone count as groups of one */
static __thread struct nccl_op *group_ops, **group_tail;
static __thread ncclResult_t group_error;

static const uint8_t type_bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

/* Takes from `ops` those of the first one's stream, and enqueues them as one batch. */
static ncclResult_t launch_stream(struct nccl_op **ops)
{
	struct nccl_batch *batch = calloc(1, sizeof(*batch));
	cudaStream_t stream = (*ops)->stream;
	struct nccl_op **tail = batch ? &batch->ops : NULL;

	if (!batch)
		return ncclSystemError;
	for (struct nccl_op **at = ops; *at;) {
		struct nccl_op *op = *at;

		if (op->stream != stream) {
			at = &op->next;
			continue;
		}
		*at = op->next;
		op->next = NULL;
		op->batch = batch;
		batch->remaining++;
		*tail = op;
		tail = &op->next;
	}
	proxy_submit(batch);
	return peerwatch_enqueue(stream, proxy_run_batch, batch) ? ncclUnhandledCudaError : ncclSuccess;
}

static ncclResult_t launch_group(void)
{
	ncclResult_t result = group_error;

	groups++;
	while (group_ops && !result)
		result = launch_stream(&group_ops);
	while (group_ops) {
		struct nccl_op *op = group_ops;

		group_ops = op->next;
		comm_release(op->comm);
		free(op);
	}
	group_error = ncclSuccess;
	return result;
}

static ncclResult_t add_op(struct nccl_op op)
{
	struct nccl_op *copy = malloc(sizeof(*copy));

	if (!copy)
		return ncclSystemError;
	*copy = op;
	comm_hold(op.comm);
	if (!group_ops)
		group_tail = &group_ops;
	*group_tail = copy;
	group_tail = &copy->next;
	return group_depth ? ncclSuccess : launch_group();
}

static ncclResult_t refuse(const char *text)
{
	comm_set_error(text);
	if (group_depth)
		group_error = ncclInvalidArgument;
	return ncclInvalidArgument;
}

static bool is_pair(ncclFunc_t func)
{
	return func == ncclFuncSend || func == ncclFuncRecv;
}

static double wire_bytes(ncclFunc_t func, double bytes, int ranks)
{
	switch (func) {
	case ncclFuncAllReduce:
		return 2.0 * (ranks - 1) / ranks * bytes;
	case ncclFuncReduceScatter:
	case ncclFuncAllGather:
	case ncclFuncAlltoAll:
		return (ranks - 1) * bytes;
	default:
		return bytes;
	}
}

static int step_count(ncclFunc_t func, int ranks)
{
	int steps = func == ncclFuncAllReduce ? 2 * (ranks - 1) : ranks - 1;

	if (is_pair(func))
		return 2;
	return steps < 1 ? 1 : steps > NCCL_STEPS ? NCCL_STEPS : steps;
}

static void number_op(struct nccl_op *op)
{
	struct ncclComm *comm = op->comm;

	if (op->func == ncclFuncSend)
		op->index = comm->sends[op->peer]++;
	else if (op->func == ncclFuncRecv)
		op->index = comm->receives[op->peer]++;
	else
		op->index = comm->enqueued++;
	op->opCount = comm->opCount++;
	op->turn = is_pair(op->func) ? groups << 1 | 1 : op->opCount << 1;
	comm->collOpCount += !is_pair(op->func);
	comm->workFifoProduced++;
}

static ncclResult_t enqueue(ncclFunc_t func, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
			    cudaStream_t stream)
{
	struct nccl_op op = {.comm = comm, .stream = stream, .func = func, .datatype = datatype, .peer = peer};

	if (comm_check(comm))
		return refuse("comm argument is not a communicator");
	if ((unsigned)datatype >= ncclNumTypes)
		return refuse("invalid data type");
	if (peer < 0 || peer >= comm->nRanks)
		return refuse("invalid root or peer");
	op.signature = (uint64_t)func << 58 | (uint64_t)datatype << 52 | (uint64_t)peer << 44 | (count & 0xfffffffffff);
	op.bytes = wire_bytes(func, (double)count * type_bytes[datatype], comm->nRanks);
	op.steps = step_count(func, comm->nRanks);
	number_op(&op);
	return add_op(op);
}

NCCL_API(ncclResult_t, ncclAllReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
	 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff, (void)op;
	return enqueue(ncclFuncAllReduce, count, datatype, 0, comm, stream);
}

NCCL_API(ncclResult_t, ncclAllReduceConfig, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
	 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t *config)
{
	(void)sendbuff, (void)recvbuff, (void)op, (void)config;
	return enqueue(ncclFuncAllReduce, count, datatype, 0, comm, stream);
}

NCCL_API(ncclResult_t, ncclReduceScatter, const void *sendbuff, void *recvbuff, size_t recvcount,
	 ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff, (void)op;
	return enqueue(ncclFuncReduceScatter, recvcount, datatype, 0, comm, stream);
}

NCCL_API(ncclResult_t, ncclAllGather, const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
	 ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff;
	return enqueue(ncclFuncAllGather, sendcount, datatype, 0, comm, stream);
}

NCCL_API(ncclResult_t, ncclBroadcast, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
	 int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff;
	return enqueue(ncclFuncBroadcast, count, datatype, root, comm, stream);
}

/* Goes through the linkage table to the public name, as the real one does. */
NCCL_API(ncclResult_t, ncclBcast, void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
	 cudaStream_t stream)
{
	return ncclBroadcast(buff, buff, count, datatype, root, comm, stream);
}

NCCL_API(ncclResult_t, ncclReduce, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
	 ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff, (void)op;
	return enqueue(ncclFuncReduce, count, datatype, root, comm, stream);
}

NCCL_API(ncclResult_t, ncclAlltoAll, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
	 ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff;
	return enqueue(ncclFuncAlltoAll, count, datatype, 0, comm, stream);
}

NCCL_API(ncclResult_t, ncclGather, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
	 int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff;
	return enqueue(ncclFuncGather, count, datatype, root, comm, stream);
}

NCCL_API(ncclResult_t, ncclScatter, const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
	 int root, ncclComm_t comm, cudaStream_t stream)
{
	(void)sendbuff, (void)recvbuff;
	return enqueue(ncclFuncScatter, count, datatype, root, comm, stream);
}

NCCL_API(ncclResult_t, ncclSend, const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
	 cudaStream_t stream)
{
	(void)sendbuff;
	return enqueue(ncclFuncSend, count, datatype, peer, comm, stream);
}

NCCL_API(ncclResult_t, ncclRecv, void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
	 cudaStream_t stream)
{
	(void)recvbuff;
	return enqueue(ncclFuncRecv, count, datatype, peer, comm, stream);
}

NCCL_API(ncclResult_t, ncclGroupStart, void)
{
	group_depth++;
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclGroupEnd, void)
{
	if (!group_depth) {
		comm_set_error("ncclGroupEnd: not in a group call.");
		return ncclInvalidUsage;
	}
	return --group_depth ? ncclSuccess : launch_group();
}
