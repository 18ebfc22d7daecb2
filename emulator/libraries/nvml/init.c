/* The emulated libnvidia-ml.so.1: initialisation, the devices, and which call fails or hangs. */
#define _GNU_SOURCE
#include "device.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct gpus *state;
static int initialised;	      /* calls of nvmlInit that no nvmlShutdown has undone */
static unsigned int loads_at; /* which load of the driver they were for */

static void wait_while(volatile uint32_t *hang)
{
	while (*hang)
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
}

static struct gpus *map(const char *path)
{
	struct stat status;
	void *memory = MAP_FAILED;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return NULL;
	if (!fstat(fd, &status) && status.st_size >= (off_t)sizeof(struct gpus))
		memory = mmap(NULL, sizeof(struct gpus), PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (memory == MAP_FAILED)
		return NULL;
	struct gpus *found = memory;
	if (found->magic == GPUS_MAGIC && found->size == sizeof(struct gpu) && found->count <= GPUS_MAX)
		return found;
	munmap(memory, sizeof(struct gpus));
	return NULL;
}

struct gpus *nvml_state(void)
{
	const char *path = getenv("EMULATED_GPUS");

	if (!state && path)
		state = map(path);
	return state;
}

NVML_API nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	if (!nvml_state())
		return NVML_ERROR_DRIVER_NOT_LOADED;
	wait_while(&state->hang);
	if (state->driver_error)
		return state->driver_error;
	if (initialised && loads_at != state->loads)
		initialised = 0;
	loads_at = state->loads;
	initialised++;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

NVML_API nvmlReturn_t nvmlShutdown(void)
{
	if (!initialised)
		return NVML_ERROR_UNINITIALIZED;
	initialised--;
	return NVML_SUCCESS;
}

nvmlReturn_t nvml_ready(void)
{
	if (!initialised)
		return NVML_ERROR_UNINITIALIZED;
	wait_while(&state->hang);
	if (state->driver_error || state->loads != loads_at)
		return NVML_ERROR_UNINITIALIZED;
	return NVML_SUCCESS;
}

nvmlReturn_t nvml_failing(const struct gpu *gpu, unsigned int what)
{
	for (int i = 0; i < GPUS_FAILING; i++)
		if (gpu->failing[i].what == what)
			return gpu->failing[i].error;
	return NVML_SUCCESS;
}

nvmlReturn_t nvml_enter(nvmlDevice_t device, enum function function, struct gpu **gpu)
{
	nvmlReturn_t ready = nvml_ready();

	if (ready)
		return ready;
	if (!nvml_mig_instance(device, gpu))
		*gpu = (struct gpu *)device;
	if (*gpu < state->gpu || *gpu >= state->gpu + state->count)
		return NVML_ERROR_INVALID_ARGUMENT;
	wait_while(&(*gpu)->hang);
	ready = nvml_ready();
	if (ready)
		return ready;
	if ((*gpu)->error)
		return (*gpu)->error;
	return nvml_failing(*gpu, function);
}

NVML_API const char *nvmlErrorString(nvmlReturn_t result)
{
	static const char *const texts[] = {
	    [NVML_SUCCESS] = "The operation was successful",
	    [NVML_ERROR_UNINITIALIZED] = "Uninitialized",
	    [NVML_ERROR_INVALID_ARGUMENT] = "Invalid Argument",
	    [NVML_ERROR_NOT_SUPPORTED] = "Not Supported",
	    [NVML_ERROR_INSUFFICIENT_SIZE] = "Insufficient Size",
	    [NVML_ERROR_DRIVER_NOT_LOADED] = "Driver Not Loaded",
	    [NVML_ERROR_TIMEOUT] = "Timeout",
	    [NVML_ERROR_GPU_IS_LOST] = "GPU is lost",
	    [NVML_ERROR_MEMORY] = "Insufficient Memory",
	    [NVML_ERROR_ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
	};
	const char *text = (size_t)result < sizeof(texts) / sizeof(*texts) ? texts[result] : NULL;

	return text ? text : "Unknown Error";
}

static nvmlReturn_t copy(const char *from, char *to, unsigned int length)
{
	if (!to || strlen(from) >= length)
		return to ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_ERROR_INVALID_ARGUMENT;
	strcpy(to, from);
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	nvmlReturn_t ready = nvml_ready();

	return ready ? ready : copy(state->driver_version, version, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	nvmlReturn_t ready = nvml_ready();

	if (ready || !count)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	*count = 0;
	for (unsigned int i = 0; i < state->count; i++)
		*count += !state->gpu[i].absent;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	nvmlReturn_t ready = nvml_ready();

	if (ready || !device)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < state->count; i++) {
		struct gpu *gpu;

		if (state->gpu[i].absent || index--)
			continue;
		*device = (nvmlDevice_t)&state->gpu[i];
		return nvml_enter(*device, GET_HANDLE_BY_INDEX, &gpu);
	}
	return NVML_ERROR_INVALID_ARGUMENT;
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_INDEX, &gpu);

	if (ready || !index)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	*index = 0;
	for (struct gpu *before = state->gpu; before < gpu; before++)
		*index += !before->absent;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_UUID, &gpu);
	unsigned int instance = nvml_mig_instance(device, &gpu);
	char name[sizeof(gpu->uuid) + 8];

	if (ready)
		return ready;
	if (instance) /* as long as NVIDIA's, and another for each instance */
		snprintf(name, sizeof(name), "MIG-%.*s-%u", (int)sizeof(gpu->uuid) - 16, gpu->uuid + 4, instance);
	return copy(instance ? name : gpu->uuid, uuid, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_NAME, &gpu);

	return ready ? ready : copy(gpu->name, name, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_SERIAL, &gpu);

	return ready ? ready : copy(gpu->serial, serial, length);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GET_PCI_INFO, &gpu);

	if (ready || !pci)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	memset(pci, 0, sizeof(*pci));
	return copy(gpu->bus_id, pci->busId, sizeof(pci->busId));
}
