#define _GNU_SOURCE
#include "fabric.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct fabric *shared;
static uint32_t self;
static uint64_t seed;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static struct fabric *map_private(void)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	struct fabric *fabric = mmap(NULL, FABRIC_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (fabric == MAP_FAILED)
		return NULL;
	fabric->head = (struct fabric_head){
	    .magic = FABRIC_MAGIC, .version = FABRIC_VERSION, .ranks = 1, .gpus = 1, .bandwidth = 1e10};
	for (int i = 0; i < FABRIC_RANKS; i++)
		fabric->ranks[i].compute_scale = fabric->ranks[i].link_scale = fabric->ranks[i].copy_scale =
		    fabric->ranks[i].throttle = 1.0;
	return fabric;
}

static struct fabric *map_file(const char *path)
{
	struct fabric *fabric = MAP_FAILED;
	struct stat stat;
	int fd = open(path, O_RDWR | O_CLOEXEC);

	if (fd >= 0 && fstat(fd, &stat) == 0 && (size_t)stat.st_size >= FABRIC_BYTES)
		fabric = mmap(NULL, FABRIC_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	if (fabric == MAP_FAILED || fabric->head.magic != FABRIC_MAGIC || fabric->head.version != FABRIC_VERSION) {
		fprintf(stderr, "PEERWATCH_FABRIC=%s is not a fabric of this version\n", path);
		return NULL;
	}
	return fabric;
}

static void open_once(void)
{
	const char *path = getenv("PEERWATCH_FABRIC"), *rank = getenv("PEERWATCH_RANK");

	if (getenv("PEERWATCH_SEED"))
		seed = strtoull(getenv("PEERWATCH_SEED"), NULL, 10);
	self = rank ? (uint32_t)atoi(rank) % FABRIC_RANKS : 0;
	shared = path ? map_file(path) : map_private();
}

struct fabric *fabric_open(void)
{
	pthread_once(&opened, open_once);
	return shared;
}

uint32_t fabric_self(void)
{
	fabric_open();
	return self;
}

struct fabric_rank *fabric_control(void)
{
	return fabric_open() ? &shared->ranks[self] : NULL;
}

double fabric_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double fabric_jitter(void)
{
	static _Atomic uint64_t threads;
	static __thread uint64_t state;

	/* each thread has a sequence of its own, the same in every run with the same seed */
	fabric_open();
	if (!state)
		state = (seed + 1) * 0x9e3779b97f4a7c15ull + ++threads * 0xbf58476d1ce4e5b9ull;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	/* uniform within 1.7 %, hence a standard deviation of 1 % */
	return 1.0 + 0.034 * ((double)(state >> 11) / 9007199254740992.0 - 0.5);
}

uint32_t fabric_word(void)
{
	return atomic_load(&shared->ranks[self].word);
}

void fabric_wait(uint32_t seen, double seconds)
{
	struct timespec limit;

	if (seconds <= 0)
		return;
	limit.tv_sec = (time_t)seconds;
	limit.tv_nsec = (long)((seconds - (double)limit.tv_sec) * 1e9);
	syscall(SYS_futex, &shared->ranks[self].word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void fabric_wake(uint32_t rank)
{
	atomic_fetch_add(&shared->ranks[rank].word, 1);
	syscall(SYS_futex, &shared->ranks[rank].word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void fabric_wake_member(struct fabric_group *group, int member)
{
	uint32_t owner = atomic_load(&group->members[member].owner);

	if (owner)
		fabric_wake(owner - 1);
}

void fabric_wake_group(struct fabric_group *group)
{
	int nranks = (int)atomic_load(&group->nranks);

	for (int i = 0; i < nranks; i++)
		fabric_wake_member(group, i);
}

static struct fabric_group *find_group(uint64_t key)
{
	for (uint64_t i = 0; i < FABRIC_GROUPS; i++) {
		struct fabric_group *group = &shared->groups[(key + i) % FABRIC_GROUPS];
		uint64_t found = 0;

		if (atomic_compare_exchange_strong(&group->key, &found, key) || found == key)
			return group;
	}
	return NULL;
}

struct fabric_group *fabric_join(uint64_t key, int nranks, int member)
{
	struct fabric_group *group = fabric_open() ? find_group(key) : NULL;
	uint32_t size = 0, owner = 0;

	if (!group)
		return NULL;
	if (!atomic_compare_exchange_strong(&group->nranks, &size, (uint32_t)nranks) && size != (uint32_t)nranks)
		return NULL;
	if (!atomic_compare_exchange_strong(&group->members[member].owner, &owner, self + 1))
		return NULL;
	if (fabric_joined(group))
		fabric_wake_group(group);
	return group;
}

bool fabric_joined(struct fabric_group *group)
{
	int nranks = (int)atomic_load(&group->nranks);

	for (int i = 0; i < nranks; i++)
		if (!atomic_load(&group->members[i].owner))
			return false;
	return true;
}

void fabric_announce(struct fabric_group *group, int member, enum fabric_lane lane, uint64_t count, uint64_t value)
{
	struct fabric_announcement *own = &group->members[member].lanes[lane];

	atomic_store(&own->value[count % FABRIC_VALUES], value);
	atomic_store(&own->count, count);
	if (fabric_announced(group, lane, count))
		fabric_wake_group(group);
}

bool fabric_announced(struct fabric_group *group, enum fabric_lane lane, uint64_t count)
{
	int nranks = (int)atomic_load(&group->nranks);

	for (int i = 0; i < nranks; i++)
		if (atomic_load(&group->members[i].lanes[lane].count) < count)
			return false;
	return true;
}

uint64_t fabric_value(struct fabric_group *group, int member, enum fabric_lane lane, uint64_t count)
{
	return atomic_load(&group->members[member].lanes[lane].value[count % FABRIC_VALUES]);
}
