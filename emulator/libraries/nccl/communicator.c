/* A communicator as a structure: made, held, checked, freed. */
#define _GNU_SOURCE
#include "communicator.h"

#include <stdlib.h>
#include <string.h>

static __thread char last_error[128];

void comm_set_error(const char *text)
{
	strncpy(last_error, text, sizeof(last_error) - 1);
}

const char *comm_last_error(void)
{
	return last_error;
}

ncclResult_t comm_check(const struct ncclComm *comm)
{
	if (!comm || comm->startMagic != NCCL_MAGIC || comm->endMagic != NCCL_MAGIC)
		return ncclInvalidArgument;
	return ncclSuccess;
}

void comm_hold(struct ncclComm *comm)
{
	atomic_fetch_add(&comm->holders, 1);
}

void comm_release(struct ncclComm *comm)
{
	struct ncclProxyArgs *args;

	if (atomic_fetch_sub(&comm->holders, 1) != 1)
		return;
	while ((args = comm->proxy.progressState.pool)) {
		comm->proxy.progressState.pool = args->next;
		free(args);
	}
	comm->startMagic = comm->endMagic = 0;
	free(comm);
}

bool comm_aborted(const struct ncclComm *comm)
{
	return __atomic_load_n(&comm->abortWord, __ATOMIC_ACQUIRE);
}

/* FNV-1a */
uint64_t comm_hash(uint64_t hash, const void *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++)
		hash = (hash ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3ull;
	return hash ? hash : 1;
}

/* Where the ranks sit: the fabric numbers them machine by machine. */
static void place(struct ncclComm *comm)
{
	int gpus = (int)fabric_open()->head.gpus, last = -1;

	comm->node = (int)fabric_self() / gpus;
	for (int i = 0; i < comm->nRanks; i++) {
		uint32_t owner = comm->group ? atomic_load(&comm->group->members[i].owner) : fabric_self() + 1;
		int node = owner ? (int)(owner - 1) / gpus : -1;

		comm->nNodes += node != last;
		comm->localRanks += node == comm->node;
		comm->localRank += node == comm->node && i < comm->rank;
		last = node;
	}
}

static struct ncclComm *new_comm(uint64_t key, int nranks, int rank)
{
	struct ncclComm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->magic = NCCL_MAGIC;
	comm->commHash = key;
	comm->rank = rank;
	comm->nRanks = nranks;
	comm->cudaDev = peerwatch_device();
	comm->nvmlDev = comm->cudaDev;
	comm->compCap = 90;
	comm->busId = 0x1000 * (int64_t)(comm->nvmlDev + 1);
	comm->nChannels = 1;
	comm->holders = 1;
	comm->abortFlag = &comm->abortWord;
	comm->proxyState = &comm->proxy;
	comm->proxy.refCount = 1;
	comm->proxy.comm = comm;
	comm->proxy.tpRank = rank;
	comm->proxy.tpnRanks = nranks;
	comm->proxy.cudaDev = comm->cudaDev;
	comm->proxy.abortFlag = comm->abortFlag;
	return comm;
}

ncclResult_t comm_create(ncclComm_t *out, uint64_t key, int nranks, int rank, bool wait)
{
	struct fabric_group *group = NULL;
	struct ncclComm *comm;

	if (!out || nranks < 1 || nranks > FABRIC_RANKS || rank < 0 || rank >= nranks) {
		comm_set_error("invalid number of ranks or invalid rank");
		return ncclInvalidArgument;
	}
	if (!fabric_open())
		return ncclSystemError;
	if (nranks > 1 && !(group = fabric_join(key, nranks, rank))) {
		comm_set_error("this rank of the communicator is taken, or its size differs");
		return ncclInvalidUsage;
	}
	if (!(comm = new_comm(key, nranks, rank)))
		return ncclSystemError;
	comm->group = group;
	while (group && wait && !fabric_joined(group)) {
		uint32_t seen = fabric_word();

		if (!fabric_joined(group))
			fabric_wait(seen, 1.0);
	}
	place(comm);
	comm->startMagic = comm->endMagic = NCCL_MAGIC;
	*out = comm;
	return ncclSuccess;
}
