/* Field values of the emulated libnvidia-ml: one call, many readings, each with a return code of its own. */
#include "device.h"

#include <stddef.h>
#include <time.h>

#define ALL_LINKS 0xffffffffu

enum scope { DEVICE, LINKS, LINK };

struct field {
	unsigned int id;
	enum scope scope;
	char from;	    /* d: a double, u: an integer, -: always 0 */
	double scale;	    /* factor on the stored value */
	unsigned char wide; /* 64-bit values */
	size_t offset;
};

#define AT(name) offsetof(struct gpu, name)

static const struct field fields[] = {
    {3, DEVICE, 'u', 1, 1, AT(ecc_corrected_total)},
    {4, DEVICE, 'u', 1, 1, AT(ecc_uncorrected_total)},
    {5, DEVICE, 'u', 1, 1, AT(ecc_corrected_lifetime_total)},
    {6, DEVICE, 'u', 1, 1, AT(ecc_uncorrected_lifetime_total)},
    {74, DEVICE, 'd', 1e9, 1, AT(throttle_power_seconds_total)},
    {75, DEVICE, 'd', 1e9, 1, AT(throttle_thermal_seconds_total)},
    {82, DEVICE, 'd', 1, 0, AT(memory_temperature_celsius)},
    {83, DEVICE, 'd', 1e3, 1, AT(energy_joules_total)},
    {91, DEVICE, 'u', 1, 0, AT(nvlink_links)},
    {94, DEVICE, 'u', 1, 0, AT(pcie_replay_total)},
    {138, LINKS, 'u', 1.0 / 1024, 1, AT(nvlink_transmit_bytes_total)},
    {139, LINKS, 'u', 1.0 / 1024, 1, AT(nvlink_receive_bytes_total)},
    {142, DEVICE, 'u', 1, 0, AT(remapped_rows_corrected)},
    {143, DEVICE, 'u', 1, 0, AT(remapped_rows_uncorrected)},
    {144, DEVICE, 'u', 1, 0, AT(remap_pending)},
    {145, DEVICE, 'u', 1, 0, AT(remap_failed)},
    {161, LINK, 'u', 1, 1, AT(nvlink_replays_total)},
    {162, LINK, 'u', 1, 1, AT(nvlink_recoveries_total)},
    {163, LINK, 'u', 1, 1, AT(nvlink_crc_errors_total)},
    {165, LINK, 'u', 1, 0, AT(nvlink_links_up)},
    {173, DEVICE, 'u', 1, 0, AT(pcie_correctable_errors_total)},
    {180, DEVICE, 'u', 1, 0, AT(pcie_fatal_errors_total)},
    {186, DEVICE, 'd', 1e3, 0, AT(power_watts)},
    {190, DEVICE, 'd', 1e3, 0, AT(power_limit_watts)},
    {197, DEVICE, 'u', 1, 1, AT(pcie_transmit_bytes_total)},
    {198, DEVICE, 'u', 1, 1, AT(pcie_receive_bytes_total)},
    {230, DEVICE, 'u', 1, 0, AT(recovery_action)},
    {269, DEVICE, 'd', 1e9, 1, AT(throttle_thermal_seconds_total)},
    {270, DEVICE, '-', 0, 1, 0},
    {271, DEVICE, 'd', 1e9, 1, AT(power_brake_seconds_total)},
};

static const struct field *find(unsigned int id)
{
	for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++)
		if (fields[i].id == id)
			return &fields[i];
	return NULL;
}

static unsigned long long stored(const struct gpu *gpu, const struct field *field)
{
	const char *at = (const char *)gpu + field->offset;

	if (field->from == '-')
		return 0;
	if (field->from == 'd')
		return (unsigned long long)(*(const double *)at * field->scale + 0.5);
	return field->scale == 1 ? *(const uint64_t *)at
				 : (unsigned long long)((double)*(const uint64_t *)at * field->scale);
}

/* The errors of all links lie on the first; the first nvlink_links_up links are up. */
static unsigned long long of_link(const struct gpu *gpu, const struct field *field, unsigned int link)
{
	unsigned long long all = stored(gpu, field);

	if (field->id == 165)
		return link < all;
	return link == 0 ? all : 0;
}

static nvmlReturn_t read_field(const struct gpu *gpu, nvmlFieldValue_t *out)
{
	const struct field *field = find(out->fieldId);
	nvmlReturn_t failing = nvml_failing(gpu, out->fieldId);

	if (!field || failing)
		return failing ? failing : NVML_ERROR_NOT_SUPPORTED;
	if (field->scope == LINK && out->scopeId >= gpu->nvlink_links)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (field->scope == LINKS && (out->scopeId != ALL_LINKS || !gpu->nvlink_links))
		return NVML_ERROR_NOT_SUPPORTED;
	unsigned long long value = field->scope == LINK ? of_link(gpu, field, out->scopeId) : stored(gpu, field);
	out->value.ullVal = 0;
	if (field->wide) {
		out->valueType = NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
		out->value.ullVal = value;
	} else {
		out->valueType = NVML_VALUE_TYPE_UNSIGNED_INT;
		out->value.uiVal = (unsigned int)value;
	}
	return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
	struct gpu *gpu;
	struct timespec now;
	nvmlReturn_t ready = nvml_enter(device, GET_FIELD_VALUES, &gpu);

	if (ready || !values || count < 1)
		return ready ? ready : NVML_ERROR_INVALID_ARGUMENT;
	clock_gettime(CLOCK_REALTIME, &now);
	for (int i = 0; i < count; i++) {
		values[i].timestamp = now.tv_sec * 1000000ll + now.tv_nsec / 1000;
		values[i].latencyUsec = 0;
		values[i].nvmlReturn = read_field(gpu, &values[i]);
	}
	return NVML_SUCCESS;
}
