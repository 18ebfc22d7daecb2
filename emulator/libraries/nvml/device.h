/* How the emulated libnvidia-ml gets at a GPU's state: every call goes through nvml_enter. */
#ifndef PEERWATCH_NVML_DEVICE_H
#define PEERWATCH_NVML_DEVICE_H

#include "state.h"
#include "nvml.h"

/* Functions that can be made to fail, by their number in struct gpu_failing; nvml_layout.py has the same list. */
enum function {
	FUNCTION_BASE = 1000,
	GET_UUID = FUNCTION_BASE,
	GET_NAME,
	GET_PCI_INFO,
	GET_UTILIZATION_RATES,
	GET_TEMPERATURE,
	GET_CLOCK_INFO,
	GET_MEMORY_INFO,
	GET_MEMORY_INFO_V2,
	GET_PCIE_LINK_GENERATION,
	GET_PCIE_LINK_WIDTH,
	GET_CLOCKS_EVENT_REASONS,
	GET_CLOCKS_THROTTLE_REASONS,
	GET_VIOLATION_STATUS,
	GET_FIELD_VALUES,
	GET_COMPUTE_RUNNING_PROCESSES,
	GET_MIG_MODE,
	REGISTER_EVENTS,
	GET_SUPPORTED_EVENT_TYPES,
	GPM_QUERY_DEVICE_SUPPORT,
	GPM_SAMPLE_GET,
	GPM_METRICS_GET,
	GET_HANDLE_BY_INDEX,
	GET_INDEX,
	GET_POWER_USAGE,
	GET_SERIAL,
};

#define MIG_MAX 7

/* The number of a MIG instance and its GPU; 0: the handle is no MIG instance's. */
unsigned int nvml_mig_instance(nvmlDevice_t device, struct gpu **gpu);
/* The state of all GPUs; NULL where there is no file of this layout. */
struct gpus *nvml_state(void);
/* The state of one, once no hang is set, or the error to return: driver away or reloaded, GPU lost, call failing. */
nvmlReturn_t nvml_enter(nvmlDevice_t device, enum function function, struct gpu **gpu);
/* What a field or function of this GPU is made to give. */
nvmlReturn_t nvml_failing(const struct gpu *gpu, unsigned int what);
/* Whether the library is initialised under the driver that is loaded now; waits while all calls hang. */
nvmlReturn_t nvml_ready(void);

#endif
