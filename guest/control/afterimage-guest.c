// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * afterimage-guest: order, flush and wait for durability, from a shell in a guest. See docs/control-disk.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "afterimage_guest.h"

static const char usage[] =
	"afterimage-guest [-d DEVICE] show                       the promise in force, and how far it has got\n"
	"afterimage-guest [-d DEVICE] order [FILE...]            an ordering point behind FILEs (else: behind everything)\n"
	"afterimage-guest [-d DEVICE] flush [FILE...]            FILEs (else: everything) survive a power cut now\n"
	"afterimage-guest [-d DEVICE] wait [-t SECONDS] [POINT]  until everything before POINT (else: now) does\n"
	"afterimage-guest [-d DEVICE] query UUID                 what the daemon retains of a file system's journal\n"
	"afterimage-guest [-d DEVICE] recover UUID               the same, after what is committed has gone home\n";

static int complain(struct afterimage *control, const char *what)
{
	const char *text = control ? afterimage_text(control) : "";

	fprintf(stderr, "afterimage-guest: %s: %s%s%s\n", what, *text ? text : strerror(errno), *text ? ": " : "",
		*text ? strerror(errno) : "");
	return 1;
}

/* What is in the page cache has to reach the disks first. */
static int sync_files(int count, char **files)
{
	int at, fd;

	if (!count)
		sync();
	for (at = 0; at < count; at++) {
		fd = open(files[at], O_RDONLY | O_CLOEXEC);
		if (fd < 0 || fsync(fd))
			return complain(NULL, files[at]);
		close(fd);
	}
	return 0;
}

static int show(struct afterimage *control)
{
	struct afterimage_point newest, durable;

	if (afterimage_look(control, &newest, &durable))
		return complain(control, afterimage_device(control));
	printf("%s\n%s: newest %016" PRIx64 ":%" PRIu64 ", durable %016" PRIx64 ":%" PRIu64 "\n", afterimage_text(control),
	       afterimage_device(control), newest.instance, newest.sequence, durable.instance, durable.sequence);
	return 0;
}

/* 0: a point; 2: none. */
static int parse_point(const char *text, struct afterimage_point *point)
{
	char *end;

	errno = 0;
	point->instance = strtoull(text, &end, 16);
	if (errno || end == text || *end != ':' || !point->instance)
		return 2;
	text = end + 1;
	point->sequence = strtoull(text, &end, 10);
	return errno || end == text || *end ? 2 : 0;
}

static int wait_for(struct afterimage *control, int argc, char **argv)
{
	struct afterimage_point point;
	int timeout_ms = -1, status;
	double seconds;
	char *end;

	if (argc >= 2 && !strcmp(argv[0], "-t")) {
		seconds = strtod(argv[1], &end);
		if (end == argv[1] || *end || !(seconds >= 0 && seconds <= 86400))
			return 2;
		timeout_ms = seconds * 1000;
		argc -= 2;
		argv += 2;
	}
	if (argc > 1 || (argc && parse_point(argv[0], &point)))
		return 2;
	if (!afterimage_wait(control, argc ? &point : NULL, timeout_ms))
		return 0;
	/* What complains may fail, too. */
	status = errno == ETIMEDOUT ? 3 : 1;
	complain(control, afterimage_device(control));
	return status;
}

/* 0: a UUID; 2: none. */
static int parse_uuid(const char *text, unsigned char *uuid)
{
	int digit, at = 0;
	char one[2] = "";
	char *end;

	for (; *text; text++) {
		if (*text == '-')
			continue;
		one[0] = *text;
		digit = strtol(one, &end, 16);
		if (*end || at == 32)
			return 2;
		uuid[at / 2] = uuid[at / 2] << 4 | digit;
		at++;
	}
	return at == 32 ? 0 : 2;
}

static int retained(struct afterimage *control, const char *text, int bring_home)
{
	unsigned char uuid[16] = "";
	struct afterimage_retained now;

	if (parse_uuid(text, uuid))
		return 2;
	if (afterimage_retained(control, uuid, bring_home, &now))
		return complain(control, afterimage_device(control));
	printf("versions %" PRIu64 "\npending %" PRIu64 "\ndata_bytes %" PRIu64 "\ninformation_bytes %" PRIu64 "\n", now.versions,
	       now.pending, now.data_bytes, now.information_bytes);
	return 0;
}

static int run(struct afterimage *control, int argc, char **argv)
{
	struct afterimage_point point;
	int orders = !strcmp(argv[0], "order");

	if (!strcmp(argv[0], "show") && argc == 1)
		return show(control);
	if (!strcmp(argv[0], "wait"))
		return wait_for(control, argc - 1, argv + 1);
	if (argc == 2 && (!strcmp(argv[0], "query") || !strcmp(argv[0], "recover")))
		return retained(control, argv[1], *argv[0] == 'r');
	if (!orders && strcmp(argv[0], "flush"))
		return 2;
	if (sync_files(argc - 1, argv + 1))
		return 1;
	if (orders ? afterimage_order(control, &point) : afterimage_flush(control, &point))
		return complain(control, afterimage_device(control));
	printf("%016" PRIx64 ":%" PRIu64 "\n", point.instance, point.sequence);
	return fflush(stdout) ? complain(NULL, "standard output") : 0;
}

int main(int argc, char **argv)
{
	struct afterimage *control;
	const char *device = NULL;
	int result = 2;

	argc--;
	argv++;
	if (argc >= 2 && !strcmp(argv[0], "-d")) {
		device = argv[1];
		argc -= 2;
		argv += 2;
	}
	if (argc) {
		if (afterimage_open(&control, device)) {
			if (!device && errno == ENODEV)
				fputs("afterimage-guest: there is no control disk: serve one with --control-disk\n", stderr);
			else if (errno == EPROTO)
				fprintf(stderr, "afterimage-guest: %s is no control disk that this program knows\n",
					device ? device : "the control disk");
			else
				complain(NULL, device ? device : "the control disk");
			return 1;
		}
		result = run(control, argc, argv);
		afterimage_close(control);
	}
	if (result == 2)
		fputs(usage, stderr);
	return result;
}
