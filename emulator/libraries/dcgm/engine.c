/* The emulated libdcgm.so: connection, groups, watches. Its host engine is the file of GPU states that NVML's has too.
 */
#define _GNU_SOURCE
#include "engine.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define GROUPS 8

static struct gpus *state;
static int initialised;
static unsigned int connected; /* which start of the host engine; 0: not connected */
static struct group groups[GROUPS];

struct gpus *dcgm_state(void)
{
	const char *path = getenv("EMULATED_GPUS");
	struct stat status;
	int fd = state || !path ? -1 : open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return state;
	if (!fstat(fd, &status) && status.st_size >= (off_t)sizeof(struct gpus)) {
		struct gpus *found = mmap(NULL, sizeof(*found), PROT_READ, MAP_SHARED, fd, 0);

		if (found != MAP_FAILED && found->magic == GPUS_MAGIC && found->size == sizeof(struct gpu))
			state = found;
	}
	close(fd);
	return state;
}

dcgmReturn_t dcgm_ready(dcgmHandle_t handle)
{
	if (!initialised)
		return DCGM_ST_UNINITIALIZED;
	while (state && state->dcgm_hang)
		nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	if (!connected || handle != connected || !state->dcgm_starts || state->dcgm_starts != connected)
		return DCGM_ST_CONNECTION_NOT_VALID;
	return DCGM_ST_OK;
}

struct group *dcgm_group(dcgmGpuGrp_t number)
{
	return number > 0 && number < GROUPS && groups[number].entities ? &groups[number] : NULL;
}

DCGM_API dcgmReturn_t dcgmInit(void)
{
	initialised = 1;
	return DCGM_ST_OK;
}

DCGM_API dcgmReturn_t dcgmConnect_v2(const char *address, dcgmConnectV2Params_v2 *parameters, dcgmHandle_t *handle)
{
	if (!initialised)
		return DCGM_ST_UNINITIALIZED;
	if (!address || !*address || !parameters || !handle)
		return DCGM_ST_BADPARAM;
	if (parameters->version != VERSION_OF(dcgmConnectV2Params_v2, 2))
		return DCGM_ST_VER_MISMATCH;
	if (!dcgm_state() || !state->dcgm_starts)
		return DCGM_ST_CONNECTION_NOT_VALID;
	connected = state->dcgm_starts;
	*handle = connected;
	return DCGM_ST_OK;
}

DCGM_API dcgmReturn_t dcgmGroupCreate(dcgmHandle_t handle, int type, const char *name, dcgmGpuGrp_t *number)
{
	dcgmReturn_t ready = dcgm_ready(handle);

	if (ready)
		return ready;
	if (!name || !number || (type != DCGM_GROUP_DEFAULT && type != DCGM_GROUP_DEFAULT_NVSWITCHES))
		return DCGM_ST_BADPARAM;
	for (int i = 1; i < GROUPS; i++) {
		if (groups[i].entities)
			continue;
		groups[i] = (struct group){.entities = type == DCGM_GROUP_DEFAULT ? DCGM_FE_GPU : DCGM_FE_SWITCH};
		*number = i;
		return DCGM_ST_OK;
	}
	return DCGM_ST_MAX_LIMIT;
}

DCGM_API dcgmReturn_t dcgmGetEntityGroupEntities(dcgmHandle_t handle, int kind, unsigned int *entities, int *count,
						 unsigned int flags)
{
	dcgmReturn_t ready = dcgm_ready(handle);
	int there = 0;

	(void)flags;
	if (ready)
		return ready;
	if (!entities || !count)
		return DCGM_ST_BADPARAM;
	if (kind == DCGM_FE_GPU)
		there = state->count;
	else if (kind == DCGM_FE_SWITCH)
		there = state->switches;
	else if (kind == DCGM_FE_LINK)
		there = LINKS_OF_SWITCH * state->switches;
	if (there > *count) {
		*count = there;
		return DCGM_ST_INSUFFICIENT_SIZE;
	}
	*count = there;
	for (int i = 0; i < there; i++) /* a link is a dcgm_link_t: type, index, switch */
		entities[i] = kind == DCGM_FE_LINK ? DCGM_FE_SWITCH | (unsigned)(i % LINKS_OF_SWITCH) << 8 |
							 (unsigned)(i / LINKS_OF_SWITCH) << 16
						   : (unsigned)i;
	return DCGM_ST_OK;
}

DCGM_API const char *errorString(dcgmReturn_t result)
{
	switch (result) {
	case DCGM_ST_OK:
		return "Success";
	case DCGM_ST_BADPARAM:
		return "Bad parameter passed to function";
	case DCGM_ST_UNINITIALIZED:
		return "DCGM initialization was not completed";
	case DCGM_ST_VER_MISMATCH:
		return "API version mismatch";
	case DCGM_ST_NOT_WATCHED:
		return "Field is not being updated";
	case DCGM_ST_CONNECTION_NOT_VALID:
		return "The connection to the host engine is not valid any longer";
	case DCGM_ST_IN_USE:
		return "The resource is in use";
	case DCGM_ST_PROFILING_NOT_SUPPORTED:
		return "Profiling is not supported for this group of GPUs or GPU";
	default:
		return NULL;
	}
}
