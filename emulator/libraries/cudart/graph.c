/*
 * Graphs of the emulated libcudart. What a thread gives to streams while it captures is run by each launch, in that
 * order; NCCL's host functions come first, since in its graphs they wait for nothing. A pointer to a double is taken
 * for a graph as well: a kernel of so many seconds.
 */
#include "cudart.h"

#include "graph.h"
#include "stream.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#define OBJECTS 64

struct object { /* what ends with the graph */
	cudaHostFn_t destroy;
	void *argument;
};

struct CUgraph_st {
	struct stream_graph *work;
	unsigned long long id;
	int holders; /* the graph itself and what was instantiated of it */
	struct object objects[OBJECTS];
	size_t count;
	struct CUgraph_st *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUgraph_st *all_graphs;
static unsigned long long graphs_made;

static struct CUgraph_st *find_graph(const void *handle)
{
	struct CUgraph_st *found;

	pthread_mutex_lock(&lock);
	for (found = all_graphs; found && found != handle; found = found->next)
		continue;
	pthread_mutex_unlock(&lock);
	return found;
}

static struct CUgraph_st *graph_of(const struct stream_graph *work)
{
	struct CUgraph_st *found;

	pthread_mutex_lock(&lock);
	for (found = all_graphs; found && found->work != work; found = found->next)
		continue;
	pthread_mutex_unlock(&lock);
	return found;
}

void *graph_captured(cudaStream_t stream, unsigned long long *id)
{
	struct stream_graph *work = stream_captured(stream_pick(stream));
	struct CUgraph_st *graph = work ? graph_of(work) : NULL;

	*id = graph ? graph->id : 0;
	return graph;
}

bool graph_retain(void *handle, void *object)
{
	struct CUgraph_st *graph = find_graph(handle);

	if (!graph || graph->count == OBJECTS)
		return false;
	graph->objects[graph->count++] = *(struct object *)object;
	free(object);
	return true;
}

void *graph_object(cudaHostFn_t destroy, void *argument)
{
	struct object *object = malloc(sizeof(*object));

	if (object)
		*object = (struct object){destroy, argument};
	return object;
}

CUDA_API cudaError_t cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
	struct CUgraph_st *graph = calloc(1, sizeof(*graph));

	(void)mode;
	if (!graph || !(graph->work = stream_graph_create())) {
		free(graph);
		return cudaErrorMemoryAllocation;
	}
	graph->holders = 1;
	pthread_mutex_lock(&lock);
	graph->id = ++graphs_made;
	graph->next = all_graphs;
	all_graphs = graph;
	pthread_mutex_unlock(&lock);
	stream_capture(stream_pick(stream), graph->work);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	unsigned long long id;

	*graph = graph_captured(stream, &id);
	stream_capture(NULL, NULL);
	return *graph ? cudaSuccess : cudaErrorInvalidValue;
}

CUDA_API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	(void)flags;
	if (!find_graph(graph))
		return cudaErrorInvalidValue;
	__atomic_fetch_add(&graph->holders, 1, __ATOMIC_SEQ_CST);
	*exec = (cudaGraphExec_t)graph;
	return cudaSuccess;
}

static cudaError_t release(struct CUgraph_st *graph)
{
	if (!graph)
		return cudaErrorInvalidValue;
	if (__atomic_fetch_sub(&graph->holders, 1, __ATOMIC_SEQ_CST) > 1)
		return cudaSuccess;
	pthread_mutex_lock(&lock);
	for (struct CUgraph_st **at = &all_graphs; *at; at = &(*at)->next)
		if (*at == graph) {
			*at = graph->next;
			break;
		}
	pthread_mutex_unlock(&lock);
	for (size_t i = 0; i < graph->count; i++)
		graph->objects[i].destroy(graph->objects[i].argument);
	stream_graph_free(graph->work);
	free(graph);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	return release(find_graph(graph));
}

CUDA_API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	return release(find_graph(exec));
}

CUDA_API cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	struct CUgraph_st *graph = find_graph(exec);
	bool pushed;

	if (!exec)
		return cudaErrorInvalidValue;
	pushed = graph ? stream_push_graph(stream_pick(stream), graph->work)
		       : stream_push_kernel(stream_pick(stream), *(const double *)(const void *)exec);
	return pushed ? cudaSuccess : cudaErrorMemoryAllocation;
}
