/* The proxy thread: one a process, it moves every operation of every communicator. */
#define _GNU_SOURCE
#include "communicator.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t finished = PTHREAD_COND_INITIALIZER;
static pthread_once_t started = PTHREAD_ONCE_INIT;
static struct nccl_op *arriving, *moving; /* the second belongs to the thread alone */

static void take_arrivals(void)
{
	struct nccl_op **tail = &moving;

	while (*tail)
		tail = &(*tail)->after;
	pthread_mutex_lock(&lock);
	*tail = arriving;
	arriving = NULL;
	pthread_mutex_unlock(&lock);
	for (struct nccl_op *op = *tail; op; op = op->after)
		op_activate(op);
}

static void finish_op(struct nccl_op *op)
{
	op_deactivate(op);
	pthread_mutex_lock(&lock);
	if (--op->batch->remaining == 0)
		pthread_cond_broadcast(&finished);
	pthread_mutex_unlock(&lock);
}

/* Advances everything once; the time of the next thing to do. */
static double advance_all(void)
{
	double now = fabric_now(), next = INFINITY;

	for (struct nccl_op **at = &moving; *at;) {
		struct nccl_op *op = *at;
		double again = op_advance(op, now);

		if (op->stage == OP_DONE || comm_aborted(op->comm)) {
			*at = op->after;
			finish_op(op);
			next = now;
			continue;
		}
		next = again < next ? again : next;
		at = &op->after;
	}
	return next;
}

/* A fault: the thread sleeps amid its transfers, at random, every other second or so. */
static void oversleep(void)
{
	static double next;
	uint32_t milliseconds = fabric_control()->proxy_sleep_ms;

	if (!milliseconds || !moving || fabric_now() < next)
		return;
	usleep(1000 * milliseconds);
	next = fabric_now() + 1.0 + 30.0 * (fabric_jitter() - 0.983);
}

static void *progress(void *unused)
{
	(void)unused;
	for (;;) {
		uint32_t seen = fabric_word();

		take_arrivals();
		double next = advance_all();

		oversleep();
		double left = next - fabric_now();

		/* the limit is only a belt beside the braces: every change comes with a wake-up */
		fabric_wait(seen, left < 1.0 ? left : 1.0);
	}
	return NULL;
}

static void start(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, progress, NULL) != 0)
		abort();
	pthread_setname_np(thread, "NCCL Progress");
	pthread_detach(thread);
}

void proxy_nudge(void)
{
	fabric_wake(fabric_self());
}

static void append(struct nccl_op *op)
{
	struct nccl_op **tail = &arriving;

	while (*tail)
		tail = &(*tail)->after;
	op->after = NULL;
	*tail = op;
}

/* A communicator of one rank has nothing to move. */
void proxy_submit(struct nccl_batch *batch)
{
	bool left;

	pthread_mutex_lock(&lock);
	for (struct nccl_op *op = batch->ops; op; op = op->next) {
		if (op->comm->group)
			append(op);
		else
			batch->remaining--;
	}
	left = batch->remaining;
	pthread_mutex_unlock(&lock);
	if (left) {
		pthread_once(&started, start);
		proxy_nudge();
	}
}

void proxy_run_batch(void *argument)
{
	struct nccl_batch *batch = argument;

	batch->launched = true;
	proxy_nudge();
	pthread_mutex_lock(&lock);
	while (batch->remaining)
		pthread_cond_wait(&finished, &lock);
	pthread_mutex_unlock(&lock);
	while (batch->ops) {
		struct nccl_op *op = batch->ops;

		batch->ops = op->next;
		comm_release(op->comm);
		free(op);
	}
	free(batch);
}
