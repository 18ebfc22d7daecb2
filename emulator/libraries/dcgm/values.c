/* Fields of the emulated libdcgm: watched first, then read; a value is there once its watch has run for a while. */
#define _GNU_SOURCE
#include "engine.h"

#include <string.h>
#include <time.h>

#define FIELD_GROUPS 8
#define FIELDS 1100

static unsigned short fields_of[FIELD_GROUPS][16];
static int counts[FIELD_GROUPS];
static char names[FIELD_GROUPS][64];
static int64_t watched_us[FIELDS]; /* since when; 0: not watched */

static int64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

DCGM_API dcgmReturn_t dcgmFieldGroupCreate(dcgmHandle_t handle, int count, unsigned short *fields, const char *name,
					   dcgmFieldGrp_t *number)
{
	dcgmReturn_t ready = dcgm_ready(handle);

	if (ready)
		return ready;
	if (!fields || !name || !number || count < 1 || count > 16 || strlen(name) >= sizeof(*names))
		return DCGM_ST_BADPARAM;
	for (int i = 1; i < FIELD_GROUPS; i++) {
		if (counts[i] && !strcmp(names[i], name))
			return DCGM_ST_DUPLICATE_KEY;
		if (counts[i])
			continue;
		for (int k = 0; k < count; k++)
			if (fields[k] >= FIELDS)
				return DCGM_ST_UNKNOWN_FIELD;
		memcpy(fields_of[i], fields, count * sizeof(*fields));
		strcpy(names[i], name);
		counts[i] = count;
		*number = i;
		return DCGM_ST_OK;
	}
	return DCGM_ST_MAX_LIMIT;
}

DCGM_API dcgmReturn_t dcgmWatchFields(dcgmHandle_t handle, dcgmGpuGrp_t group, dcgmFieldGrp_t fields,
				      long long every_us, double keep_s, int samples)
{
	dcgmReturn_t ready = dcgm_ready(handle);

	(void)samples;
	if (ready)
		return ready;
	if (!dcgm_group(group) || !fields || fields >= FIELD_GROUPS || !counts[fields] || every_us < 1000 ||
	    keep_s <= 0)
		return DCGM_ST_BADPARAM;
	for (int i = 0; i < counts[fields]; i++)
		if (fields_of[fields][i] >= DCGM_FI_PROF_GR_ENGINE_ACTIVE && dcgm_state()->profiling_error)
			return -(int)dcgm_state()->profiling_error;
	for (int i = 0; i < counts[fields]; i++)
		watched_us[fields_of[fields][i]] = now_us();
	return DCGM_ST_OK;
}

/* Field 870 is 2 for a link that is active, and 0 for one that is off. */
static int64_t of_link(const struct nvswitch *from, unsigned int link, unsigned int field)
{
	switch (field) {
	case DCGM_FI_DEV_NVSWITCH_LINK_STATUS:
		return link < from->links_up ? 2 : 0;
	case DCGM_FI_DEV_NVSWITCH_LINK_FATAL_ERRORS:
		return from->fatal_errors;
	case 783:
		return from->nonfatal_errors;
	case 784:
		return from->replays;
	case 785:
		return from->recoveries;
	case 787:
		return from->crc_errors;
	case 788:
		return from->ecc_errors;
	default:
		return DCGM_INT64_BLANK;
	}
}

static int64_t of_switch(const struct nvswitch *from, unsigned int field)
{
	switch (field) {
	case DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS:
		return from->fatal_sxid;
	case DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS:
		return from->nonfatal_sxid;
	case DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT:
		return from->temperature_celsius;
	case DCGM_FI_DEV_NVSWITCH_RESET_REQUIRED:
		return from->reset_required;
	default:
		return DCGM_INT64_BLANK;
	}
}

static void read_value(dcgmGroupEntityPair_t entity, unsigned short field, unsigned int flags, dcgmFieldValue_v2 *out)
{
	struct gpus *state = dcgm_state();
	unsigned int id = entity.entityId, of = entity.entityGroupId == DCGM_FE_LINK ? id >> 16 : id;
	int64_t since = field < FIELDS ? watched_us[field] : 0;

	memset(out, 0, sizeof(*out));
	out->version = VERSION_OF(*out, 2);
	out->entityGroupId = entity.entityGroupId;
	out->entityId = id;
	out->fieldId = field;
	out->fieldType = 'i';
	out->ts = now_us();
	out->value.i64 = DCGM_INT64_BLANK;
	if (!(flags & DCGM_FV_FLAG_LIVE_DATA) && !since)
		out->status = DCGM_ST_NOT_WATCHED;
	else if (!(flags & DCGM_FV_FLAG_LIVE_DATA) && out->ts - since < 100000)
		out->status = DCGM_ST_NO_DATA;
	else if (entity.entityGroupId == DCGM_FE_GPU && of < state->count && field == DCGM_FI_DEV_NVML_INDEX)
		out->value.i64 = state->count - 1 - of;
	else if (entity.entityGroupId == DCGM_FE_GPU && of < state->count && field >= DCGM_FI_PROF_GR_ENGINE_ACTIVE &&
		 field <= DCGM_FI_PROF_PIPE_FP16_ACTIVE) {
		const struct gpu *gpu = &state->gpu[state->count - 1 - of];

		out->fieldType = 'd'; /* in the file they stand in the order of their numbers */
		out->value.dbl =
		    gpu->error ? DCGM_FP64_BLANK : (&gpu->graphics_active_ratio)[field - DCGM_FI_PROF_GR_ENGINE_ACTIVE];
	} else if (entity.entityGroupId == DCGM_FE_SWITCH && of < state->switches)
		out->value.i64 = of_switch(&state->nvswitch[of], field);
	else if (entity.entityGroupId == DCGM_FE_LINK && of < state->switches)
		out->value.i64 = of_link(&state->nvswitch[of], id >> 8 & 0xff, field);
	else
		out->status = DCGM_ST_BADPARAM;
}

DCGM_API dcgmReturn_t dcgmEntitiesGetLatestValues(dcgmHandle_t handle, dcgmGroupEntityPair_t entities[],
						  unsigned int entity_count, unsigned short fields[],
						  unsigned int field_count, unsigned int flags,
						  dcgmFieldValue_v2 values[])
{
	dcgmReturn_t ready = dcgm_ready(handle);

	if (ready)
		return ready;
	if (!entities || !fields || !values || !entity_count || !field_count)
		return DCGM_ST_BADPARAM;
	for (unsigned int i = 0; i < entity_count; i++)
		for (unsigned int k = 0; k < field_count; k++)
			read_value(entities[i], fields[k], flags, values++);
	return DCGM_ST_OK;
}
