// SPDX-License-Identifier: Apache-2.0
//
// For LD_PRELOAD of a User Mode Linux kernel: what it asks of its host's random number generator is drawn from a seed, so that two
// guests of one seed are the same (arch/um/os-Linux/util.c, os_getrandom). Its driver for the host's /dev/random
// (arch/um/drivers/random.c) is given zeroes. The guest's own programs run in processes of their own, which do not see this
// library, and ask the guest's kernel.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static uint64_t state;

__attribute__((constructor)) static void begin(void)
{
	const char *seed = getenv("AFTERIMAGE_GUEST_SEED");

	state = seed ? strtoull(seed, NULL, 10) : 0;
}

// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
static uint64_t draw(void)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15ULL);

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
	return z ^ z >> 31;
}

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
	unsigned char *bytes = buffer;

	(void)flags;
	for (size_t at = 0; at < length; at++)
		bytes[at] = draw() >> 56;
	return (ssize_t)length;
}

int open64(const char *path, int flags, ...)
{
	mode_t mode = 0;

	if (flags & (O_CREAT | O_TMPFILE)) {
		va_list more;

		va_start(more, flags);
		mode = va_arg(more, mode_t);
		va_end(more);
	}
	if (strcmp(path, "/dev/random") == 0)
		path = "/dev/zero";
	return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
