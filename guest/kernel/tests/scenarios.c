// SPDX-License-Identifier: GPL-2.0
/*
 * scenarios: what iJournaling's evaluation crashed, each step with one thing that is promised; and what a crash has left of it.
 *
 *   scenarios write FOLDER NAME STEPS    does it, and says {"mark":"0 STEP"} when a step is durable
 *   scenarios state FOLDER NAME STEPS    the newest step that is there with all before it, or what is broken (status 1)
 *
 *   thousand    files 1 to STEPS, of which the odd ones are fsynced: of the others nothing is there
 *   many        the same, with names so long that the directory soon has an index, and a commit every 100 steps, which the others come with
 *   append      4 KiB are appended to a file and fsynced, STEPS times; now and then beside it to another, so that they lie in many pieces
 *   big         256 blocks are appended to a file, and one, by turns, each time with an fsync: 2100 steps are more than 1 GB
 *   deep        a tree of folders each time, 2 to 12 deep, with others beside it; the file in the innermost is fsynced
 *   links       a file gets a second name, is written, loses its first: fsynced each time (three steps)
 *   reuse       a file is made in the space of an older one that is deleted, again and again: four of them would not fit
 *   data        blocks of a file are written again with an fdatasync each, mostly nothing else; now and then it becomes longer or shorter
 *   together    eight threads fsync files of their own at the same time
 *   cut         six threads write and cut files, beside commits
 *   ways        directories on the way to a file get attributes, go and come again under their name, leave memory (root's)
 *
 * A block says which file it is of, and where in it. "thousand" wants that nothing else commits: nothing that was not fsynced may be there. In
 * "deep" a transaction may have become so large that it was committed; what was not fsynced is there up to some step then, and not behind it.
 */
#include "marks.h"

#define BLOCK_BYTES 4096
#define WORDS (BLOCK_BYTES / sizeof(uint64_t))

static const char *base;
static uint64_t steps;

static void path_of(char *path, const char *kind, uint64_t number)
{
	snprintf(path, 512, "%s/%s%llu", base, kind, (unsigned long long)number);
}

static int open_at(const char *path, int flags)
{
	int fd = open(path, flags, 0644);

	if (fd < 0)
		die(path);
	return fd;
}

static void put(int fd, uint64_t file, uint64_t at, uint64_t count)
{
	uint64_t block[WORDS];
	unsigned int word;

	for (; count; count--, at++) {
		for (word = 0; word < WORDS; word += 2) {
			block[word] = file;
			block[word + 1] = at;
		}
		if (pwrite(fd, block, sizeof(block), (off_t)at * BLOCK_BYTES) != sizeof(block))
			die("write");
	}
}

static void durable(int fd, uint64_t step)
{
	if (fsync(fd))
		die("fsync");
	report(0, step);
}

static void done(int fd, uint64_t step)
{
	durable(fd, step);
	close(fd);
}

static void broken(const char *what, const char *path)
{
	printf("broken: %s: %s\n", path, what);
	exit(1);
}

/* How many blocks of its own a file has; whatever else it has is broken, but for zeroes where it was not fsynced. */
static uint64_t own(const char *path, uint64_t file, int may_be_zeroes)
{
	int fd = open(path, O_RDONLY);
	uint64_t block[WORDS], at;
	unsigned int word;
	ssize_t length;

	if (fd < 0)
		return 0;
	for (at = 0; (length = read(fd, block, sizeof(block))) > 0; at++) {
		if (length != sizeof(block))
			broken("a block is cut", path);
		for (word = 0; word < WORDS; word += 2) {
			if (may_be_zeroes && !block[word] && !block[word + 1])
				continue;
			if (block[word] != file || block[word + 1] != at)
				broken("a block of something else", path);
		}
		/* What ends in zeroes does not count. */
		if (block[0] != file)
			break;
	}
	if (length < 0)
		die(path);
	close(fd);
	return at;
}

/* Files of which the odd ones are fsynced. */
static void file_write(const char *kind, uint64_t step)
{
	char path[512];
	int fd;

	path_of(path, kind, step);
	fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
	put(fd, step, 0, 1 + step % 3);
	if (step % 2)
		done(fd, step);
	else
		close(fd);
}

/* The newest of the fsynced files that is there with all before it. */
static uint64_t files_state(const char *kind)
{
	uint64_t step, newest = 0;
	char path[512];

	for (step = 1; step <= steps; step += 2) {
		path_of(path, kind, step);
		if (own(path, step, 0) != 1 + step % 3)
			break;
		newest = step;
	}
	return newest;
}

static void thousand_write(void)
{
	uint64_t step;

	for (step = 1; step <= steps; step++)
		file_write("f", step);
}

static uint64_t thousand_state(void)
{
	uint64_t step;
	char path[512];

	for (step = 2; step <= steps; step += 2) {
		path_of(path, "f", step);
		if (!access(path, F_OK))
			broken("it was never fsynced", path);
	}
	return files_state("f");
}

/* 25 of these names fill a block. */
static const char many_kind[] =
	"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
	"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn";

static void many_write(void)
{
	uint64_t step;

	for (step = 1; step <= steps; step++) {
		file_write(many_kind, step);
		if (step % 100 == 0)
			sync();
	}
}

static uint64_t many_state(void)
{
	return files_state(many_kind);
}

static void append_write(void)
{
	uint64_t step, other = 0;
	char path[512];
	int fd, beside;

	path_of(path, "long", 1);
	fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
	path_of(path, "long", 2);
	beside = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
	for (step = 1; step <= steps; step++) {
		put(fd, 1, step - 1, 1);
		durable(fd, step);
		/* In the first 4 MiB only: files of 1 GB have many pieces anyway. */
		if (step < 1024 && step % 4 == 0) {
			put(beside, 2, other++, 1);
			if (fsync(beside))
				die("fsync");
		}
	}
	close(beside);
	close(fd);
}

static uint64_t append_state(void)
{
	uint64_t blocks, other = 0;
	char path[512];

	/* A commit between an fsync's data and its i-transaction may leave zeroes at the end. */
	path_of(path, "long", 1);
	blocks = own(path, 1, 1);
	path_of(path, "long", 2);
	other = own(path, 2, 1);
	/* What was fsynced before the last one of these. */
	if (blocks > 4 && blocks < 1024 && other < (blocks - 1) / 4)
		broken("it is too short", path);
	return blocks;
}

static uint64_t big_blocks(uint64_t step)
{
	return step / 2 + (step + 1) / 2 * 256;
}

static void big_write(void)
{
	uint64_t step;
	char path[512];
	int fd;

	path_of(path, "big", 1);
	fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
	for (step = 1; step <= steps; step++) {
		put(fd, 1, big_blocks(step - 1), big_blocks(step) - big_blocks(step - 1));
		durable(fd, step);
	}
	close(fd);
}

static uint64_t big_state(void)
{
	uint64_t blocks, step = 0;
	char path[512];

	path_of(path, "big", 1);
	blocks = own(path, 1, 1);
	while (step < steps && big_blocks(step + 1) <= blocks)
		step++;
	return step;
}

static int depth_of(uint64_t step)
{
	return 2 + step % 11;
}

/* The folder of a depth: tree/1/2/3. */
static void deep_path(char *path, uint64_t step, int depth)
{
	int at;

	path_of(path, "tree", step);
	for (at = 1; at <= depth; at++)
		sprintf(path + strlen(path), "/%d", at);
}

static void deep_write(void)
{
	char path[512];
	uint64_t step;
	int depth;

	for (step = 1; step <= steps; step++) {
		for (depth = 0; depth <= depth_of(step); depth++) {
			deep_path(path, step, depth);
			if (mkdir(path, 0755))
				die(path);
			strcat(path, "/beside");
			if (mkdir(path, 0755))
				die(path);
		}
		deep_path(path, step, depth_of(step));
		strcat(path, "/file");
		depth = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
		put(depth, step, 0, 2);
		done(depth, step);
	}
}

static uint64_t deep_state(void)
{
	uint64_t step, newest = 0;
	char path[512];
	int depth, committed = 1;

	for (step = 1; step <= steps; step++) {
		deep_path(path, step, depth_of(step));
		strcat(path, "/file");
		if (own(path, step, 0) == 2 && newest == step - 1)
			newest = step;
		for (depth = 0; depth <= depth_of(step); depth++) {
			deep_path(path, step, depth);
			strcat(path, "/beside");
			if (access(path, F_OK))
				committed = 0;
			else if (!committed)
				broken("it was never fsynced", path);
		}
	}
	return newest;
}

static void links_write(void)
{
	char from[512], to[512];
	uint64_t step;
	int fd;

	for (step = 1; step + 2 <= steps; step += 3) {
		path_of(from, "a", step);
		path_of(to, "b", step);
		fd = open_at(from, O_WRONLY | O_CREAT | O_EXCL);
		put(fd, step, 0, 1);
		durable(fd, step);
		if (link(from, to))
			die(to);
		put(fd, step, 1, 1);
		durable(fd, step + 1);
		if (unlink(from))
			die(from);
		put(fd, step, 2, 1);
		done(fd, step + 2);
	}
}

static uint64_t links_state(void)
{
	char from[512], to[512];
	struct stat a, b;
	uint64_t step;
	int has_a, has_b;

	for (step = 1; step + 2 <= steps; step += 3) {
		path_of(from, "a", step);
		path_of(to, "b", step);
		has_a = !stat(from, &a);
		has_b = !stat(to, &b);
		if (has_a && has_b && (a.st_ino != b.st_ino || a.st_nlink != 2))
			broken("two names, and not two links of one file", from);
		if ((has_a && !has_b && a.st_nlink != 1) || (has_b && !has_a && b.st_nlink != 1))
			broken("one name, and not one link", has_a ? from : to);
		if (has_b && !has_a && own(to, step, 1) == 3)
			continue;
		if (has_b && own(to, step, 1) >= 2)
			return step + 1;
		return has_a && own(from, step, 1) >= 1 ? step : step - 1;
	}
	return step - 1;
}

/* Three of ten parts of what is free at the beginning. */
static uint64_t reuse_blocks(void)
{
	struct statvfs free;
	char path[512];
	uint64_t found;
	FILE *file;

	path_of(path, "blocks", 0);
	file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%llu", (unsigned long long *)&found) != 1)
			die(path);
		fclose(file);
		return found;
	}
	if (statvfs(base, &free))
		die(base);
	found = free.f_bavail * 3 / 10;
	file = fopen(path, "w");
	if (!file || fprintf(file, "%llu", (unsigned long long)found) < 0 || fclose(file))
		die(path);
	sync();
	return found;
}

static void reuse_write(void)
{
	uint64_t step, blocks = reuse_blocks();
	char path[512];
	int fd;

	for (step = 1; step <= steps; step++) {
		if (step > 3) {
			path_of(path, "g", step - 3);
			if (unlink(path))
				die(path);
		}
		path_of(path, "g", step);
		fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
		put(fd, step, 0, blocks);
		done(fd, step);
	}
}

static uint64_t reuse_state(void)
{
	uint64_t step, newest = 0, blocks = reuse_blocks();
	char path[512];

	/* Each of those that are there is itself or zeroes, whether or not it was fsynced. */
	for (step = 1; step <= steps; step++) {
		path_of(path, "g", step);
		if (own(path, step, 1) == blocks)
			newest = step;
	}
	for (step = newest > 2 ? newest - 1 : 1; step < newest; step++) {
		path_of(path, "g", step);
		if (own(path, step, 0) != blocks)
			broken("it was fsynced and not deleted", path);
	}
	return newest;
}

/* Blocks of the file after a step: it grows, shrinks, and mostly does neither. */
static uint64_t data_blocks(uint64_t step)
{
	return 8 + (step + 5) / 8 * 2 - (step + 2) / 8;
}

#define DATA_WRITTEN 4
#define DATA_FILE (1ULL << 40)

static void data_write(void)
{
	uint64_t step, blocks, before = data_blocks(0);
	char path[512];
	int fd;

	path_of(path, "data", 1);
	fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
	put(fd, DATA_FILE, 0, before);
	if (fsync(fd))
		die("fsync");
	for (step = 1; step <= steps; step++) {
		blocks = data_blocks(step);
		if (blocks > before)
			put(fd, DATA_FILE, before, blocks - before);
		else if (blocks < before && ftruncate(fd, (off_t)blocks * BLOCK_BYTES))
			die("truncate");
		before = blocks;
		put(fd, step, step % DATA_WRITTEN, 1);
		if (fdatasync(fd))
			die("fdatasync");
		report(0, step);
	}
	close(fd);
}

/* Data is home before what says how long the file is: of the step after the newest that is promised there may be either. */
static uint64_t data_state(void)
{
	uint64_t block[WORDS], at, word, blocks, newest = 0, written[DATA_WRITTEN] = { 0 }, zeroes = 0;
	char path[512];
	ssize_t length;
	int fd;

	path_of(path, "data", 1);
	fd = open(path, O_RDONLY);
	if (fd < 0)
		return 0;
	for (at = 0; (length = read(fd, block, sizeof(block))) > 0; at++) {
		if (length != sizeof(block))
			broken("a block is cut", path);
		for (word = 0; word < WORDS; word += 2)
			if (block[word] != block[0] || (block[word] && block[word + 1] != at))
				broken("a block is not of one piece", path);
		if (at < DATA_WRITTEN && block[0] != DATA_FILE)
			written[at] = block[0];
		else if (block[0] != DATA_FILE)
			zeroes++;
		if (at < DATA_WRITTEN && written[at] > newest)
			newest = written[at];
	}
	if (length < 0)
		die(path);
	close(fd);
	blocks = at;
	if (!newest)
		return 0;
	for (at = 0; at < DATA_WRITTEN; at++)
		if (newest > at && written[(newest - at) % DATA_WRITTEN] != newest - at)
			broken("an older block", path);
	if (blocks != data_blocks(newest) && blocks != data_blocks(newest - 1) && blocks != data_blocks(newest + 1))
		broken("it is not as long as it was synced", path);
	if (zeroes && blocks == data_blocks(newest) && blocks == data_blocks(newest - 1))
		broken("zeroes", path);
	return blocks == data_blocks(newest) || blocks != data_blocks(newest - 1) ? newest : newest - 1;
}

#include "together.h"
#include "cut.h"
#include "ways.h"

static const struct {
	const char *name;
	void (*write)(void);
	uint64_t (*state)(void);
} scenarios[] = {
	{ "thousand", thousand_write, thousand_state },
	{ "many", many_write, many_state },
	{ "append", append_write, append_state },
	{ "big", big_write, big_state },
	{ "deep", deep_write, deep_state },
	{ "links", links_write, links_state },
	{ "reuse", reuse_write, reuse_state },
	{ "data", data_write, data_state },
	{ "together", together_write, together_state },
	{ "cut", cut_write, cut_state },
	{ "ways", ways_write, ways_state },
};

int main(int argc, char **argv)
{
	uint64_t state;
	size_t at;

	if (argc != 5)
		return 2;
	base = argv[2];
	steps = strtoull(argv[4], NULL, 10);
	for (at = 0; at < sizeof(scenarios) / sizeof(scenarios[0]); at++) {
		if (strcmp(scenarios[at].name, argv[3]))
			continue;
		if (!strcmp(argv[1], "write")) {
			scenarios[at].write();
			return 0;
		}
		if (strcmp(argv[1], "state"))
			return 2;
		state = scenarios[at].state();
		if (state)
			printf("0 %llu\n", (unsigned long long)state);
		else
			printf("begin\n");
		return 0;
	}
	return 2;
}
