/*
 * The CUDA runtime that NVIDIA's libnccl carries in itself, as far as NCCL calls it. It works on the same streams,
 * events and memory as the emulated libcudart, but past that library's public functions: probes on those count a
 * program's calls, and NCCL's own are none of them.
 */
#define _GNU_SOURCE
#include "private.h"

#include "graph.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096ul
#define BIG (1ul << 20)

CUDA_API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
CUDA_API cudaError_t cudaStreamDestroy(cudaStream_t stream);
CUDA_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags);
CUDA_API cudaError_t cudaEventCreate(cudaEvent_t *event);
CUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
CUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
CUDA_API cudaError_t cudaEventDestroy(cudaEvent_t event);
CUDA_API cudaError_t cudaEventQuery(cudaEvent_t event);
CUDA_API cudaError_t cudaGetDevice(int *ordinal);
CUDA_API cudaError_t cudaGetDeviceCount(int *count);
CUDA_API cudaError_t cudaSetDevice(int ordinal);
CUDA_API const char *cudaGetErrorString(cudaError_t error);

static int succeed(void)
{
	return cudaSuccess;
}

static int refuse(void)
{
	return NOT_SUPPORTED;
}

static int allocate(void **pointer, size_t bytes)
{
	if (posix_memalign(pointer, PAGE, bytes ? bytes : 1))
		return cudaErrorMemoryAllocation;
	return cudaSuccess;
}

static int release(void *pointer)
{
	free(pointer);
	return cudaSuccess;
}

static int copy_now(void *to, const void *from, size_t bytes)
{
	memmove(to, from, bytes);
	return cudaSuccess;
}

/* NCCL clears buffers of many megabytes, of which the wire uses a few kilobytes: whole pages are given back instead. */
void *clear_memory(void *to, int value, size_t bytes)
{
	uintptr_t first = ((uintptr_t)to + PAGE - 1) & ~(PAGE - 1), last = ((uintptr_t)to + bytes) & ~(PAGE - 1);

	/* MADV_FREE refuses shared memory: other processes still use it */
	if (value || bytes < BIG || madvise((void *)first, last - first, MADV_FREE) ||
	    madvise((void *)first, last - first, MADV_DONTNEED))
		return memset(to, value, bytes);
	memset(to, 0, first - (uintptr_t)to);
	memset((void *)last, 0, (uintptr_t)to + bytes - last);
	return to;
}

static int set_now(void *to, int value, size_t bytes)
{
	clear_memory(to, value, bytes);
	return cudaSuccess;
}

static int same_pointer(void **device, void *host)
{
	*device = host;
	return cudaSuccess;
}

struct pointer_attributes { /* cudaPointerAttributes */
	int type, device;
	void *device_pointer, *host_pointer;
};

static int describe_pointer(struct pointer_attributes *out, void *pointer)
{
	*out = (struct pointer_attributes){.type = 2 /* cudaMemoryTypeDevice */, .device_pointer = pointer};
	return cudaSuccess;
}

static int synchronize_stream(cudaStream_t stream)
{
	stream_synchronize(stream);
	return cudaSuccess;
}

static int synchronize_device(void)
{
	stream_wait_all();
	return cudaSuccess;
}

static int query_stream(cudaStream_t stream)
{
	stream = stream_pick(stream);
	return stream_reached(stream, stream_pushed(stream)) ? cudaSuccess : cudaErrorNotReady;
}

static int stream_identity(cudaStream_t stream, unsigned long long *out)
{
	*out = (uintptr_t)stream_pick(stream);
	return cudaSuccess;
}

static int is_capturing(cudaStream_t stream, int *status)
{
	*status = stream_captured(stream_pick(stream)) ? 1 /* cudaStreamCaptureStatusActive */ : 0;
	return cudaSuccess;
}

/* What a captured stream waits for is left out: graphs run in the order in which they were captured. */
static int capture_info(cudaStream_t stream, int *status, unsigned long long *id, void **graph, void **dependencies,
			size_t *count)
{
	unsigned long long number;
	void *found = graph_captured(stream, &number);

	if (id)
		*id = number;
	if (graph)
		*graph = found;
	if (dependencies)
		*dependencies = NULL;
	if (count)
		*count = 0;
	return is_capturing(stream, status);
}

/* cudaStreamGetCaptureInfo_v3, and without a suffix from CUDA 13 on. */
static int capture_info_with_edges(cudaStream_t stream, int *status, unsigned long long *id, void **graph,
				   void **dependencies, void **edges, size_t *count)
{
	if (edges)
		*edges = NULL;
	return capture_info(stream, status, id, graph, dependencies, count);
}

static int any_node(void **node)
{
	*node = (void *)1;
	return cudaSuccess;
}

struct host_node { /* cudaHostNodeParams */
	cudaHostFn_t function;
	void *argument;
};

static int add_host_node(void **node, void *graph, const void *dependencies, size_t count, const struct host_node *host)
{
	(void)graph, (void)dependencies, (void)count;
	any_node(node);
	return stream_push_first(stream_pick(NULL), host->function, host->argument) ? cudaSuccess
										    : cudaErrorMemoryAllocation;
}

static int launch_host(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
	return stream_push_first(stream_pick(stream), function, argument) ? cudaSuccess : cudaErrorMemoryAllocation;
}

static int create_object(void **object, void *argument, cudaHostFn_t destroy)
{
	*object = graph_object(destroy, argument);
	return *object ? cudaSuccess : cudaErrorMemoryAllocation;
}

static int retain_object(void *graph, void *object)
{
	return graph_retain(graph, object) ? cudaSuccess : cudaErrorInvalidValue;
}

static int driver_version(int *version)
{
	*version = nccl_library.cuda_version + (nccl_library.cuda_version == 12000 ? 40 : 0);
	return cudaSuccess;
}

/* cudaDeviceAttr by number: what NCCL asks of an H100. */
static int device_attribute(int *value, int attribute)
{
	static const int known[][2] = {
	    {1, 1024},	   /* threads of a block */
	    {8, 49152},	   /* shared memory of a block */
	    {10, 32},	   /* threads of a warp */
	    {13, 1980000}, /* clock, kHz */
	    {16, 132},	   /* multiprocessors */
	    {39, 2048},	   /* threads of a multiprocessor */
	    {41, 1},	   /* one address space */
	    {75, 9},	   /* compute capability 9.0 */
	    {81, 233472},  /* shared memory of a multiprocessor */
	    {97, 232448},  /* shared memory of a block at the most */
	};

	*value = 0;
	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (known[i][0] == attribute)
			*value = known[i][1];
	return cudaSuccess;
}

static int bus_id(char *out, int length, int device)
{
	snprintf(out, (size_t)length, "0000:%02X:00.0", 0x1B + 0x11 * device); /* as nvml_state.py numbers them */
	return cudaSuccess;
}

static int by_bus_id(int *device, const char *text)
{
	unsigned int domain, bus;

	if (sscanf(text, "%x:%x", &domain, &bus) != 2 || bus < 0x1B)
		return cudaErrorInvalidDevice;
	*device = (int)(bus - 0x1B) / 0x11;
	return cudaSuccess;
}

static int device_properties(char *out)
{
	memset(out, 0, 1008); /* sizeof(cudaDeviceProp) of CUDA 12, the smaller one */
	strcpy(out, "Emulated H100");
	return cudaSuccess;
}

static int function_attributes(char *out)
{
	memset(out, 0, 56); /* the beginning of cudaFuncAttributes: sizes that are added up */
	return cudaSuccess;
}

static int no_access(int *out)
{
	*out = 0;
	return cudaSuccess;
}

static int any_handle(void **out)
{
	*out = (void *)1;
	return cudaSuccess;
}

static int find_entry(const char *name, void **function, unsigned long long flags, int *result)
{
	(void)flags;
	*function = find_driver_function(name);
	if (result && nccl_library.cuda_version >= 12000)
		*result = *function ? 0 : 1; /* cudaDriverEntryPointSymbolNotFound */
	return cudaSuccess;
}

static int find_entry_by_version(const char *name, void **function, unsigned int version, unsigned long long flags,
				 int *result)
{
	(void)version;
	return find_entry(name, function, flags, result);
}

/* A kernel with unknown arguments, such as the one of a communicator of one rank, is over at once. */
static int launch(const void *kernel, cudaStream_t stream, void **arguments)
{
	if (!kernel_name(kernel))
		return cudaSuccess;
	return launch_old_nccl_kernel(stream, *(void **)arguments[0], *(uint64_t *)arguments[1],
				      *(void **)arguments[2]);
}

static int launch_kernel(const void *kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
			 cudaStream_t stream)
{
	(void)grid, (void)block, (void)shared;
	return launch(kernel, stream, arguments);
}

static int launch_kernel_config(const cudaLaunchConfig_t *config, const void *kernel, void **arguments)
{
	return launch(kernel, config->stream, arguments);
}

#define PLAY(name, function)                                                                                           \
	{                                                                                                              \
#name, (void *)(uintptr_t)(function)                                                                   \
	}

void *find_runtime_function(const char *name)
{
	static const struct replacement played[] = {
	    PLAY(cudaDeviceCanAccessPeer, no_access),
	    PLAY(cudaDeviceDisablePeerAccess, succeed),
	    PLAY(cudaDeviceEnablePeerAccess, refuse),
	    PLAY(cudaDeviceGetAttribute, device_attribute),
	    PLAY(cudaDeviceGetByPCIBusId, by_bus_id),
	    PLAY(cudaDeviceGetPCIBusId, bus_id),
	    PLAY(cudaDeviceGetStreamPriorityRange, refuse),
	    PLAY(cudaDeviceSetLimit, succeed),
	    PLAY(cudaDeviceSynchronize, synchronize_device),
	    PLAY(cudaDriverGetVersion, driver_version),
	    PLAY(cudaEventCreate, cudaEventCreate),
	    PLAY(cudaEventCreateWithFlags, cudaEventCreateWithFlags),
	    PLAY(cudaEventDestroy, cudaEventDestroy),
	    PLAY(cudaEventQuery, cudaEventQuery),
	    PLAY(cudaEventRecord, cudaEventRecord),
	    PLAY(cudaEventSynchronize, event_synchronize),
	    PLAY(cudaFree, release),
	    PLAY(cudaFreeAsync, release),
	    PLAY(cudaFreeHost, release),
	    PLAY(cudaFuncGetAttributes, function_attributes),
	    PLAY(cudaFuncSetAttribute, succeed),
	    PLAY(cudaGetDevice, cudaGetDevice),
	    PLAY(cudaGetDeviceCount, cudaGetDeviceCount),
	    PLAY(cudaGetDeviceProperties, device_properties),
	    PLAY(cudaGetDeviceProperties_v2, device_properties),
	    PLAY(cudaGetDriverEntryPoint, find_entry),
	    PLAY(cudaGetDriverEntryPointByVersion, find_entry_by_version),
	    PLAY(cudaGetErrorString, cudaGetErrorString),
	    PLAY(cudaGetFuncBySymbol, same_pointer),
	    PLAY(cudaGetLastError, succeed),
	    PLAY(cudaGraphAddDependencies, succeed),
	    PLAY(cudaGraphAddDependencies_v2, succeed),
	    PLAY(cudaGraphAddEmptyNode, any_node),
	    PLAY(cudaGraphAddEventRecordNode, any_node),
	    PLAY(cudaGraphAddEventWaitNode, any_node),
	    PLAY(cudaGraphAddHostNode, add_host_node),
	    PLAY(cudaGraphKernelNodeSetAttribute, succeed),
	    PLAY(cudaGraphRetainUserObject, retain_object),
	    PLAY(cudaHostAlloc, allocate),
	    PLAY(cudaHostGetDevicePointer, same_pointer),
	    PLAY(cudaHostRegister, succeed),
	    PLAY(cudaHostUnregister, succeed),
	    PLAY(cudaIpcCloseMemHandle, refuse),
	    PLAY(cudaIpcGetMemHandle, refuse),
	    PLAY(cudaIpcOpenMemHandle, refuse),
	    PLAY(cudaLaunchHostFunc, launch_host),
	    PLAY(cudaLaunchKernel, launch_kernel),
	    PLAY(cudaLaunchKernelExC, launch_kernel_config),
	    PLAY(cudaMalloc, allocate),
	    PLAY(cudaMallocAsync, allocate),
	    PLAY(cudaMallocFromPoolAsync, allocate),
	    PLAY(cudaMemPoolCreate, any_handle),
	    PLAY(cudaMemPoolDestroy, succeed),
	    PLAY(cudaMemPoolSetAttribute, succeed),
	    PLAY(cudaMemcpy, copy_now),
	    PLAY(cudaMemcpyAsync, copy_now),
	    PLAY(cudaMemset, set_now),
	    PLAY(cudaMemsetAsync, set_now),
	    PLAY(cudaPeekAtLastError, succeed),
	    PLAY(cudaPointerGetAttributes, describe_pointer),
	    PLAY(cudaRuntimeGetVersion, driver_version),
	    PLAY(cudaSetDevice, cudaSetDevice),
	    PLAY(cudaStreamCreateWithFlags, cudaStreamCreateWithFlags),
	    PLAY(cudaStreamDestroy, cudaStreamDestroy),
	    PLAY(cudaStreamGetCaptureInfo_v2, capture_info),
	    PLAY(cudaStreamGetCaptureInfo_v3, capture_info_with_edges),
	    PLAY(cudaStreamGetCaptureInfo, capture_info_with_edges),
	    PLAY(cudaStreamGetId, stream_identity),
	    PLAY(cudaStreamIsCapturing, is_capturing),
	    PLAY(cudaStreamQuery, query_stream),
	    PLAY(cudaStreamSynchronize, synchronize_stream),
	    PLAY(cudaStreamUpdateCaptureDependencies, succeed),
	    PLAY(cudaStreamUpdateCaptureDependencies_v2, succeed),
	    PLAY(cudaStreamWaitEvent, cudaStreamWaitEvent),
	    PLAY(cudaThreadExchangeStreamCaptureMode, succeed),
	    PLAY(cudaUserObjectCreate, create_object),
	};

	for (size_t i = 0; i < sizeof(played) / sizeof(*played); i++)
		if (!strcmp(played[i].name, name))
			return played[i].function;
	return NULL;
}
