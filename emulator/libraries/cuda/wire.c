/*
 * The wire of an emulated machine: what NVIDIA's libnccl sends through its sockets, at the rate and with the faults
 * that the fabric orders for this rank. Its polling threads rest between two looks: a real machine has a core for each.
 */
#define _GNU_SOURCE
#include "private.h"

#include "fabric.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>

/* A step of NCCL is half a megabyte; so many emulated bytes are one real one, that loopback and two cores can carry. */
#define SHRINK 256
#define BURST_S 0.002
#define LEAST_REST_NS 40000l
#define MOST_DOUBLINGS 4
#define RANKS_OF_TWO_CORES 8 /* of twice as many the idle threads rest twice as long */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static double free_at; /* when the wire has carried what it was given */
static __thread unsigned int idle;
static __thread bool yields; /* between its looks, and so rests there */

uint64_t wire_bytes(uint64_t emulated)
{
	return emulated / SHRINK + 1;
}

static unsigned int most_doublings(void)
{
	struct fabric *fabric = fabric_open();
	unsigned int most = MOST_DOUBLINGS;

	for (uint32_t ranks = fabric ? fabric->head.ranks : 0; ranks > RANKS_OF_TWO_CORES; ranks /= 2)
		++most;
	return most;
}

void rest(unsigned int *looks)
{
	unsigned int most = most_doublings(), doublings = *looks < most ? *looks : most;

	++*looks;
	clock_nanosleep(CLOCK_MONOTONIC, 0, &(struct timespec){.tv_nsec = LEAST_REST_NS << doublings}, NULL);
}

/* Whether the wire takes anything now. */
static bool wire_is_free(struct fabric_rank *control)
{
	return !control->link_down && free_at <= fabric_now() + BURST_S;
}

static void occupy(struct fabric_rank *control, long bytes)
{
	double now = fabric_now(), rate = fabric_open()->head.bandwidth / SHRINK / control->link_scale;

	free_at = (free_at > now ? free_at : now) + (double)bytes / rate;
}

long wire_send(int socket, const void *data, size_t bytes, int flags)
{
	struct fabric_rank *control = fabric_control();
	long sent = -1;

	if (!control || !(flags & MSG_DONTWAIT)) /* a message of the setup, not of a collective */
		return send(socket, data, bytes, flags);
	pthread_mutex_lock(&lock);
	if (wire_is_free(control)) {
		sent = send(socket, data, bytes, flags);
		if (sent > 0)
			occupy(control, sent);
	} else {
		errno = EAGAIN;
	}
	pthread_mutex_unlock(&lock);
	if (sent > 0)
		idle = 0;
	return sent;
}

long wire_receive(int socket, void *data, size_t bytes, int flags)
{
	long received = recv(socket, data, bytes, flags);
	int error = errno;

	if (received > 0)
		idle = 0;
	else if (received < 0 && !yields) /* the setup, which asks again at once */
		rest(&idle);
	errno = error;
	return received;
}

/* The proxy's service asks without waiting while a rank is still to connect. */
int wire_poll(struct pollfd *files, nfds_t count, int milliseconds)
{
	return poll(files, count, milliseconds ? milliseconds : 1);
}

/* A fault: the proxy thread sleeps amid its transfers, at random, every other second or so. */
static void oversleep(void)
{
	static __thread double next;
	struct fabric_rank *control = fabric_control();
	uint32_t milliseconds = control ? control->proxy_sleep_ms : 0;

	if (!milliseconds || fabric_now() < next)
		return;
	clock_nanosleep(CLOCK_MONOTONIC, 0,
			&(struct timespec){.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000l},
			NULL);
	next = fabric_now() + 1.0 + 30.0 * (fabric_jitter() - 0.983);
}

int wire_yield(void)
{
	yields = true;
	oversleep();
	rest(&idle);
	return 0;
}
