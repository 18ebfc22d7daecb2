/* The driver's functions that NVIDIA's libnccl asks its runtime for. */
#include "private.h"

#include <stddef.h>
#include <string.h>

struct launch_config { /* CUlaunchConfig */
	unsigned int grid[3], block[3], shared;
	cudaStream_t stream;
};

static int succeed(void)
{
	return cudaSuccess;
}

static int error_text(int error, const char **text)
{
	(void)error;
	*text = "not supported by the emulated driver";
	return cudaSuccess;
}

static int get_device(int *device, int ordinal)
{
	*device = ordinal;
	return cudaSuccess;
}

static int current_device(int *device)
{
	*device = peerwatch_device();
	return cudaSuccess;
}

static int device_attribute(int *value, int attribute, int device)
{
	int (*ask)(int *, int, int) = (int (*)(int *, int, int))find_runtime_function("cudaDeviceGetAttribute");

	return ask(value, attribute, device);
}

static int device_uuid(char *out, int device)
{
	memset(out, 0x5e, 16);
	out[15] = (char)device;
	return cudaSuccess;
}

static int any_handle(void **out)
{
	*out = (void *)1;
	return cudaSuccess;
}

static int address_range(void **base, size_t *bytes, void *pointer)
{
	*base = pointer;
	*bytes = 1 << 20;
	return cudaSuccess;
}

static int pointer_attribute(int *out)
{
	*out = 0;
	return cudaSuccess;
}

/* `extra` names a buffer with all arguments and its size, as CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE say. */
static int launch_config(const struct launch_config *config, const void *kernel, void **parameters, void **extra)
{
	if (!kernel_name(kernel))
		return cudaSuccess;
	if (extra)
		return launch_nccl_kernel(config->stream, config->grid[0], extra[1], *(size_t *)extra[3]);
	return launch_old_nccl_kernel(config->stream, *(void **)parameters[0], *(uint64_t *)parameters[1],
				      *(void **)parameters[2]);
}

static int launch_kernel(const void *kernel, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			 unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared,
			 cudaStream_t stream, void **parameters, void **extra)
{
	struct launch_config config = {
	    {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, .shared = shared, .stream = stream};

	return launch_config(&config, kernel, parameters, extra);
}

#define PLAY(name, function)                                                                                           \
	{                                                                                                              \
#name, (void *)(uintptr_t)(function)                                                                   \
	}

void *find_driver_function(const char *name)
{
	static const struct replacement played[] = {
	    PLAY(cuCtxCreate, any_handle),
	    PLAY(cuCtxDestroy, succeed),
	    PLAY(cuCtxGetCurrent, any_handle),
	    PLAY(cuCtxGetDevice, current_device),
	    PLAY(cuCtxSetCurrent, succeed),
	    PLAY(cuDeviceGet, get_device),
	    PLAY(cuDeviceGetAttribute, device_attribute),
	    PLAY(cuDeviceGetUuid, device_uuid),
	    PLAY(cuDeviceGetUuid_v2, device_uuid),
	    PLAY(cuGetErrorName, error_text),
	    PLAY(cuGetErrorString, error_text),
	    PLAY(cuLaunchKernel, launch_kernel),
	    PLAY(cuLaunchKernelEx, launch_config),
	    PLAY(cuMemGetAddressRange, address_range),
	    PLAY(cuPointerGetAttribute, pointer_attribute),
	};

	for (size_t i = 0; i < sizeof(played) / sizeof(*played); i++)
		if (!strcmp(played[i].name, name))
			return played[i].function;
	return NULL;
}
