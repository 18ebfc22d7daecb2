#define _GNU_SOURCE
#include "stream.h"

#include "fabric.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct work {
	cudaHostFn_t fn; /* NULL: a kernel */
	void *argument;
	double seconds;
	bool nccl;
	bool first;   /* of a graph: does not wait for its other work */
	size_t bytes; /* of the argument, which the function frees; 0: it does not */
	struct work *next;
};

struct stream_graph {
	struct work *first, *rest;
};

struct CUstream_st {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t worker;
	struct work *head, **tail;
	uint64_t pushed, finished;
	bool closed;
	_Atomic int holders;
	struct CUstream_st *next;
};

static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *all_streams, *default_stream;

/* Adds to one of the rank's own clocks in the fabric, which the threads of several streams share. */
static void account(double *clock, double seconds)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&lock);
	*clock += seconds;
	pthread_mutex_unlock(&lock);
}

void stream_spend(double seconds)
{
	double begin = fabric_now(), end = begin + seconds * fabric_jitter();
	struct timespec until = {.tv_sec = (time_t)end, .tv_nsec = (long)((end - (double)(time_t)end) * 1e9)};

	if (seconds <= 0)
		return;
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
		continue;
	if (fabric_control())
		account(&fabric_control()->kernel_seconds, fabric_now() - begin);
	/* nothing that a lost GPU was given ever ends */
	while (fabric_control() && fabric_control()->lost)
		clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = 50000000}, NULL);
}

static void run_kernel(double seconds)
{
	struct fabric_rank *control = fabric_control();

	stream_spend(seconds * (control ? control->compute_scale * control->throttle : 1.0));
}

/* The next piece of work, or NULL when the stream is closed and empty. */
static struct work *take_work(struct CUstream_st *stream)
{
	struct work *work;

	pthread_mutex_lock(&stream->lock);
	while (!stream->head && !stream->closed)
		pthread_cond_wait(&stream->changed, &stream->lock);
	work = stream->head;
	if (work) {
		stream->head = work->next;
		if (!stream->head)
			stream->tail = &stream->head;
	}
	pthread_mutex_unlock(&stream->lock);
	return work;
}

static void run(const struct work *work)
{
	double begin = fabric_now();

	if (!work->fn) {
		run_kernel(work->seconds);
		return;
	}
	work->fn(work->argument);
	if (work->nccl && fabric_control())
		account(&fabric_control()->nccl_seconds, fabric_now() - begin);
}

static void *work_off(void *argument)
{
	struct CUstream_st *stream = argument;

	for (struct work *work; (work = take_work(stream)); free(work)) {
		run(work);
		pthread_mutex_lock(&stream->lock);
		stream->finished++;
		pthread_cond_broadcast(&stream->changed);
		pthread_mutex_unlock(&stream->lock);
	}
	stream_release(stream);
	return NULL;
}

struct CUstream_st *stream_create(void)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return NULL;
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->changed, NULL);
	stream->tail = &stream->head;
	stream->holders = 2; /* the creator and the worker */
	if (pthread_create(&stream->worker, NULL, work_off, stream) != 0) {
		free(stream);
		return NULL;
	}
	pthread_setname_np(stream->worker, "cuda-stream");
	pthread_detach(stream->worker);
	pthread_mutex_lock(&all_lock);
	stream->next = all_streams;
	all_streams = stream;
	pthread_mutex_unlock(&all_lock);
	return stream;
}

static pthread_once_t default_once = PTHREAD_ONCE_INIT;

static void create_default(void)
{
	default_stream = stream_create();
}

struct CUstream_st *stream_pick(cudaStream_t handle)
{
	if ((uintptr_t)handle > 2)
		return handle;
	pthread_once(&default_once, create_default);
	return default_stream;
}

void stream_hold(struct CUstream_st *stream)
{
	atomic_fetch_add(&stream->holders, 1);
}

void stream_release(struct CUstream_st *stream)
{
	if (atomic_fetch_sub(&stream->holders, 1) == 1) {
		pthread_cond_destroy(&stream->changed);
		pthread_mutex_destroy(&stream->lock);
		free(stream);
	}
}

static __thread struct CUstream_st *origin;
static __thread struct stream_graph *captured;

static struct work *copy_work(struct work work)
{
	struct work *copy = malloc(sizeof(*copy));

	if (copy)
		*copy = work;
	return copy;
}

static bool add_to_graph(struct stream_graph *graph, struct work work)
{
	struct work **at = work.first ? &graph->first : &graph->rest;

	while (*at)
		at = &(*at)->next;
	return (*at = copy_work(work));
}

static bool push_work(struct CUstream_st *stream, struct work work)
{
	struct work *copy;

	if (captured)
		return add_to_graph(captured, work);
	copy = copy_work(work);
	if (!copy)
		return false;
	pthread_mutex_lock(&stream->lock);
	*stream->tail = copy;
	stream->tail = &copy->next;
	stream->pushed++;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
	return true;
}

void stream_capture(struct CUstream_st *stream, struct stream_graph *graph)
{
	origin = stream;
	captured = graph;
}

struct stream_graph *stream_captured(const struct CUstream_st *stream)
{
	return !stream || stream == origin ? captured : NULL;
}

struct stream_graph *stream_graph_create(void)
{
	return calloc(1, sizeof(struct stream_graph));
}

static void free_works(struct work *work)
{
	while (work) {
		struct work *next = work->next;

		if (work->bytes)
			free(work->argument);
		free(work);
		work = next;
	}
}

void stream_graph_free(struct stream_graph *graph)
{
	free_works(graph->first);
	free_works(graph->rest);
	free(graph);
}

static bool push_works(struct CUstream_st *stream, const struct work *work)
{
	for (; work; work = work->next) {
		struct work copy = *work;

		copy.next = NULL;
		if (work->bytes) {
			copy.argument = malloc(work->bytes);
			if (!copy.argument)
				return false;
			memcpy(copy.argument, work->argument, work->bytes);
		}
		if (!push_work(stream, copy))
			return false;
	}
	return true;
}

bool stream_push_graph(struct CUstream_st *stream, const struct stream_graph *graph)
{
	return push_works(stream, graph->first) && push_works(stream, graph->rest);
}

bool stream_push_first(struct CUstream_st *stream, cudaHostFn_t fn, void *argument)
{
	return push_work(stream, (struct work){.fn = fn, .argument = argument, .first = true});
}

bool stream_push_block(struct CUstream_st *stream, cudaHostFn_t fn, void *block, size_t bytes, bool nccl)
{
	return push_work(stream, (struct work){.fn = fn, .argument = block, .bytes = bytes, .nccl = nccl});
}

bool stream_push(struct CUstream_st *stream, cudaHostFn_t fn, void *argument)
{
	return push_work(stream, (struct work){.fn = fn, .argument = argument});
}

bool stream_push_nccl(struct CUstream_st *stream, cudaHostFn_t fn, void *argument)
{
	return push_work(stream, (struct work){.fn = fn, .argument = argument, .nccl = true});
}

bool stream_push_kernel(struct CUstream_st *stream, double seconds)
{
	return push_work(stream, (struct work){.seconds = seconds});
}

uint64_t stream_pushed(struct CUstream_st *stream)
{
	pthread_mutex_lock(&stream->lock);
	uint64_t pushed = stream->pushed;

	pthread_mutex_unlock(&stream->lock);
	return pushed;
}

bool stream_reached(struct CUstream_st *stream, uint64_t count)
{
	pthread_mutex_lock(&stream->lock);
	bool reached = stream->finished >= count;

	pthread_mutex_unlock(&stream->lock);
	return reached;
}

void stream_wait(struct CUstream_st *stream, uint64_t count)
{
	pthread_mutex_lock(&stream->lock);
	while (stream->finished < count)
		pthread_cond_wait(&stream->changed, &stream->lock);
	pthread_mutex_unlock(&stream->lock);
}

void stream_synchronize(cudaStream_t handle)
{
	struct CUstream_st *stream = stream_pick(handle);

	stream_wait(stream, stream_pushed(stream));
}

void stream_destroy(struct CUstream_st *stream)
{
	pthread_mutex_lock(&all_lock);
	for (struct CUstream_st **at = &all_streams; *at; at = &(*at)->next)
		if (*at == stream) {
			*at = stream->next;
			break;
		}
	pthread_mutex_unlock(&all_lock);
	pthread_mutex_lock(&stream->lock);
	stream->closed = true;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
	stream_release(stream);
}

void stream_wait_all(void)
{
	struct stream_mark marks[64];
	size_t count = 0;

	/* marks are taken first, so that a stream may be created or destroyed by another thread meanwhile */
	pthread_mutex_lock(&all_lock);
	for (struct CUstream_st *at = all_streams; at && count < 64; at = at->next) {
		stream_hold(at);
		marks[count++] = (struct stream_mark){at, stream_pushed(at)};
	}
	pthread_mutex_unlock(&all_lock);
	for (size_t i = 0; i < count; i++) {
		stream_wait(marks[i].stream, marks[i].count);
		stream_release(marks[i].stream);
	}
}
