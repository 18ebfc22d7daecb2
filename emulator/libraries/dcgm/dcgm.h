/* What of NVIDIA's dcgm_agent.h, dcgm_structs.h and dcgm_fields.h the emulated libdcgm has: the same names and layouts.
 */
#ifndef PEERWATCH_DCGM_H
#define PEERWATCH_DCGM_H

#include <stdint.h>

#define DCGM_API __attribute__((visibility("default")))
#define VERSION_OF(type, number) ((unsigned int)(sizeof(type) | (number) << 24))

typedef enum {
	DCGM_ST_OK = 0,
	DCGM_ST_BADPARAM = -1,
	DCGM_ST_UNINITIALIZED = -10,
	DCGM_ST_VER_MISMATCH = -12,
	DCGM_ST_UNKNOWN_FIELD = -13,
	DCGM_ST_NO_DATA = -14,
	DCGM_ST_NOT_WATCHED = -16,
	DCGM_ST_CONNECTION_NOT_VALID = -21,
	DCGM_ST_MAX_LIMIT = -24,
	DCGM_ST_DUPLICATE_KEY = -26,
	DCGM_ST_INSUFFICIENT_SIZE = -31,
	DCGM_ST_IN_USE = -34,
	DCGM_ST_GROUP_IS_EMPTY = -35,
	DCGM_ST_PROFILING_NOT_SUPPORTED = -36,
} dcgmReturn_t;

enum { DCGM_FE_GPU = 1, DCGM_FE_SWITCH = 3, DCGM_FE_LINK = 6 };
enum { DCGM_GROUP_DEFAULT = 0, DCGM_GROUP_DEFAULT_NVSWITCHES = 2 };

#define DCGM_INT64_BLANK 0x7ffffffffffffff0ll
#define DCGM_FP64_BLANK 140737488355328.0
#define DCGM_FV_FLAG_LIVE_DATA 1
#define DCGM_FI_DEV_NVML_INDEX 52
#define DCGM_FI_DEV_NVSWITCH_LINK_FATAL_ERRORS 782 /* 783 non-fatal, 784 replay, 785 recovery, 787 CRC, 788 ECC */
#define DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS 856
#define DCGM_FI_DEV_NVSWITCH_NON_FATAL_ERRORS 857
#define DCGM_FI_DEV_NVSWITCH_TEMPERATURE_CURRENT 858
#define DCGM_FI_DEV_NVSWITCH_RESET_REQUIRED 864
#define DCGM_FI_DEV_NVSWITCH_LINK_STATUS 870
#define DCGM_FI_PROF_GR_ENGINE_ACTIVE 1001
#define DCGM_FI_PROF_PIPE_FP16_ACTIVE 1008

typedef uintptr_t dcgmHandle_t, dcgmGpuGrp_t, dcgmFieldGrp_t;

typedef struct {
	unsigned int version, persistAfterDisconnect, timeoutMs, addressIsUnixSocket;
} dcgmConnectV2Params_v2;

typedef struct {
	unsigned int entityGroupId, entityId;
} dcgmGroupEntityPair_t;

typedef struct {
	unsigned int version, entityGroupId, entityId;
	unsigned short fieldId, fieldType;
	int status;
	unsigned int unused;
	int64_t ts;
	union {
		int64_t i64;
		double dbl;
		char blob[4096];
	} value;
} dcgmFieldValue_v2;

enum { DCGM_HEALTH_RESULT_WARN = 10, DCGM_HEALTH_RESULT_FAIL = 20 };
enum {
	DCGM_HEALTH_WATCH_PCIE = 0x1,
	DCGM_HEALTH_WATCH_NVLINK = 0x2,
	DCGM_HEALTH_WATCH_MEM = 0x10,
	DCGM_HEALTH_WATCH_THERMAL = 0x80,
	DCGM_HEALTH_WATCH_POWER = 0x100,
	DCGM_HEALTH_WATCH_NVSWITCH_NONFATAL = 0x400,
	DCGM_HEALTH_WATCH_NVSWITCH_FATAL = 0x800,
};

typedef struct {
	unsigned int system, health;
	struct {
		char msg[1024];
		unsigned int code;
	} error;
	dcgmGroupEntityPair_t entityInfo;
} dcgmIncidentInfo_t;

#define INCIDENTS_V4 64
#define INCIDENTS_V5 1024

typedef struct {
	unsigned int version, overallHealth, incidentCount;
	dcgmIncidentInfo_t incidents[INCIDENTS_V4];
} dcgmHealthResponse_v4;

typedef struct {
	unsigned int version, overallHealth, incidentCount;
	dcgmIncidentInfo_t incidents[INCIDENTS_V5];
} dcgmHealthResponse_v5;

typedef struct {
	unsigned int version;
	dcgmGpuGrp_t groupId;
	unsigned int systems;
	long long updateInterval;
	double maxKeepAge;
} dcgmHealthSetParams_v2;

#endif
