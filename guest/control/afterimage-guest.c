// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * afterimage-guest: order, flush and wait for durability, from a shell in a guest. See docs/control-disk.md.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "afterimage_guest.h"

static const char usage[] =
	"usage: afterimage-guest [-d DEVICE] COMMAND\n"
	"\n"
	"  show                       the promise in force, and how far it has got\n"
	"  order [FILE...]            an ordering point behind FILEs (else: behind everything)\n"
	"  flush [FILE...]            FILEs (else: everything) survive a power cut now\n"
	"  wait [-t SECONDS] [POINT]  until everything before POINT (else: now) does\n"
	"  query UUID                 what the daemon retains of a file system's journal\n"
	"  recover UUID               the same, after what is committed has gone home\n"
	"\n"
	"A write error of a file system is told only for FILEs.\n";

/* What was asked for, as far as words say. */
struct request {
	const char *what;
	int file_count;
	char **files;
	int timeout_ms;
	int has_point;
	struct afterimage_point point;
	unsigned char uuid[16];
};

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

	/* strtoull() would take a sign, too. */
	if (!isxdigit((unsigned char)*text))
		return 2;
	errno = 0;
	point->instance = strtoull(text, &end, 16);
	if (errno || *end != ':' || !point->instance || !isdigit((unsigned char)end[1]))
		return 2;
	point->sequence = strtoull(end + 1, &end, 10);
	return errno || *end ? 2 : 0;
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

static int parse_wait(int argc, char **argv, struct request *request)
{
	double seconds;
	char *end;

	if (argc >= 2 && !strcmp(argv[0], "-t")) {
		seconds = strtod(argv[1], &end);
		if (end == argv[1] || *end || !(seconds >= 0 && seconds <= 86400))
			return 2;
		request->timeout_ms = seconds * 1000;
		argc -= 2;
		argv += 2;
	}
	request->has_point = argc;
	return argc > 1 || (argc && parse_point(argv[0], &request->point)) ? 2 : 0;
}

/* 0: understood; 2: not. */
static int parse(int argc, char **argv, struct request *request)
{
	if (!argc)
		return 2;
	request->what = argv[0];
	argc--;
	argv++;
	if (!strcmp(request->what, "show"))
		return argc ? 2 : 0;
	if (!strcmp(request->what, "wait"))
		return parse_wait(argc, argv, request);
	if (!strcmp(request->what, "query") || !strcmp(request->what, "recover"))
		return argc != 1 || parse_uuid(argv[0], request->uuid) ? 2 : 0;
	request->file_count = argc;
	request->files = argv;
	return strcmp(request->what, "order") && strcmp(request->what, "flush") ? 2 : 0;
}

static int wait_for(struct afterimage *control, const struct request *request)
{
	int status;

	if (!afterimage_wait(control, request->has_point ? &request->point : NULL, request->timeout_ms))
		return 0;
	/* What complains may fail, too. */
	status = errno == ETIMEDOUT ? 3 : 1;
	complain(control, afterimage_device(control));
	return status;
}

static int retained(struct afterimage *control, const struct request *request)
{
	struct afterimage_retained now;

	if (afterimage_retained(control, request->uuid, *request->what == 'r', &now))
		return complain(control, afterimage_device(control));
	printf("versions %" PRIu64 "\npending %" PRIu64 "\ndata_bytes %" PRIu64 "\ninformation_bytes %" PRIu64 "\n", now.versions,
	       now.pending, now.data_bytes, now.information_bytes);
	return 0;
}

static int run(struct afterimage *control, const struct request *request)
{
	struct afterimage_point point;

	/* No two words begin alike but for what is the same here. */
	switch (*request->what) {
	case 's':
		return show(control);
	case 'w':
		return wait_for(control, request);
	case 'q':
	case 'r':
		return retained(control, request);
	}
	if (sync_files(request->file_count, request->files))
		return 1;
	if (*request->what == 'o' ? afterimage_order(control, &point) : afterimage_flush(control, &point))
		return complain(control, afterimage_device(control));
	printf("%016" PRIx64 ":%" PRIu64 "\n", point.instance, point.sequence);
	return 0;
}

int main(int argc, char **argv)
{
	struct request request = { .timeout_ms = -1 };
	struct afterimage *control;
	const char *device = NULL;
	int result;

	argc--;
	argv++;
	if (argc == 1 && (!strcmp(argv[0], "-h") || !strcmp(argv[0], "--help")))
		return fputs(usage, stdout) < 0 || fflush(stdout);
	if (argc >= 2 && !strcmp(argv[0], "-d")) {
		device = argv[1];
		argc -= 2;
		argv += 2;
	}
	if (parse(argc, argv, &request)) {
		fputs(usage, stderr);
		return 2;
	}
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
	result = run(control, &request);
	if (!result && fflush(stdout))
		result = complain(NULL, "standard output");
	afterimage_close(control);
	return result;
}
