// SPDX-License-Identifier: GPL-2.0
/*
 * sync_cost FILE PAGES ROUNDS: overwrites so many pages of FILE and syncs it, again and again. Prints the median time of a write and of
 * an fsync in microseconds, over all rounds, behind ten that do not count.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAGE_BYTES 4096
#define WARM 10

static double now_us(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	long pages = argc == 4 ? atol(argv[2]) : 0, rounds = argc == 4 ? atol(argv[3]) : 0, round;
	double *wrote = calloc(rounds + 1, sizeof(double)), *synced = calloc(rounds + 1, sizeof(double));
	char *content = malloc(pages * PAGE_BYTES + 1);
	int fd = pages > 0 && rounds > 0 ? open(argv[1], O_RDWR | O_CREAT, 0644) : -1;

	if (fd < 0 || !wrote || !synced || !content) {
		fprintf(stderr, "sync_cost FILE PAGES ROUNDS\n");
		return 2;
	}
	for (round = -WARM; round < rounds; round++) {
		double begun, written;

		memset(content, round, pages * PAGE_BYTES);
		begun = now_us();
		if (pwrite(fd, content, pages * PAGE_BYTES, 0) != pages * PAGE_BYTES)
			return 1;
		written = now_us();
		if (fsync(fd))
			return 1;
		if (round >= 0) {
			wrote[round] = written - begun;
			synced[round] = now_us() - written;
		}
	}
	qsort(wrote, rounds, sizeof(double), by_size);
	qsort(synced, rounds, sizeof(double), by_size);
	printf("pages %ld write_us %.0f fsync_us %.0f\n", pages, wrote[rounds / 2], synced[rounds / 2]);
	return 0;
}
