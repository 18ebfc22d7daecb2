/* The GPU states that $EMULATED_GPUS names: nvml_state.py writes them, the emulated libnvidia-ml and libdcgm read them.
 *
 * The layout is that of nvml_layout.py, which says what each field means; units are in the names.
 */
#ifndef PEERWATCH_GPUS_H
#define PEERWATCH_GPUS_H

#include <stdint.h>

#define GPUS_MAGIC 0x3173757067776570ull /* "pewgpus1" */
#define GPUS_MAX 16
#define GPUS_FAILING 24
#define GPUS_PROCESSES 16
#define GPUS_EVENTS 64
#define GPUS_SWITCHES 8

struct gpu_failing {
	uint32_t what; /* a field's id; FUNCTION_BASE and on: a function; 0: free */
	uint32_t error;
};

struct gpu_process {
	uint32_t pid;
	uint32_t filler;
	uint64_t memory_bytes;
};

struct gpu_event {
	uint64_t type;
	uint64_t data;
};

struct gpu {
	uint32_t absent; /* not there when the driver counts */
	uint32_t hang;	 /* calls on this GPU do not return while it is set */
	uint32_t error;	 /* every call on this GPU gives this */
	uint32_t processes;
	char uuid[96], name[96], bus_id[32], serial[32];

	double duty_cycle_ratio, power_watts, power_limit_watts, temperature_celsius, memory_temperature_celsius;
	double sm_clock_hertz, memory_clock_hertz;
	double graphics_active_ratio, sm_active_ratio, sm_occupancy_ratio, tensor_active_ratio, dram_active_ratio;
	double fp64_active_ratio, fp32_active_ratio, fp16_active_ratio;
	double throttle_power_seconds_total, throttle_thermal_seconds_total, power_brake_seconds_total;
	double energy_joules_total;

	uint64_t memory_total_bytes, memory_used_bytes, memory_reserved_bytes;
	uint64_t pcie_transmit_bytes_total, pcie_receive_bytes_total;
	uint64_t nvlink_transmit_bytes_total, nvlink_receive_bytes_total;
	uint64_t pcie_generation, pcie_width, pcie_replay_total;
	uint64_t pcie_correctable_errors_total, pcie_fatal_errors_total;
	uint64_t nvlink_crc_errors_total, nvlink_replays_total, nvlink_recoveries_total;
	uint64_t nvlink_links, nvlink_links_up;
	uint64_t ecc_corrected_total, ecc_uncorrected_total;
	uint64_t ecc_corrected_lifetime_total, ecc_uncorrected_lifetime_total;
	uint64_t remapped_rows_corrected, remapped_rows_uncorrected, remap_pending, remap_failed;
	uint64_t recovery_action, throttle_reasons, mig, gpm;

	uint64_t events_written; /* ever; the event of number n lies at n % GPUS_EVENTS */
	struct gpu_failing failing[GPUS_FAILING];
	struct gpu_process process[GPUS_PROCESSES];
	struct gpu_event event[GPUS_EVENTS];
};

struct nvswitch {
	uint64_t temperature_celsius, reset_required, links_up;
	uint64_t fatal_sxid, nonfatal_sxid; /* the last that was reported; 0: none */
	uint64_t fatal_errors, nonfatal_errors, replays, recoveries, crc_errors, ecc_errors; /* of each link */
};

struct gpus {
	uint64_t magic;
	uint32_t size; /* of struct gpu: tells a layout from another */
	uint32_t count;
	uint32_t driver_error; /* what every call gives, the first one included: 0, or the driver is not loaded */
	uint32_t loads;	       /* times the driver was loaded: handles of another time are void */
	uint32_t hang;	       /* no call returns while it is set */
	uint32_t filler;
	char driver_version[80];
	struct gpu gpu[GPUS_MAX];
	uint32_t dcgm_starts;	  /* times that a host engine of DCGM was started; 0: none runs */
	uint32_t dcgm_version;	  /* 3 or 4 */
	uint32_t dcgm_hang;	  /* no call of DCGM returns while it is set */
	uint32_t profiling_error; /* what a watch of profiling fields fails with, without its sign; 0: it does not */
	uint32_t switches;
	uint32_t more_filler;
	struct nvswitch nvswitch[GPUS_SWITCHES];
};

#endif
