/* MIG in the emulated libnvidia-ml: a GPU with `mig` = n is split into n instances, numbered from 1. */
#include "device.h"

#include <stdio.h>
#include <string.h>

static struct mig_device {
	struct gpu *gpu;
	unsigned int instance;
} instances[GPUS_MAX][MIG_MAX];

unsigned int nvml_mig_instance(nvmlDevice_t device, struct gpu **gpu)
{
	struct mig_device *found = (struct mig_device *)device;

	if (found < instances[0] || found >= instances[GPUS_MAX])
		return 0;
	*gpu = found->gpu;
	return found->instance;
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_MIG_MODE, &gpu);

	if (ready || !count)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	*count = gpu->mig ? MIG_MAX : 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_MIG_MODE, &gpu);

	if (ready || !mig)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	if (index >= gpu->mig || index >= MIG_MAX)
		return NVML_ERROR_NOT_FOUND;
	struct mig_device *found = &instances[gpu - nvml_state()->gpu][index];
	*found = (struct mig_device){gpu, index + 1};
	*mig = (nvmlDevice_t)found;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
	struct gpu *gpu;

	*id = nvml_mig_instance(device, &gpu);
	return *id ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
	struct gpu *gpu;

	*id = 0;
	return nvml_mig_instance(device, &gpu) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}
