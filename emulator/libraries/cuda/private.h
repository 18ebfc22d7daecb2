/*
 * What lies between NVIDIA's own libnccl and the emulated GPU.
 *
 * NVIDIA's libnccl carries a CUDA runtime of its own, statically. Once it is mapped, take_over() turns the entries of
 * that runtime, in this process's memory only, into jumps to the functions of private_runtime.c; nothing of NCCL itself
 * is touched. What NCCL launches is played by nccl_kernel.c, which does to NCCL's FIFOs what the kernels would do.
 */
#ifndef PEERWATCH_PRIVATE_H
#define PEERWATCH_PRIVATE_H

#include "cudart.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NOT_SUPPORTED 801 /* cudaErrorNotSupported and CUDA_ERROR_NOT_SUPPORTED */

struct replacement {
	const char *name;
	void *function;
};

/* NULL: not played. */
void *find_runtime_function(const char *name);
void *find_driver_function(const char *name);

/* What the rest has to know of the library that was taken over. */
struct nccl_library {
	int version;			 /* 22703 for 2.27.3 */
	int cuda_version;		 /* 12000 for CUDA 12 */
	void *const *kernel_of_function; /* the library's own table: by number of a device function, its kernel */
	size_t functions;
};

extern struct nccl_library nccl_library;

/* The name of a kernel of NCCL's; NULL: it is none. */
const char *kernel_name(const void *kernel);

/* Enqueues one of NCCL's kernels; `arguments` are as NCCL packs them for this version. */
cudaError_t launch_nccl_kernel(cudaStream_t stream, unsigned int blocks, const void *arguments, size_t bytes);
/* Of the versions before 2.22: a communicator, a mask of channels, and the first work. */
cudaError_t launch_old_nccl_kernel(cudaStream_t stream, void *comm, uint64_t channels, void *work);

/* In the place of libnccl's own calls of the C library; the first one is memset. */
void *clear_memory(void *to, int value, size_t bytes);
long wire_send(int socket, const void *data, size_t bytes, int flags);
long wire_receive(int socket, void *data, size_t bytes, int flags);
int wire_poll(struct pollfd *files, nfds_t count, int milliseconds);
int wire_yield(void);
/* Bytes that go over a real socket for so many of the emulated ones. */
uint64_t wire_bytes(uint64_t emulated);

/* Sleep as long as it is worth while nothing happens: `idle` counts the looks in vain and is 0 after a success. */
void rest(unsigned int *idle);

#endif
