// SPDX-License-Identifier: GPL-2.0
/*
 * synced: every way to ask for durability, by turns, and what a crash has left of it.
 *
 *   synced write FILE OPS [WAY]   for each operation: change the next page of FILE, sync it, report {"mark":"op N"}
 *   synced check FILE             the last line names the operation that the file is the state of
 *
 * Ways: fsync, fdatasync, osync (O_SYNC), msync (a store through a shared mapping). Pages take turns; a page's first and
 * last words are the number of the operation that changed it, so each state of the file tells which operation was its
 * last. The one behind it may have been under way: its page may be as before, as after, or in between.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096
#define PAGES 24

static const char * const ways[] = { "fsync", "fdatasync", "osync", "msync" };

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void stamp(uint64_t *page, uint64_t number)
{
	page[0] = number;
	page[PAGE_BYTES / sizeof(*page) - 1] = number;
}

static void sync_page(int fd, int fd_sync, char *mapped, uint64_t number, unsigned int way)
{
	uint64_t page[PAGE_BYTES / sizeof(uint64_t)] = { 0 };
	off_t at = (off_t)(number % PAGES) * PAGE_BYTES;

	if (way == 3) {
		stamp((uint64_t *)(mapped + at), number);
		if (msync(mapped + at, PAGE_BYTES, MS_SYNC))
			die("msync");
		return;
	}
	stamp(page, number);
	if (pwrite(way == 2 ? fd_sync : fd, page, sizeof(page), at) != sizeof(page))
		die("pwrite");
	if ((way == 0 && fsync(fd)) || (way == 1 && fdatasync(fd)))
		die("sync");
}

static void run(const char *path, uint64_t operations, const char *only)
{
	static const char zeroes[PAGES * PAGE_BYTES];
	const char *report = getenv("AFTERIMAGE_REPORT");
	int fd = open(path, O_RDWR | O_CREAT, 0644);
	int fd_sync = open(path, O_RDWR | O_SYNC);
	unsigned int way;
	uint64_t number;
	char *mapped;

	if (fd < 0 || fd_sync < 0)
		die(path);
	if (write(fd, zeroes, sizeof(zeroes)) != sizeof(zeroes) || fsync(fd))
		die("write");
	mapped = mmap(NULL, sizeof(zeroes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		die("mmap");
	for (number = 1; number <= operations; number++) {
		way = number % 4;
		if (only)
			for (way = 0; way < 3 && strcmp(only, ways[way]); )
				way++;
		sync_page(fd, fd_sync, mapped, number, way);
		if (report) {
			char line[64];
			int length = snprintf(line, sizeof(line), "{\"mark\":\"op %llu\"}\n", (unsigned long long)number);
			int out = open(report, O_WRONLY);

			if (out < 0 || write(out, line, length) != length)
				die("report");
			close(out);
		}
	}
}

static int check(const char *path)
{
	static uint64_t pages[PAGES][PAGE_BYTES / sizeof(uint64_t)];
	const int last = PAGE_BYTES / sizeof(uint64_t) - 1;
	uint64_t newest = 0, number;
	int fd = open(path, O_RDONLY);
	int at;

	if (fd < 0 || read(fd, pages, sizeof(pages)) != sizeof(pages))
		die(path);
	for (at = 0; at < PAGES; at++)
		if (pages[at][0] == pages[at][last] && pages[at][0] > newest)
			newest = pages[at][0];
	for (number = newest; number && number + PAGES > newest; number--)
		if (pages[number % PAGES][0] != number || pages[number % PAGES][last] != number) {
			/* The operation behind the newest may have begun to change the oldest page. */
			if (number + PAGES == newest + 1)
				continue;
			printf("page %llu is %llu and %llu\nbroken\n", (unsigned long long)(number % PAGES),
			       (unsigned long long)pages[number % PAGES][0],
			       (unsigned long long)pages[number % PAGES][last]);
			return 1;
		}
	printf("op %llu\n", (unsigned long long)newest);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc >= 4 && !strcmp(argv[1], "write"))
		run(argv[2], strtoull(argv[3], NULL, 10), argc > 4 ? argv[4] : NULL);
	else if (argc == 3 && !strcmp(argv[1], "check"))
		return check(argv[2]);
	else
		return 2;
	return 0;
}
