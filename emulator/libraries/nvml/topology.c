/* Calls of the emulated libnvidia-ml that NCCL makes to find out how GPUs are connected: by PCI Express alone. */
#include "device.h"

#include <stdlib.h>

enum { P2P_STATUS_NOT_SUPPORTED = 5 };

NVML_API nvmlReturn_t nvmlInit_v2(void);
NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count);
NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);

/* NCCL asks for the names without a version. */
NVML_API nvmlReturn_t nvmlInit(void)
{
	return nvmlInit_v2();
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
	return nvmlDeviceGetCount_v2(count);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Domain, bus and device of "00000000:1B:00.0", with four or eight digits of domain. */
static unsigned long long place(const char *bus_id)
{
	unsigned long long value = 0;

	for (char *end; *bus_id; bus_id = *end ? end + 1 : end)
		value = value << 16 | strtoul(bus_id, &end, 16);
	return value;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device)
{
	nvmlReturn_t ready = nvml_ready();
	struct gpus *state = nvml_state();

	if (ready || !bus_id || !device)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < state->count; i++)
		if (place(state->gpu[i].bus_id) == place(bus_id)) {
			*device = (nvmlDevice_t)&state->gpu[i];
			return NVML_SUCCESS;
		}
	return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	(void)device;
	*major = 9;
	*minor = 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t other, int capability, int *status)
{
	(void)one, (void)other, (void)capability;
	*status = P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, int *active)
{
	(void)device, (void)link;
	*active = 0;
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link, int what, unsigned int *out)
{
	(void)device, (void)link, (void)what;
	*out = 0;
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
	(void)device, (void)link, (void)pci;
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, void *info)
{
	(void)device, (void)info;
	return NVML_ERROR_NOT_SUPPORTED;
}

NVML_API nvmlReturn_t nvmlSystemGetConfComputeState(void *state)
{
	(void)state;
	return NVML_ERROR_NOT_SUPPORTED;
}
