/* What the files of the emulated libdcgm share: the connection, its groups and what is watched. */
#ifndef PEERWATCH_DCGM_ENGINE_H
#define PEERWATCH_DCGM_ENGINE_H

#include "dcgm.h"
#include "state.h"

#define LINKS_OF_SWITCH 3 /* the emulated switches have so many, each with as many errors as the others */

struct group {
	unsigned int entities; /* DCGM_FE_GPU or DCGM_FE_SWITCH; 0: there is no such group */
	unsigned int systems;  /* health watches */
	int checked;	       /* a first check has noted what the counters were */
};

/* Whether this call may go on: the library is initialised, and the host engine that was connected to still runs. */
dcgmReturn_t dcgm_ready(dcgmHandle_t handle);
struct gpus *dcgm_state(void);
/* NULL: there is none of this number. */
struct group *dcgm_group(dcgmGpuGrp_t number);

#endif
