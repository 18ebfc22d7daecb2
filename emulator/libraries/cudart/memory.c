/* Memory of the emulated libcudart: the machine's own, copied in the order of the stream. */
#include "cudart.h"

#include "fabric.h"
#include "stream.h"

#include <stdlib.h>
#include <string.h>

#define ROAD 1e8 /* bytes per second from host to device: narrow, as the memory here is small */

struct copy {
	void *to;
	const void *from;
	size_t bytes;
	bool inward;
};

static void run_copy(void *argument)
{
	struct copy *copy = argument;

	struct fabric_rank *control = fabric_control();

	if (copy->inward)
		stream_spend((double)copy->bytes / ROAD * (control ? control->copy_scale : 1.0));
	memmove(copy->to, copy->from, copy->bytes);
	free(copy);
}

static void run_free(void *argument)
{
	free(argument);
}

static cudaError_t enqueue_copy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind, cudaStream_t stream)
{
	struct copy *copy;

	if (!count)
		return cudaSuccess;
	if (!dst || !src)
		return cudaErrorInvalidValue;
	if (!(copy = malloc(sizeof(*copy))))
		return cudaErrorMemoryAllocation;
	*copy = (struct copy){dst, src, count, kind == cudaMemcpyHostToDevice};
	return stream_push_block(stream_pick(stream), run_copy, copy, sizeof(*copy), false) ? cudaSuccess
											    : cudaErrorMemoryAllocation;
}

CUDA_API cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind,
				     cudaStream_t stream)
{
	return enqueue_copy(dst, src, count, kind, stream);
}

CUDA_API cudaError_t cudaMemcpy(void *dst, const void *src, size_t count, enum cudaMemcpyKind kind)
{
	cudaError_t error = enqueue_copy(dst, src, count, kind, NULL);

	if (!error)
		stream_synchronize(NULL);
	return error;
}

static cudaError_t allocate(void **pointer, size_t bytes)
{
	if (!pointer)
		return cudaErrorInvalidValue;
	*pointer = bytes ? malloc(bytes) : NULL;
	return bytes && !*pointer ? cudaErrorMemoryAllocation : cudaSuccess;
}

CUDA_API cudaError_t cudaMalloc(void **devPtr, size_t size)
{
	return allocate(devPtr, size);
}

CUDA_API cudaError_t cudaMallocAsync(void **devPtr, size_t size, cudaStream_t stream)
{
	(void)stream;
	return allocate(devPtr, size);
}

CUDA_API cudaError_t cudaFree(void *devPtr)
{
	stream_wait_all(); /* as the real one, which waits for the device */
	free(devPtr);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaFreeAsync(void *devPtr, cudaStream_t stream)
{
	return stream_push(stream_pick(stream), run_free, devPtr) ? cudaSuccess : cudaErrorMemoryAllocation;
}
