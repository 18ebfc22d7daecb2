/* Types of NVIDIA's nccl.h (2.31), as far as the emulated libnccl.so.2 needs them. */
#ifndef PEERWATCH_NCCL_H
#define PEERWATCH_NCCL_H

#include "cudart.h"

#include <stdint.h>

#define NCCL_VERSION_CODE 23102
#define NCCL_UNIQUE_ID_BYTES 128
#define NCCL_SPLIT_NOCOLOR -1
#define NCCL_SHRINK_ABORT 0x01

typedef struct ncclComm *ncclComm_t;
typedef struct {
	char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
	ncclSuccess,
	ncclUnhandledCudaError,
	ncclSystemError,
	ncclInternalError,
	ncclInvalidArgument,
	ncclInvalidUsage,
	ncclRemoteError,
	ncclInProgress,
	ncclTimeout,
	ncclNumResults,
} ncclResult_t;

typedef enum {
	ncclInt8,
	ncclUint8,
	ncclInt32,
	ncclUint32,
	ncclInt64,
	ncclUint64,
	ncclFloat16,
	ncclFloat32,
	ncclFloat64,
	ncclBfloat16,
	ncclFloat8e4m3,
	ncclFloat8e5m2,
	ncclNumTypes,
} ncclDataType_t;

typedef enum { ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg, ncclNumOps } ncclRedOp_t;

/* Ignored: the emulation has one way of doing things. Callers pass NVIDIA's or NULL. */
typedef struct ncclConfig_v23100 ncclConfig_t;
typedef struct ncclCollConfig_v23100 ncclCollConfig_t;

/* Each public name is a weak alias of its profiling name, at the same address, as in NVIDIA's builds. */
#define NCCL_API(type, name, ...)                                                                                      \
	__attribute__((visibility("default"))) type p##name(__VA_ARGS__);                                              \
	__attribute__((visibility("default"), weak, alias("p" #name))) type name(__VA_ARGS__);                         \
	type p##name(__VA_ARGS__)

#endif
