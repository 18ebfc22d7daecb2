/* Events of the emulated libnvidia-ml: what nvml_state.py appends to a GPU's ring reaches the sets that registered. */
#include "device.h"

#include <stdlib.h>
#include <time.h>

struct nvmlEventSet_st {
	struct {
		unsigned long long types; /* 0: not registered */
		uint64_t seen;		  /* events of the ring that were reported or came before */
	} of[GPUS_MAX];
};

/* Between looks at the rings; each costs whoever waits a wake-up, which the driver's own wait does not. */
#define PAUSE_MS 250

static const unsigned long long supported = 0x1 | 0x2 | 0x4 | 0x8 | 0x800 | 0x2000 | 0x4000 | 0x8000;

NVML_API nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
	nvmlReturn_t ready = nvml_ready();

	if (ready || !set)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	*set = calloc(1, sizeof(**set));
	return *set ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
	free(set);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_SUPPORTED_EVENT_TYPES, &gpu);

	if (ready || !types)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	*types = supported;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, REGISTER_EVENTS, &gpu);

	if (ready || !set)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	if (types & ~supported)
		return NVML_ERROR_NOT_SUPPORTED;
	int index = gpu - nvml_state()->gpu;
	set->of[index].types = types;
	set->of[index].seen = gpu->events_written;
	return NVML_SUCCESS;
}

/* The next event of any GPU, or 0. */
static int next(nvmlEventSet_t set, nvmlEventData_t *data)
{
	struct gpus *state = nvml_state();

	for (unsigned int i = 0; i < state->count; i++) {
		struct gpu *gpu = &state->gpu[i];
		uint64_t written = __atomic_load_n(&gpu->events_written, __ATOMIC_ACQUIRE), *seen = &set->of[i].seen;

		if (written > *seen + GPUS_EVENTS)
			*seen = written - GPUS_EVENTS;
		while (set->of[i].types && *seen < written) {
			struct gpu_event event = gpu->event[(*seen)++ % GPUS_EVENTS];

			if (!(event.type & set->of[i].types))
				continue;
			*data = (nvmlEventData_t){.device = (nvmlDevice_t)gpu,
						  .eventType = event.type,
						  .eventData = event.data,
						  .gpuInstanceId = ~0u,
						  .computeInstanceId = ~0u};
			return 1;
		}
	}
	return 0;
}

NVML_API nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeoutms)
{
	if (!set || !data)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int waited = 0;; waited += PAUSE_MS) {
		nvmlReturn_t ready = nvml_ready();

		if (ready)
			return ready;
		if (next(set, data))
			return NVML_SUCCESS;
		if (waited >= timeoutms)
			return NVML_ERROR_TIMEOUT;
		nanosleep(&(struct timespec){.tv_nsec = PAUSE_MS * 1000000}, NULL);
	}
}
