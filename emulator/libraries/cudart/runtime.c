/* The emulated libcudart.so.12: calls return at once, streams do the work, synchronising really waits.
 *
 * A kernel's first argument points to a double, its duration in seconds.
 */
#define _GNU_SOURCE
#include "cudart.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "fabric.h"
#include "stream.h"

#define MOST_DEVICES 16

static __thread int device;

/* A program that uses GPUs has their device nodes open: the driver opens all that it may when it is started. */
__attribute__((constructor)) static void open_devices(void)
{
	const char *folder = getenv("EMULATED_DEVICES");
	char path[4096];

	for (int i = 0; folder && i < MOST_DEVICES; i++) {
		snprintf(path, sizeof(path), "%s/nvidia%d", folder, i);
		if (open(path, O_RDONLY | O_CLOEXEC) < 0)
			return;
	}
}

static int device_count(void)
{
	struct fabric *fabric = fabric_open();

	return fabric ? (int)fabric->head.gpus : 0;
}

CUDA_API cudaError_t cudaGetDeviceCount(int *count)
{
	if (!count)
		return cudaErrorInvalidValue;
	*count = device_count();
	return *count ? cudaSuccess : cudaErrorInitializationError;
}

CUDA_API cudaError_t cudaSetDevice(int ordinal)
{
	if (ordinal < 0 || ordinal >= device_count())
		return cudaErrorInvalidDevice;
	device = ordinal;
	return cudaSuccess;
}

CUDA_API cudaError_t cudaGetDevice(int *ordinal)
{
	if (!ordinal)
		return cudaErrorInvalidValue;
	*ordinal = device;
	return cudaSuccess;
}

CUDA_API int peerwatch_device(void)
{
	return device;
}

CUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
	(void)flags;
	if (!stream)
		return cudaErrorInvalidValue;
	*stream = stream_create();
	return *stream ? cudaSuccess : cudaErrorMemoryAllocation;
}

CUDA_API cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
	if (!stream)
		return cudaErrorInvalidValue;
	*stream = stream_create();
	return *stream ? cudaSuccess : cudaErrorMemoryAllocation;
}

CUDA_API cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	if ((size_t)stream <= 2)
		return cudaErrorInvalidResourceHandle;
	stream_destroy(stream);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	stream_synchronize(stream);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream)
{
	stream_synchronize(stream);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaDeviceSynchronize(void)
{
	stream_wait_all();
	return cudaSuccess;
}

CUDA_API cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	stream = stream_pick(stream);
	return stream_reached(stream, stream_pushed(stream)) ? cudaSuccess : cudaErrorNotReady;
}

static cudaError_t launch(const double *seconds, cudaStream_t stream)
{
	if (!seconds)
		return cudaErrorInvalidValue;
	return stream_push_kernel(stream_pick(stream), *seconds) ? cudaSuccess : cudaErrorMemoryAllocation;
}

CUDA_API cudaError_t cudaLaunchKernel(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
				      cudaStream_t stream)
{
	(void)func, (void)gridDim, (void)blockDim, (void)sharedMem;
	return launch(args ? args[0] : NULL, stream);
}

CUDA_API cudaError_t cudaLaunchKernel_ptsz(const void *func, dim3 gridDim, dim3 blockDim, void **args, size_t sharedMem,
					   cudaStream_t stream)
{
	(void)func, (void)gridDim, (void)blockDim, (void)sharedMem;
	return launch(args ? args[0] : NULL, stream);
}

CUDA_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *func, void **args)
{
	(void)func;
	return launch(config && args ? args[0] : NULL, config ? config->stream : NULL);
}

CUDA_API cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *userData)
{
	if (!fn)
		return cudaErrorInvalidValue;
	return stream_push(stream_pick(stream), fn, userData) ? cudaSuccess : cudaErrorMemoryAllocation;
}

CUDA_API cudaError_t peerwatch_enqueue(cudaStream_t stream, cudaHostFn_t fn, void *argument)
{
	if (stream_captured(NULL)) /* the emulated libnccl is not played in graphs */
		return cudaErrorInvalidValue;
	return stream_push_nccl(stream_pick(stream), fn, argument) ? cudaSuccess : cudaErrorMemoryAllocation;
}

CUDA_API const char *cudaGetErrorString(cudaError_t error)
{
	switch (error) {
	case cudaSuccess:
		return "no error";
	case cudaErrorInvalidValue:
		return "invalid argument";
	case cudaErrorMemoryAllocation:
		return "out of memory";
	case cudaErrorInitializationError:
		return "initialization error";
	case cudaErrorInvalidDevice:
		return "invalid device ordinal";
	case cudaErrorInvalidResourceHandle:
		return "invalid resource handle";
	case cudaErrorNotReady:
		return "device not ready";
	}
	return "unrecognized error code";
}
