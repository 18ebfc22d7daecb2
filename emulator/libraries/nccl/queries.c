/* The emulated libnccl.so.2, part 3: questions. */
#include "communicator.h"

NCCL_API(ncclResult_t, ncclGetVersion, int *version)
{
	if (!version)
		return ncclInvalidArgument;
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}

/* As in the real one, a peer that hangs or died over the network is no error: the operation stays pending. */
NCCL_API(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *asyncError)
{
	if (comm_check(comm) || !asyncError)
		return ncclInvalidArgument;
	*asyncError = comm->asyncResult;
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count)
{
	if (comm_check(comm) || !count)
		return ncclInvalidArgument;
	*count = comm->nRanks;
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank)
{
	if (comm_check(comm) || !rank)
		return ncclInvalidArgument;
	*rank = comm->rank;
	return ncclSuccess;
}

NCCL_API(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device)
{
	if (comm_check(comm) || !device)
		return ncclInvalidArgument;
	*device = comm->cudaDev;
	return ncclSuccess;
}

NCCL_API(const char *, ncclGetErrorString, ncclResult_t result)
{
	static const char *const texts[ncclNumResults] = {
	    "no error",	     "unhandled cuda error", "unhandled system error", "internal error",     "invalid argument",
	    "invalid usage", "remote process error", "operation in progress",  "operation timed out"};

	return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

NCCL_API(const char *, ncclGetLastError, ncclComm_t comm)
{
	(void)comm; /* the error is the calling thread's, as it is in the real one for lack of a better place */
	return comm_last_error();
}
