/* Inside the emulated NCCL: NVIDIA's names for the structures that are read from outside, and what moves them. */
#ifndef PEERWATCH_NCCL_COMM_H
#define PEERWATCH_NCCL_COMM_H

#include "fabric.h"
#include "nccl.h"

#include <stdbool.h>
#include <sys/types.h>

#define NCCL_MAGIC 0x0280028002800280ull
#ifndef MAXCHANNELS /* another number moves everything behind them to other offsets */
#define MAXCHANNELS 2
#endif
#define NCCL_STEPS 8

typedef enum {
	ncclFuncBroadcast,
	ncclFuncReduce,
	ncclFuncAllGather,
	ncclFuncReduceScatter,
	ncclFuncAllReduce,
	ncclFuncSendRecv,
	ncclFuncSend,
	ncclFuncRecv,
	ncclFuncAlltoAll,
	ncclFuncScatter,
	ncclFuncGather,
	ncclNumFuncs,
} ncclFunc_t;

enum ncclProxyOpState { ncclProxyOpNone, ncclProxyOpReady, ncclProxyOpProgress };

#define TRANSPORT_NET 2
#define NCCL_PROTO_SIMPLE 2

struct ncclRecvMem {
	uint64_t tail; /* steps that the GPU has made ready to be sent */
};

struct sendNetResources {
	struct ncclRecvMem *recvMem;
	int netDev;
};

struct recvNetResources {
	int netDev;
	int channelId;
};

struct ncclProxyConnection {
	int send, transport, shared;
	int tpLocalRank, sameProcess;
	void *transportResources;
	uint64_t step; /* in the real one behind transportResources: where the next operation begins */
};

struct ncclProxyOp {
	struct ncclProxyConnection *connection;
	ssize_t nbytes;
	uint64_t opCount;
	int root;
	int nsteps;
	int peer;
	uint8_t dtype;
	uint8_t coll;
	uint8_t pattern;
};

struct ncclProxySubArgs {
	struct ncclProxyConnection *connection;
	int channelId;
	int nsteps;
	ssize_t nbytes;
	int peer;
	uint64_t base;
	uint64_t posted;
	uint64_t received;
	uint64_t flushed;
	uint64_t transmitted;
	uint64_t done;
	uint64_t end;
};

struct ncclProxyArgs {
	struct ncclProxySubArgs subs[MAXCHANNELS];
	int nsubs;
	int done;
	uint64_t opCount;
	int sliceSteps;
	int chunkSteps;
	uint8_t dtype;
	uint8_t redOp;
	uint8_t pattern;
	uint8_t coll;
	uint8_t protocol;
	int state;
	int idle;
	struct ncclProxyArgs *next;
	struct ncclProxyArgs *nextPeer;
	struct ncclProxyArgs **proxyAppendPtr;
};

struct ncclProxyProgressState {
	unsigned long thread;
	int stop;
	struct ncclProxyArgs *active;
	struct ncclProxyArgs *pool;
	int nextOps;
};

struct ncclProxyState {
	int refCount;
	struct ncclComm *comm;
	int tpRank;
	int tpnRanks;
	int cudaDev;
	uint32_t *abortFlag;
	ncclResult_t asyncResult;
	struct ncclProxyProgressState progressState;
};

struct ncclComm {
	uint64_t startMagic;
	uint8_t channels[2048 * MAXCHANNELS]; /* keeps the fields below far from the start, as in the real structure */
	uint64_t magic;
	uint64_t commHash;
	int rank;
	int nRanks;
	int cudaDev;
	int nvmlDev;
	int compCap;
	int64_t busId;
	int node;
	int nNodes;
	int localRank;
	int localRanks;
	uint64_t opCount;
	uint64_t collOpCount;
	int nChannels;
	ncclResult_t asyncResult;
	uint32_t *abortFlag;
	uint32_t destroyFlag;
	uint32_t workFifoProduced;
	uint32_t workFifoConsumed;
	struct ncclProxyState *proxyState;

	/* ours from here on */
	struct fabric_group *group; /* NULL: alone */
	_Atomic int holders;	    /* the owner and every operation on its way */
	uint64_t enqueued;	    /* collectives handed to streams */
	uint64_t progressed;	    /* collectives that are through; proxy only */
	uint64_t sent;		    /* ring steps of those; proxy only */
	uint64_t host_calls;	    /* announcements on the host lane */
	uint64_t children;	    /* communicators shrunk from this one */
	uint64_t sends[FABRIC_RANKS], receives[FABRIC_RANKS];
	struct ncclProxyState proxy;
	struct ncclProxyConnection connections[2][FABRIC_RANKS]; /* from each rank, to each rank */
	struct ncclRecvMem ready[FABRIC_RANKS];			 /* to each rank */
	struct sendNetResources sending[FABRIC_RANKS];
	struct recvNetResources receiving[FABRIC_RANKS];
	uint32_t abortWord;
	uint64_t endMagic;
};

enum op_stage { OP_TURN, OP_MOVE, OP_FLUSH, OP_DONE };

struct nccl_op {
	struct ncclComm *comm;
	cudaStream_t stream;
	ncclFunc_t func;
	ncclDataType_t datatype;
	int peer;
	uint64_t index;	  /* among the communicator's collectives, or among the pair's sends */
	uint64_t opCount; /* of the communicator when it was enqueued */
	uint64_t turn;	  /* opCount for the proxy: lowest bit 1 for Send and Recv, of which a group's have the same */
	uint64_t signature; /* what all ranks must agree on */
	double bytes;	    /* this rank puts on the wire */
	int steps, moved;
	bool sending;
	double until; /* when the step on the wire is through */
	enum op_stage stage;
	struct ncclProxyArgs *send, *recv;
	struct nccl_batch *batch;
	struct nccl_op *next;  /* in the batch */
	struct nccl_op *after; /* in the proxy's list */
};

/* Operations of one group call on one stream: they progress together and complete together. */
struct nccl_batch {
	struct nccl_op *ops;
	int remaining;
	_Atomic bool launched; /* the GPU has come to it */
};

/* Answers ncclInvalidArgument for NULL and for memory that is no communicator. */
ncclResult_t comm_check(const struct ncclComm *comm);
void comm_hold(struct ncclComm *comm);
void comm_release(struct ncclComm *comm);
/*
 * Builds a communicator and waits for its ranks. Without `wait` (several of one thread) the first collective waits.
 * The key is the same on all ranks; comm_hash goes on from a hash (FNV-1a).
 */
ncclResult_t comm_create(ncclComm_t *out, uint64_t key, int nranks, int rank, bool wait);
uint64_t comm_hash(uint64_t hash, const void *bytes, size_t count);
bool comm_aborted(const struct ncclComm *comm);
void comm_set_error(const char *text);
const char *comm_last_error(void);

/* Hands a batch to the proxy thread, when the host enqueues it. */
void proxy_submit(struct nccl_batch *batch);
/* The kernel: lets a batch that was handed over begin, and waits until it is through or aborted; a cudaHostFn_t. */
void proxy_run_batch(void *batch);
void proxy_nudge(void);

/* Moves an operation as far as it goes now. Returns when to look again, in monotonic seconds; INFINITY: when woken. */
double op_advance(struct nccl_op *op, double now);
void op_activate(struct nccl_op *op);
void op_deactivate(struct nccl_op *op);

#endif
