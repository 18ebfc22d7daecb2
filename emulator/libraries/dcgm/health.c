/* Health watches of the emulated libdcgm: the checks that DCGM makes of GPUs and switches, with its words and results.
 *
 * A first check only notes what the counters are, as the real one's does.
 */
#define _GNU_SOURCE
#include "engine.h"

#include <stdio.h>
#include <string.h>

#define REPLAYS 8 /* more between two checks are too many: DCGM_LIMIT_MAX_PCIREPLAY_RATE */

static uint64_t replays_before[GPUS_MAX];
static double thermal_before[GPUS_MAX], power_before[GPUS_MAX];

/* The response of either version, and how many incidents it has room for. */
struct report {
	dcgmHealthResponse_v5 *to;
	unsigned int most;
};

static void say(struct report *report, unsigned int system, unsigned int result, unsigned int group, unsigned int id,
		const char *words, unsigned long long number)
{
	dcgmIncidentInfo_t *incident = &report->to->incidents[report->to->incidentCount];

	if (report->to->incidentCount >= report->most)
		return;
	report->to->incidentCount++;
	if (report->to->overallHealth < result)
		report->to->overallHealth = result;
	incident->system = system;
	incident->health = result;
	incident->entityInfo = (dcgmGroupEntityPair_t){group, id};
	snprintf(incident->error.msg, sizeof(incident->error.msg), words, number, id);
}

static void check_gpu(struct report *report, unsigned int systems, unsigned int id, unsigned int index, int first)
{
	const struct gpu *gpu = &dcgm_state()->gpu[index];
	uint64_t replays = gpu->pcie_replay_total - replays_before[index];
	int hot = gpu->throttle_thermal_seconds_total > thermal_before[index];
	int capped = gpu->throttle_power_seconds_total > power_before[index];

	replays_before[index] = gpu->pcie_replay_total;
	thermal_before[index] = gpu->throttle_thermal_seconds_total;
	power_before[index] = gpu->throttle_power_seconds_total;
	if (first)
		return;
	if (systems & DCGM_HEALTH_WATCH_PCIE && replays > REPLAYS)
		say(report, DCGM_HEALTH_WATCH_PCIE, DCGM_HEALTH_RESULT_WARN, DCGM_FE_GPU, id,
		    "Detected %llu PCI replays for GPU %u, more than 8 in a minute.", replays);
	if (systems & DCGM_HEALTH_WATCH_NVLINK && gpu->nvlink_links_up < gpu->nvlink_links)
		say(report, DCGM_HEALTH_WATCH_NVLINK, DCGM_HEALTH_RESULT_FAIL, DCGM_FE_GPU, id,
		    "NvLink link %llu of GPU %u is currently down.", gpu->nvlink_links_up);
	if (systems & DCGM_HEALTH_WATCH_MEM && gpu->ecc_uncorrected_total)
		say(report, DCGM_HEALTH_WATCH_MEM, DCGM_HEALTH_RESULT_FAIL, DCGM_FE_GPU, id,
		    "Detected %llu volatile double-bit ECC error(s) in GPU %u.", gpu->ecc_uncorrected_total);
	if (systems & DCGM_HEALTH_WATCH_MEM && gpu->remap_failed)
		say(report, DCGM_HEALTH_WATCH_MEM, DCGM_HEALTH_RESULT_FAIL, DCGM_FE_GPU, id,
		    "Row remapping failed %llu time(s) on GPU %u.", gpu->remap_failed);
	if (systems & DCGM_HEALTH_WATCH_THERMAL && hot)
		say(report, DCGM_HEALTH_WATCH_THERMAL, DCGM_HEALTH_RESULT_WARN, DCGM_FE_GPU, id,
		    "Detected clock throttling due to thermal violation (%llu) in GPU %u.", hot);
	if (systems & DCGM_HEALTH_WATCH_POWER && capped)
		say(report, DCGM_HEALTH_WATCH_POWER, DCGM_HEALTH_RESULT_WARN, DCGM_FE_GPU, id,
		    "Detected clock throttling due to power violation (%llu) in GPU %u.", capped);
}

static void check_switch(struct report *report, unsigned int systems, unsigned int id)
{
	const struct nvswitch *from = &dcgm_state()->nvswitch[id];

	if (systems & DCGM_HEALTH_WATCH_NVSWITCH_FATAL && from->fatal_sxid)
		say(report, DCGM_HEALTH_WATCH_NVSWITCH_FATAL, DCGM_HEALTH_RESULT_FAIL, DCGM_FE_SWITCH, id,
		    "Detected fatal errors (%llu) on NvSwitch %u.", from->fatal_sxid);
	if (systems & DCGM_HEALTH_WATCH_NVSWITCH_NONFATAL && from->nonfatal_sxid)
		say(report, DCGM_HEALTH_WATCH_NVSWITCH_NONFATAL, DCGM_HEALTH_RESULT_WARN, DCGM_FE_SWITCH, id,
		    "Detected nonfatal errors (%llu) on NvSwitch %u.", from->nonfatal_sxid);
}

DCGM_API dcgmReturn_t dcgmHealthSet_v2(dcgmHandle_t handle, dcgmHealthSetParams_v2 *parameters)
{
	dcgmReturn_t ready = dcgm_ready(handle);
	struct group *group = parameters ? dcgm_group(parameters->groupId) : NULL;

	if (ready)
		return ready;
	if (!group || parameters->updateInterval < 1000 || parameters->maxKeepAge <= 0)
		return DCGM_ST_BADPARAM;
	if (parameters->version != VERSION_OF(dcgmHealthSetParams_v2, 2))
		return DCGM_ST_VER_MISMATCH;
	if (group->entities == DCGM_FE_SWITCH && !dcgm_state()->switches)
		return DCGM_ST_GROUP_IS_EMPTY;
	group->systems = parameters->systems;
	return DCGM_ST_OK;
}

DCGM_API dcgmReturn_t dcgmHealthCheck(dcgmHandle_t handle, dcgmGpuGrp_t number, dcgmHealthResponse_v5 *response)
{
	dcgmReturn_t ready = dcgm_ready(handle);
	struct group *group = dcgm_group(number);
	struct gpus *state = dcgm_state();
	int old = state && state->dcgm_version < 4;
	unsigned int version = old ? VERSION_OF(dcgmHealthResponse_v4, 4) : VERSION_OF(dcgmHealthResponse_v5, 5);
	struct report report = {response, old ? INCIDENTS_V4 : INCIDENTS_V5};

	if (ready)
		return ready;
	if (!group || !response)
		return DCGM_ST_BADPARAM;
	if (response->version != version)
		return DCGM_ST_VER_MISMATCH;
	memset(response, 0, old ? sizeof(dcgmHealthResponse_v4) : sizeof(*response));
	response->version = version;
	for (unsigned int id = 0; group->entities == DCGM_FE_GPU && id < state->count; id++)
		check_gpu(&report, group->systems, id, state->count - 1 - id, !group->checked);
	for (unsigned int id = 0; group->checked && group->entities == DCGM_FE_SWITCH && id < state->switches; id++)
		check_switch(&report, group->systems, id);
	group->checked = 1;
	return DCGM_ST_OK;
}
