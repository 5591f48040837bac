// SPDX-License-Identifier: GPL-2.0
/*
 * scramble FILE COPY SEED OPERATIONS: random operations on FILE, each done to a model in memory as well; FILE is compared
 * with it all along. At the end FILE is synced, and the model is in COPY: what must be in FILE after any crash from then on.
 *
 * Writes, stores through a mapping, truncation, holes, preallocation, syncs of each kind, and switches of the journaling mode
 * where there are any, with pages that are dirty in every way at that moment.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include "journaling_ioctl.h"

#define BYTES_MAX (1 << 20)

static unsigned char model[BYTES_MAX], seen[BYTES_MAX];
static uint64_t state;
static size_t size;
static int fd;
static unsigned char *mapped;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* xorshift64*. */
static size_t below(size_t limit)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (state * 0x2545f4914f6cdd1dull >> 33) % limit;
}

static void compare(unsigned long number)
{
	size_t at;

	if (pread(fd, seen, sizeof(seen), 0) != (ssize_t)size)
		die("size");
	for (at = 0; at < size && seen[at] == model[at]; )
		at++;
	if (at < size) {
		printf("operation %lu: byte %zu is %u, and %u was written\n", number, at, seen[at], model[at]);
		exit(1);
	}
}

static void grow(size_t end)
{
	if (end > size)
		size = end;
}

static void put(size_t at, size_t length, int store)
{
	size_t byte;

	for (byte = at; byte < at + length; byte++)
		model[byte] = below(256);
	if (store)
		memcpy(mapped + at, model + at, length);
	else if (pwrite(fd, model + at, length, at) != (ssize_t)length)
		die("pwrite");
	grow(at + length);
}

static void resize(size_t end)
{
	if (ftruncate(fd, end))
		die("ftruncate");
	if (end < size)
		memset(model + end, 0, size - end);
	size = end;
}

static void operate(unsigned long number)
{
	size_t length = 1 + below(below(2) ? 400 : 40000);
	size_t at = below(BYTES_MAX - length);

	switch (below(16)) {
	case 0: case 1: case 2: case 3:
		put(at, length, 0);
		break;
	case 4: case 5: case 6:
		if (at + length <= size)
			put(at, length, 1);
		break;
	case 7:
		resize(at);
		break;
	case 8:
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, length))
			die("punch");
		if (at < size)
			memset(model + at, 0, at + length < size ? length : size - at);
		break;
	case 9:
		if (fallocate(fd, 0, at, length))
			die("fallocate");
		grow(at + length);
		break;
	case 10:
		if (fsync(fd))
			die("fsync");
		break;
	case 11:
		if (fdatasync(fd))
			die("fdatasync");
		break;
	case 12:
		if (size && msync(mapped, size, MS_SYNC))
			die("msync");
		break;
	case 13: case 14:
		/* Without a mode to switch, there is nothing to do. */
		ioctl(fd, VEXT4_IOC_SET_JOURNALING, below(VEXT4_JOURNALING_MODES));
		break;
	default:
		compare(number);
	}
}

int main(int argc, char **argv)
{
	unsigned long number, operations;
	int copy;

	if (argc != 5)
		return 2;
	state = strtoull(argv[3], NULL, 10) * 2 + 1;
	operations = strtoul(argv[4], NULL, 10);
	fd = open(argv[1], O_RDWR | O_CREAT | O_TRUNC, 0644);
	copy = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0644);
	if (fd < 0 || copy < 0)
		die("open");
	mapped = mmap(NULL, BYTES_MAX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		die("mmap");
	for (number = 1; number <= operations; number++)
		operate(number);
	compare(number);
	if (fsync(fd))
		die("fsync");
	if (write(copy, model, size) != (ssize_t)size || fsync(copy))
		die("copy");
	return 0;
}
