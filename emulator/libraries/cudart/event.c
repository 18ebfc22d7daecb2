/* Events of the emulated libcudart: a mark on a stream, done once the stream has come that far. */
#include "cudart.h"

#include "stream.h"

#include <pthread.h>
#include <stdlib.h>

struct CUevent_st {
	pthread_mutex_t lock;
	struct stream_mark mark; /* no stream: never recorded, which counts as done */
};

CUDA_API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
	(void)flags;
	if (!event || !(*event = calloc(1, sizeof(**event))))
		return event ? cudaErrorMemoryAllocation : cudaErrorInvalidValue;
	pthread_mutex_init(&(*event)->lock, NULL);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	if (!event || !(*event = calloc(1, sizeof(**event))))
		return event ? cudaErrorMemoryAllocation : cudaErrorInvalidValue;
	pthread_mutex_init(&(*event)->lock, NULL);
	return cudaSuccess;
}

static struct stream_mark hold_mark(cudaEvent_t event)
{
	struct stream_mark mark;

	pthread_mutex_lock(&event->lock);
	mark = event->mark;
	if (mark.stream)
		stream_hold(mark.stream);
	pthread_mutex_unlock(&event->lock);
	return mark;
}

static void swap_mark(cudaEvent_t event, struct stream_mark mark)
{
	struct stream_mark old;

	pthread_mutex_lock(&event->lock);
	old = event->mark;
	event->mark = mark;
	pthread_mutex_unlock(&event->lock);
	if (old.stream)
		stream_release(old.stream);
}

CUDA_API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	if (!event)
		return cudaErrorInvalidResourceHandle;
	stream = stream_pick(stream);
	stream_hold(stream);
	swap_mark(event, (struct stream_mark){stream, stream_pushed(stream)});
	return cudaSuccess;
}

CUDA_API cudaError_t cudaEventQuery(cudaEvent_t event)
{
	struct stream_mark mark;
	bool done;

	if (!event)
		return cudaErrorInvalidResourceHandle;
	mark = hold_mark(event);
	if (!mark.stream)
		return cudaSuccess;
	done = stream_reached(mark.stream, mark.count);
	stream_release(mark.stream);
	return done ? cudaSuccess : cudaErrorNotReady;
}

static void wait_mark(void *argument)
{
	struct stream_mark *mark = argument;

	stream_wait(mark->stream, mark->count);
	stream_release(mark->stream);
	free(mark);
}

/* A mark of its own for a waiter, so that the event may be recorded again or destroyed. */
static struct stream_mark *copy_mark(cudaEvent_t event)
{
	struct stream_mark mark = hold_mark(event), *copy = NULL;

	if (mark.stream && (copy = malloc(sizeof(*copy))))
		*copy = mark;
	return copy;
}

cudaError_t event_synchronize(cudaEvent_t event)
{
	struct stream_mark *mark;

	if (!event)
		return cudaErrorInvalidResourceHandle;
	if ((mark = copy_mark(event)))
		wait_mark(mark);
	return cudaSuccess;
}

CUDA_API cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	return event_synchronize(event);
}

CUDA_API cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
	struct stream_mark *mark;

	(void)flags;
	if (!event)
		return cudaErrorInvalidResourceHandle;
	/* a captured graph runs in the order in which it was captured */
	if (stream_captured(NULL) || !(mark = copy_mark(event)))
		return cudaSuccess;
	return stream_push(stream_pick(stream), wait_mark, mark) ? cudaSuccess : cudaErrorMemoryAllocation;
}

CUDA_API cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	if (!event)
		return cudaErrorInvalidResourceHandle;
	swap_mark(event, (struct stream_mark){NULL, 0});
	pthread_mutex_destroy(&event->lock);
	free(event);
	return cudaSuccess;
}
