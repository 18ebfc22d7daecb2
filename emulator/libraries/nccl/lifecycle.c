/* The emulated libnccl.so.2, part 2: the calls that make and end communicators. */
#define _GNU_SOURCE
#include "communicator.h"

#include <sys/random.h>
#include <time.h>

/* All bytes of all ids: the leading ones are the same on a real machine. */
static uint64_t hash_id(const ncclUniqueId *ids, int count)
{
	return comm_hash(0xcbf29ce484222325ull, ids, sizeof(*ids) * (size_t)count);
}

static void sleep_briefly(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
}

NCCL_API(ncclResult_t, ncclGetUniqueId, ncclUniqueId *uniqueId)
{
	if (!uniqueId)
		return ncclInvalidArgument;
	if (getrandom(uniqueId, sizeof(*uniqueId), 0) != sizeof(*uniqueId))
		return ncclSystemError;
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommInitRank, ncclComm_t *newcomm, int nranks, ncclUniqueId commId, int rank)
{
	return comm_create(newcomm, hash_id(&commId, 1), nranks, rank, true);
}

NCCL_API(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *newcomm, int nranks, ncclUniqueId commId, int rank,
	 ncclConfig_t *config)
{
	(void)config;
	return comm_create(newcomm, hash_id(&commId, 1), nranks, rank, true);
}

NCCL_API(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *newcomm, int nranks, int myrank, int nId,
	 ncclUniqueId *commIds, ncclConfig_t *config)
{
	(void)config;
	if (!commIds || nId < 1)
		return ncclInvalidArgument;
	return comm_create(newcomm, hash_id(commIds, nId), nranks, myrank, true);
}

NCCL_API(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int ndev, const int *devlist)
{
	ncclResult_t result;
	ncclUniqueId id;

	(void)devlist;
	if (!comms || ndev < 1 || ndev > FABRIC_RANKS)
		return ncclInvalidArgument;
	result = pncclGetUniqueId(&id);
	for (int i = 0; i < ndev && !result; i++)
		result = comm_create(&comms[i], hash_id(&id, 1), ndev, i, false);
	return result;
}

/* Announces a value on the host lane and waits for everybody's; false when aborted. */
static bool exchange(struct ncclComm *comm, uint64_t value)
{
	uint64_t count = ++comm->host_calls;

	fabric_announce(comm->group, comm->rank, FABRIC_HOST, count, value);
	while (!comm_aborted(comm)) {
		uint32_t seen = fabric_word();

		if (fabric_announced(comm->group, FABRIC_HOST, count))
			return true;
		fabric_wait(seen, 1.0);
	}
	return false;
}

/* The new rank among those of the same colour, ordered by key, then by rank; their number in *size. */
static int split_rank(struct ncclComm *comm, int color, int key, int *size)
{
	int rank = 0;

	*size = 0;
	for (int i = 0; i < comm->nRanks; i++) {
		uint64_t value = fabric_value(comm->group, i, FABRIC_HOST, comm->host_calls);
		int its_key = (int)(uint32_t)value;

		if ((int)(uint32_t)(value >> 32) != color)
			continue;
		++*size;
		rank += its_key < key || (its_key == key && i < comm->rank);
	}
	return rank;
}

NCCL_API(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	int rank = 0, size = 1;
	uint64_t hash;

	(void)config;
	if (comm_check(comm) || !newcomm || (color < 0 && color != NCCL_SPLIT_NOCOLOR))
		return ncclInvalidArgument;
	*newcomm = NULL;
	if (comm->group && !exchange(comm, (uint64_t)(uint32_t)color << 32 | (uint32_t)key))
		return ncclInternalError;
	if (!comm->group)
		comm->host_calls++;
	if (color == NCCL_SPLIT_NOCOLOR)
		return ncclSuccess;
	if (comm->group)
		rank = split_rank(comm, color, key, &size);
	hash = comm_hash(comm->commHash, &comm->host_calls, sizeof(comm->host_calls));
	return comm_create(newcomm, comm_hash(hash, &color, sizeof(color)), size, rank, true);
}

static void wait_for_operations(struct ncclComm *comm)
{
	while (atomic_load(&comm->holders) > 1)
		sleep_briefly();
}

static void raise_abort(struct ncclComm *comm, uint32_t flag)
{
	__atomic_store_n(&comm->abortWord, flag, __ATOMIC_RELEASE);
	if (comm->group)
		proxy_nudge();
}

NCCL_API(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
	 ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags)
{
	size_t bytes = sizeof(int) * (size_t)(excludeRanksCount > 0 ? excludeRanksCount : 0);
	int rank;
	uint64_t hash;

	(void)config;
	if (comm_check(comm) || !newcomm || !excludeRanksList || excludeRanksCount < 1)
		return ncclInvalidArgument;
	if (shrinkFlags & NCCL_SHRINK_ABORT) {
		raise_abort(comm, 1);
		wait_for_operations(comm);
		raise_abort(comm, 0);
	}
	rank = comm->rank;
	for (int i = 0; i < excludeRanksCount; i++) {
		if (excludeRanksList[i] == comm->rank)
			return ncclInvalidArgument;
		rank -= excludeRanksList[i] < comm->rank;
	}
	hash = comm_hash(comm->commHash ^ ++comm->children, excludeRanksList, bytes);
	return comm_create(newcomm, hash, comm->nRanks - excludeRanksCount, rank, true);
}

NCCL_API(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	if (comm_check(comm))
		return ncclInvalidArgument;
	wait_for_operations(comm);
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	if (comm_check(comm))
		return ncclInvalidArgument;
	comm->destroyFlag = 1;
	wait_for_operations(comm);
	comm_release(comm);
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
	if (!comm)
		return ncclSuccess;
	if (comm_check(comm))
		return ncclInvalidArgument;
	raise_abort(comm, 1);
	wait_for_operations(comm);
	comm_release(comm);
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int revokeFlags)
{
	(void)revokeFlags;
	if (comm_check(comm))
		return ncclInvalidArgument;
	raise_abort(comm, 1);
	return ncclSuccess;
}
