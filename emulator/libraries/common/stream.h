/* A stream: a queue and the one thread that works it off in order. */
#ifndef PEERWATCH_STREAM_H
#define PEERWATCH_STREAM_H

#include "cudart.h"

#include <stdbool.h>
#include <stdint.h>

/* A point in a stream's life: all work up to number `count`. Holds the stream alive. */
struct stream_mark {
	struct CUstream_st *stream;
	uint64_t count;
};

struct CUstream_st *stream_create(void);
/* The stream a handle stands for: NULL, 1 and 2 are the default ones. */
struct CUstream_st *stream_pick(cudaStream_t handle);
void stream_hold(struct CUstream_st *stream);
void stream_release(struct CUstream_st *stream);

/* All return false when memory is short. A kernel of NCCL's is a function here; another lasts `seconds` times the
 * rank's live compute_scale and throttle. */
bool stream_push(struct CUstream_st *stream, cudaHostFn_t fn, void *argument);
bool stream_push_nccl(struct CUstream_st *stream, cudaHostFn_t fn, void *argument);
bool stream_push_kernel(struct CUstream_st *stream, double seconds);

/* As stream_push, of a function that frees its argument, a block of so many bytes: a graph hands out copies of it. */
bool stream_push_block(struct CUstream_st *stream, cudaHostFn_t fn, void *block, size_t bytes, bool nccl);
/* As stream_push, for a function that in a graph waits for nothing but the graph's start. */
bool stream_push_first(struct CUstream_st *stream, cudaHostFn_t fn, void *argument);

/* What a thread pushes while it captures goes into a graph; NULL ends that. */
struct stream_graph;
void stream_capture(struct CUstream_st *origin, struct stream_graph *graph);
/* The graph that this thread captures from that stream; NULL: none. With no stream: from any. */
struct stream_graph *stream_captured(const struct CUstream_st *origin);
struct stream_graph *stream_graph_create(void);
void stream_graph_free(struct stream_graph *graph);
bool stream_push_graph(struct CUstream_st *stream, const struct stream_graph *graph);

/* What work does that takes this long: sleep, with jitter, and never come back from a lost GPU. */
void stream_spend(double seconds);

uint64_t stream_pushed(struct CUstream_st *stream);
bool stream_reached(struct CUstream_st *stream, uint64_t count);
void stream_wait(struct CUstream_st *stream, uint64_t count);
void stream_synchronize(cudaStream_t handle);

/* Ends the worker once its queue is empty and drops the creator's hold. */
void stream_destroy(struct CUstream_st *stream);

/* What cudaEventSynchronize does, past the public function and the probes on it. */
cudaError_t event_synchronize(cudaEvent_t event);

/* Waits for all work on all streams of the process. */
void stream_wait_all(void);

#endif
