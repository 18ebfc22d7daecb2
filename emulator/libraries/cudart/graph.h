/* What the CUDA runtime inside of NVIDIA's libnccl asks of graphs. */
#ifndef PEERWATCH_GRAPH_H
#define PEERWATCH_GRAPH_H

#include "cudart.h"

#include <stdbool.h>

/* The graph that this thread captures from the stream, and its number; NULL and 0: none. */
void *graph_captured(cudaStream_t stream, unsigned long long *id);
/* A function that is called when the graphs that retain it are destroyed; each graph gets one of its own. */
void *graph_object(cudaHostFn_t destroy, void *argument);
bool graph_retain(void *graph, void *object);

#endif
