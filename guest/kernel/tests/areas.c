// SPDX-License-Identifier: GPL-2.0
/*
 * areas: the file of iJournaling's areas, as docs/ijournaling.md says.
 *
 *   areas FOLDER AREAS AREA_BLOCKS    in FOLDER, the root of a mounted file system without the file
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "ijournal_format.h"

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static __u32 crc32c(const unsigned char *bytes, size_t len)
{
	__u32 crc = ~0U;
	int bit;

	while (len--) {
		crc ^= *bytes++;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

int main(int argc, char **argv)
{
	static union {
		struct ijournal_areas areas;
		unsigned char bytes[IJOURNAL_BLOCK_BYTES];
	} header;
	static const char zeroes[IJOURNAL_BLOCK_BYTES];
	int flags = FS_IMMUTABLE_FL;
	char path[4096];
	__u32 areas, area_blocks, at;
	int fd;

	if (argc != 4)
		return 2;
	areas = strtoul(argv[2], NULL, 10);
	area_blocks = strtoul(argv[3], NULL, 10);
	snprintf(path, sizeof(path), "%s/%s", argv[1], IJOURNAL_FILE_NAME);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		die(path);
	memcpy(header.areas.magic, IJOURNAL_AREAS_MAGIC, sizeof(header.areas.magic));
	header.areas.version = IJOURNAL_VERSION;
	header.areas.areas = areas;
	header.areas.area_blocks = area_blocks;
	header.areas.block_bytes = IJOURNAL_BLOCK_BYTES;
	header.areas.crc = crc32c(header.bytes, sizeof(header.bytes));
	if (write(fd, header.bytes, sizeof(header.bytes)) != sizeof(header.bytes))
		die("write");
	for (at = 0; at < areas * area_blocks; at++)
		if (write(fd, zeroes, sizeof(zeroes)) != sizeof(zeroes))
			die("write");
	if (fsync(fd))
		die("fsync");
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
		die("flags");
	flags |= FS_IMMUTABLE_FL;
	if (ioctl(fd, FS_IOC_SETFLAGS, &flags))
		die("flags");
	return 0;
}
