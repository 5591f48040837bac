/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Ways to a file whose directories are not what they seem, or not for long. Rounds of four steps, each round behind a commit, and then none but those that
 * an fsync needs:
 *
 *   1   the committed directory of a new file has got attributes in a block of their own
 *   2   a new file in a new directory
 *   3   that file leaves it, the directory goes, and another one gets its name, with a new file: the first is under its new name, or under the old one
 *   4   the directory of a new file is not committed, has left memory and was read again
 *
 * What is promised of the second step is the file, under whichever name.
 */
#include <sys/xattr.h>

#define WAYS 4
/* Longer than the kernel waits before it writes back. */
#define WAYS_PAUSE_US 300000

static void ways_tell(const char *path, const char *value)
{
	int fd = open_at(path, O_WRONLY);

	if (write(fd, value, strlen(value)) != (ssize_t)strlen(value))
		die(path);
	close(fd);
}

/* Directories that are only dirty to the page cache stay in memory until they are written back, which is no commit. */
static void ways_forget(void)
{
	int times;

	usleep(WAYS_PAUSE_US);
	/* What was used lately stays once. */
	for (times = 0; times < 3; times++)
		ways_tell("/proc/sys/vm/drop_caches", "2");
}

/* A directory of a round, and a file in it. */
static void ways_path(char *path, const char *kind, uint64_t round, const char *file)
{
	path_of(path, kind, round);
	strcat(path, file);
}

static void ways_mkdir(const char *kind, uint64_t round)
{
	char path[512];

	path_of(path, kind, round);
	if (mkdir(path, 0755))
		die(path);
}

static void ways_file(const char *kind, uint64_t round, uint64_t step)
{
	char path[512];
	int fd;

	ways_path(path, kind, round, step % WAYS == 3 ? "/other" : "/file");
	fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
	put(fd, step, 0, 1);
	done(fd, step);
}

static void ways_attributes(uint64_t round)
{
	char path[512], value[200];

	memset(value, 'x', sizeof(value));
	path_of(path, "attributes", round);
	if (setxattr(path, "user.ways", value, sizeof(value), 0))
		die(path);
}

static void ways_leave(uint64_t round)
{
	char from[512], to[512];

	ways_path(from, "left", round, "/file");
	path_of(to, "moved", round);
	if (rename(from, to))
		die(to);
	path_of(from, "left", round);
	if (rmdir(from))
		die(from);
}

static void ways_write(void)
{
	uint64_t step, round;

	ways_tell("/proc/sys/vm/dirty_writeback_centisecs", "5");
	ways_tell("/proc/sys/vm/dirty_expire_centisecs", "5");
	for (step = 1; step <= steps; step++) {
		round = (step - 1) / WAYS;
		switch (step % WAYS) {
		case 1:
			ways_mkdir("attributes", round);
			sync();
			ways_attributes(round);
			ways_file("attributes", round, step);
			break;
		case 2:
			ways_mkdir("left", round);
			ways_file("left", round, step);
			break;
		case 3:
			ways_leave(round);
			ways_mkdir("left", round);
			ways_file("left", round, step);
			break;
		default:
			ways_mkdir("forgotten", round);
			ways_forget();
			ways_file("forgotten", round, step);
			/* So that a crash comes before the commit, too. */
			usleep(WAYS_PAUSE_US);
		}
	}
}

static int ways_there(uint64_t step)
{
	uint64_t round = (step - 1) / WAYS;
	char path[512];

	/* A commit between an fsync's data and its i-transaction may leave zeroes at the end. */
	switch (step % WAYS) {
	case 1:
		ways_path(path, "attributes", round, "/file");
		break;
	case 2:
		path_of(path, "moved", round);
		if (own(path, step, 1))
			return 1;
		ways_path(path, "left", round, "/file");
		break;
	case 3:
		ways_path(path, "left", round, "/other");
		break;
	default:
		ways_path(path, "forgotten", round, "/file");
	}
	return own(path, step, 1) == 1;
}

static uint64_t ways_state(void)
{
	uint64_t step = 0;

	while (step < steps && ways_there(step + 1))
		step++;
	return step;
}
