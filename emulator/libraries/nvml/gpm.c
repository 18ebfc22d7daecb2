/* GPM of the emulated libnvidia-ml: metrics come out of two samples, the later of which was taken later. */
#include "device.h"

#include <stddef.h>
#include <stdlib.h>
#include <time.h>

struct nvmlGpmSample_st {
	const struct gpu *gpu; /* NULL: nothing was taken yet */
	double seconds;
	struct gpu taken;
};

NVML_API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support)
{
	struct gpu *gpu;
	nvmlReturn_t ready = nvml_enter(device, GPM_QUERY_DEVICE_SUPPORT, &gpu);

	if (ready || !support)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	if (support->version != NVML_GPM_SUPPORT_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	support->isSupportedDevice = gpu->gpm != 0;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleAlloc(nvmlGpmSample_t *sample)
{
	if (!sample)
		return NVML_ERROR_INVALID_ARGUMENT;
	*sample = calloc(1, sizeof(**sample));
	return *sample ? NVML_SUCCESS : NVML_ERROR_MEMORY;
}

NVML_API nvmlReturn_t nvmlGpmSampleFree(nvmlGpmSample_t sample)
{
	free(sample);
	return NVML_SUCCESS;
}

static nvmlReturn_t take(nvmlDevice_t device, nvmlGpmSample_t sample, int split)
{
	struct gpu *gpu;
	struct timespec now;
	nvmlReturn_t ready = nvml_enter(device, GPM_SAMPLE_GET, &gpu);

	if (ready || !sample)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	if (!gpu->gpm || !gpu->mig == split)
		return NVML_ERROR_NOT_SUPPORTED;
	clock_gettime(CLOCK_MONOTONIC, &now);
	sample->gpu = gpu;
	sample->seconds = now.tv_sec + now.tv_nsec * 1e-9;
	sample->taken = *gpu;
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, nvmlGpmSample_t sample)
{
	return take(device, sample, 0);
}

/* Every instance of a GPU is as busy as the whole. */
NVML_API nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t device, unsigned int instance, nvmlGpmSample_t sample)
{
	return instance ? take(device, sample, 1) : NVML_ERROR_INVALID_ARGUMENT;
}

static double rate(nvmlGpmSample_t before, nvmlGpmSample_t after, size_t offset)
{
	uint64_t grown = *(uint64_t *)((char *)&after->taken + offset) - *(uint64_t *)((char *)&before->taken + offset);

	return (double)grown / (after->seconds - before->seconds) / (1 << 20);
}

#define RATE(name) rate(before, after, offsetof(struct gpu, name))

static nvmlReturn_t metric(nvmlGpmSample_t before, nvmlGpmSample_t after, nvmlGpmMetric_t *out)
{
	const struct gpu *now = &after->taken;

	switch (out->metricId) {
	case 1:
		out->value = now->graphics_active_ratio * 100;
		break;
	case 2:
		out->value = now->sm_active_ratio * 100;
		break;
	case 3:
		out->value = now->sm_occupancy_ratio * 100;
		break;
	case 5:
		out->value = now->tensor_active_ratio * 100;
		break;
	case 10:
		out->value = now->dram_active_ratio * 100;
		break;
	case 11:
		out->value = now->fp64_active_ratio * 100;
		break;
	case 12:
		out->value = now->fp32_active_ratio * 100;
		break;
	case 13:
		out->value = now->fp16_active_ratio * 100;
		break;
	case 20:
		out->value = RATE(pcie_transmit_bytes_total);
		break;
	case 21:
		out->value = RATE(pcie_receive_bytes_total);
		break;
	case 60:
		out->value = RATE(nvlink_receive_bytes_total);
		break;
	case 61:
		out->value = RATE(nvlink_transmit_bytes_total);
		break;
	default:
		return NVML_ERROR_NOT_SUPPORTED;
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get)
{
	struct gpu *gpu;
	nvmlReturn_t ready;

	if (!get || !get->sample1 || !get->sample2 || !get->sample1->gpu)
		return NVML_ERROR_INVALID_ARGUMENT;
	ready = nvml_enter((nvmlDevice_t)get->sample1->gpu, GPM_METRICS_GET, &gpu);
	if (ready)
		return ready;
	if (get->version != NVML_GPM_METRICS_GET_VERSION)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	if (get->sample2->gpu != gpu || get->sample2->seconds <= get->sample1->seconds)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned int i = 0; i < get->numMetrics; i++)
		get->metrics[i].nvmlReturn = metric(get->sample1, get->sample2, &get->metrics[i]);
	return NVML_SUCCESS;
}
