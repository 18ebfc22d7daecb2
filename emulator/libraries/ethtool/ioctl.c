/* Preloaded into a reader: answers what ioctl asks of emulated network interfaces, and hands on all else.
 *
 * $EMULATED_ETHTOOL is a folder with a file for each interface: records of a name (32 bytes) and a count (8 bytes). The
 * first record's count is the hardware address. Layouts of answers: include/uapi/linux/ethtool.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RECORDS_MAX 4096

struct record {
	char name[ETH_GSTRING_LEN];
	uint64_t count;
};

/* How many records the interface has, the address included; 0 where it is not emulated. */
static int load(const char *interface, struct record *records)
{
	const char *folder = getenv("EMULATED_ETHTOOL");
	char path[4096];

	if (!folder || strchr(interface, '/') || interface[0] == '.' || !interface[0])
		return 0;
	if (snprintf(path, sizeof(path), "%s/%.*s", folder, IFNAMSIZ, interface) >= (int)sizeof(path))
		return 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	ssize_t size = pread(fd, records, RECORDS_MAX * sizeof(*records), 0);
	close(fd);
	return size > 0 ? size / (ssize_t)sizeof(*records) : 0;
}

static int answer(void *data, const struct record *records, uint32_t count)
{
	switch (*(uint32_t *)data) {
	case ETHTOOL_GSSET_INFO: {
		struct ethtool_sset_info *info = data;
		info->sset_mask &= 1ULL << ETH_SS_STATS;
		if (info->sset_mask)
			info->data[0] = count;
		return 0;
	}
	case ETHTOOL_GSTRINGS: {
		struct ethtool_gstrings *strings = data;
		strings->len = count;
		for (uint32_t at = 0; at < count; at++)
			memcpy(strings->data + at * ETH_GSTRING_LEN, records[at].name, ETH_GSTRING_LEN);
		return 0;
	}
	case ETHTOOL_GSTATS: {
		struct ethtool_stats *stats = data;
		stats->n_stats = count;
		for (uint32_t at = 0; at < count; at++)
			stats->data[at] = records[at].count;
		return 0;
	}
	default:
		errno = EOPNOTSUPP;
		return -1;
	}
}

__attribute__((visibility("default"))) int ioctl(int fd, unsigned long request, ...)
{
	static __thread struct record records[RECORDS_MAX];
	va_list rest;

	va_start(rest, request);
	struct ifreq *asked = va_arg(rest, struct ifreq *);
	va_end(rest);
	int count = request == SIOCETHTOOL || request == SIOCGIFHWADDR ? load(asked->ifr_name, records) : 0;
	if (!count)
		return (int)syscall(SYS_ioctl, fd, request, asked);
	if (request == SIOCETHTOOL)
		return answer(asked->ifr_data, records + 1, count - 1);
	memset(&asked->ifr_hwaddr, 0, sizeof(asked->ifr_hwaddr));
	memcpy(asked->ifr_hwaddr.sa_data, &records[0].count, 6);
	return 0;
}
