/* Calls of the emulated libnvidia-ml that read one thing of one GPU. */
#include "device.h"

#include <stddef.h>
#include <time.h>

/* Begin a query: the GPU's state, or leave with what the call has to return. */
#define ENTER(function, out)                                                                                           \
	struct gpu *gpu;                                                                                               \
	nvmlReturn_t ready = nvml_enter(device, function, &gpu);                                                       \
	if (ready || !(out))                                                                                           \
	return ready ? ready : NVML_ERROR_INVALID_ARGUMENT

NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
	ENTER(GET_UTILIZATION_RATES, utilization);
	utilization->gpu = (unsigned int)(gpu->duty_cycle_ratio * 100 + 0.5);
	utilization->memory = (unsigned int)(gpu->dram_active_ratio * 100 + 0.5);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, nvmlTemperatureSensors_t sensor,
					       unsigned int *celsius)
{
	ENTER(GET_TEMPERATURE, celsius);
	if (sensor != NVML_TEMPERATURE_GPU)
		return NVML_ERROR_INVALID_ARGUMENT;
	*celsius = (unsigned int)gpu->temperature_celsius;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
	ENTER(GET_POWER_USAGE, milliwatts);
	*milliwatts = (unsigned int)(gpu->power_watts * 1e3);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, nvmlClockType_t type, unsigned int *megahertz)
{
	ENTER(GET_CLOCK_INFO, megahertz);
	*megahertz = (unsigned int)((type == NVML_CLOCK_MEM ? gpu->memory_clock_hertz : gpu->sm_clock_hertz) / 1e6);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	ENTER(GET_MEMORY_INFO, memory);
	memory->total = gpu->memory_total_bytes;
	memory->used = gpu->memory_used_bytes + gpu->memory_reserved_bytes;
	memory->free = memory->total - memory->used;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
	ENTER(GET_MEMORY_INFO_V2, memory);
	if (memory->version != nvmlMemory_v2)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	memory->total = gpu->memory_total_bytes;
	memory->reserved = gpu->memory_reserved_bytes;
	memory->used = gpu->memory_used_bytes;
	if (nvml_mig_instance(device, &gpu) > gpu->mig)
		return NVML_ERROR_NOT_FOUND;   /* destroyed */
	if (nvml_mig_instance(device, &gpu)) { /* equal parts */
		memory->total /= gpu->mig;
		memory->reserved /= gpu->mig;
		memory->used /= gpu->mig;
	}
	memory->free = memory->total - memory->used - memory->reserved;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
	ENTER(GET_PCIE_LINK_GENERATION, generation);
	*generation = (unsigned int)gpu->pcie_generation;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *width)
{
	ENTER(GET_PCIE_LINK_WIDTH, width);
	*width = (unsigned int)gpu->pcie_width;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	ENTER(GET_CLOCKS_EVENT_REASONS, reasons);
	*reasons = gpu->throttle_reasons;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *reasons)
{
	ENTER(GET_CLOCKS_THROTTLE_REASONS, reasons);
	*reasons = gpu->throttle_reasons;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, nvmlPerfPolicyType_t policy,
						   nvmlViolationTime_t *violation)
{
	ENTER(GET_VIOLATION_STATUS, violation);
	violation->referenceTime = (unsigned long long)time(NULL) * 1000000;
	if (policy == NVML_PERF_POLICY_POWER)
		violation->violationTime = (unsigned long long)(gpu->throttle_power_seconds_total * 1e9);
	else if (policy == NVML_PERF_POLICY_THERMAL)
		violation->violationTime = (unsigned long long)(gpu->throttle_thermal_seconds_total * 1e9);
	else
		violation->violationTime = 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
							      nvmlProcessInfo_t *infos)
{
	ENTER(GET_COMPUTE_RUNNING_PROCESSES, count);
	unsigned int room = *count, found = gpu->processes < GPUS_PROCESSES ? gpu->processes : GPUS_PROCESSES;

	*count = found;
	if (found > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	for (unsigned int i = 0; i < found; i++) {
		infos[i] = (nvmlProcessInfo_t){.pid = gpu->process[i].pid,
					       .usedGpuMemory = gpu->process[i].memory_bytes,
					       .gpuInstanceId = ~0u,
					       .computeInstanceId = ~0u};
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	ENTER(GET_MIG_MODE, current && pending);
	*current = *pending = (unsigned int)gpu->mig;
	return NVML_SUCCESS;
}
