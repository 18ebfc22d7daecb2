/* What the emulated libcudart.so.12 offers, with the prototypes of NVIDIA's cuda_runtime_api.h (CUDA 12). */
#ifndef PEERWATCH_CUDART_H
#define PEERWATCH_CUDART_H

#include <stddef.h>

typedef enum cudaError {
	cudaSuccess = 0,
	cudaErrorInvalidValue = 1,
	cudaErrorMemoryAllocation = 2,
	cudaErrorInitializationError = 3,
	cudaErrorInvalidDevice = 101,
	cudaErrorInvalidResourceHandle = 400,
	cudaErrorNotReady = 600,
} cudaError_t;

enum cudaMemcpyKind {
	cudaMemcpyHostToHost,
	cudaMemcpyHostToDevice,
	cudaMemcpyDeviceToHost,
	cudaMemcpyDeviceToDevice,
	cudaMemcpyDefault,
};

typedef struct dim3 {
	unsigned int x, y, z;
} dim3;

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;
typedef void (*cudaHostFn_t)(void *userData);

typedef struct cudaLaunchConfig_st {
	dim3 gridDim, blockDim;
	size_t dynamicSmemBytes;
	cudaStream_t stream;
	void *attrs;
	unsigned int numAttrs;
} cudaLaunchConfig_t;

#define CUDA_API __attribute__((visibility("default")))

/* Not NVIDIA's: what the emulated NCCL needs of the runtime, past the probed calls, as the real one's own static
 * runtime is. */
CUDA_API int peerwatch_device(void);
CUDA_API cudaError_t peerwatch_enqueue(cudaStream_t stream, cudaHostFn_t fn, void *argument);

#endif
