/* SPDX-License-Identifier: GPL-2.0 */
/* What is said to be durable, to whoever is to kill the guest. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static void die(const char *what)
{
	perror(what);
	exit(1);
}

/* {"mark":"THREAD OP"} */
static void report(int thread, uint64_t op)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const char *to = getenv("AFTERIMAGE_REPORT");
	char line[64];
	int length = snprintf(line, sizeof(line), "{\"mark\":\"%d %llu\"}\n", thread, (unsigned long long)op);
	int out;

	if (!to)
		return;
	/* It is one's own as long as it is open. */
	pthread_mutex_lock(&lock);
	out = open(to, O_WRONLY);
	if (out < 0 || write(out, line, length) != length)
		die("report");
	close(out);
	pthread_mutex_unlock(&lock);
}
