/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Actors of fsynced.c: each makes folders, creates, writes, truncates, renames, unlinks and fsyncs files of its own. Its operations come from
 * the seed alone, so a check goes through them again: it knows what each file held when it was last fsynced, and what was done to it since. A block
 * says which file it is of, which block, and by which operation it was written.
 *
 * What was fsynced has to be there: under its name, at least as long, each block as it was or newer. A file that was truncated, renamed or
 * unlinked since may be as before or as after; nothing is said of others.
 */
#include "marks.h"

#define APPENDER 100
#define FOLDERS 10
#define FILES 16
#define BLOCKS 256
#define BLOCK_BYTES 4096
#define WORDS (BLOCK_BYTES / sizeof(uint64_t))

struct file {
	int there;		/* it has a name */
	int folder, slot;	/* which: folder's fSLOT */
	uint64_t id;		/* the operation that made it */
	int blocks;
	uint64_t written[BLOCKS];	/* the operation that wrote a block; 0 is a hole */
	/* What the last fsync that is known of has promised. */
	int promised, promised_blocks;
	uint64_t promise[BLOCKS];
	int cut, moved;		/* truncated, renamed since */
	int was_folder, was_slot;
};

struct thread {
	int number, execute, ended;
	int unsaid;	/* it says nothing itself */
	uint64_t random, op, until;
	uint64_t synced;	/* the operation that was an fsync last */
	char base[256];
	int parent[FOLDERS];	/* -1: not made */
	struct file files[FILES];
};

static int quiet, plain;

static uint64_t next(struct thread *t, uint64_t below)
{
	t->random ^= t->random << 13;
	t->random ^= t->random >> 7;
	t->random ^= t->random << 17;
	return (t->random >> 11) % below;
}

static void folder_path(struct thread *t, int folder, char *path)
{
	char up[256];

	if (folder == 0) {
		snprintf(path, 256, "%s/t%d", t->base, t->number);
		return;
	}
	folder_path(t, t->parent[folder], up);
	snprintf(path, 256, "%s/d%d", up, folder);
}

static void file_path(struct thread *t, int folder, int slot, char *path)
{
	folder_path(t, folder, path);
	sprintf(path + strlen(path), "/f%d", slot);
}

static void fill(uint64_t *block, int thread, uint64_t id, int number, uint64_t op)
{
	unsigned int at;

	for (at = 0; at < WORDS; at += 2) {
		block[at] = (uint64_t)thread << 56 | id << 16 | number;
		block[at + 1] = op;
	}
}

static struct file *some_file(struct thread *t)
{
	int at = next(t, FILES), tried;

	for (tried = 0; tried < FILES; tried++, at = (at + 1) % FILES)
		if (t->files[at].there)
			return &t->files[at];
	return NULL;
}

/* A folder's slot that no file has: names are used again. */
static int free_slot(struct thread *t, int folder)
{
	int slot = next(t, 6), at;

	for (at = 0; at < FILES; at++)
		if (t->files[at].there && t->files[at].folder == folder && t->files[at].slot == slot)
			return -1;
	return slot;
}

static int some_folder(struct thread *t)
{
	int at = next(t, FOLDERS);

	while (t->parent[at] < 0)
		at = (at + 1) % FOLDERS;
	return at;
}

static void write_blocks(struct thread *t, struct file *f, int from, int count)
{
	uint64_t block[WORDS];
	char path[512];
	int fd = -1, at;

	if (t->execute) {
		file_path(t, f->folder, f->slot, path);
		fd = open(path, O_WRONLY);
		if (fd < 0)
			die(path);
	}
	for (at = from; at < from + count && at < BLOCKS; at++) {
		f->written[at] = t->op;
		if (at >= f->blocks)
			f->blocks = at + 1;
		if (!t->execute)
			continue;
		fill(block, t->number, f->id, at, t->op);
		if (pwrite(fd, block, sizeof(block), (off_t)at * BLOCK_BYTES) != sizeof(block))
			die("pwrite");
	}
	if (fd >= 0)
		close(fd);
}

static void do_create(struct thread *t)
{
	int folder = some_folder(t), slot = free_slot(t, folder), at, fd;
	struct file *f = NULL;
	char path[512];

	for (at = 0; at < FILES && !f; at++)
		if (!t->files[at].there)
			f = &t->files[at];
	if (slot < 0 || !f)
		return;
	memset(f, 0, sizeof(*f));
	f->there = 1;
	f->folder = folder;
	f->slot = slot;
	f->id = t->op;
	if (!t->execute)
		return;
	file_path(t, folder, slot, path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
	if (fd < 0)
		die(path);
	close(fd);
}

static void do_folder(struct thread *t)
{
	int folder = 1 + next(t, FOLDERS - 1), parent = some_folder(t);
	char path[512];

	if (t->parent[folder] >= 0)
		return;
	t->parent[folder] = parent;
	folder_path(t, folder, path);
	if (t->execute && mkdir(path, 0755))
		die(path);
}

static void do_fsync(struct thread *t, struct file *f)
{
	int data = next(t, 3) == 0, fd;
	char path[512];

	if (t->execute) {
		file_path(t, f->folder, f->slot, path);
		fd = open(path, O_WRONLY);
		if (fd < 0 || (data ? fdatasync(fd) : fsync(fd)))
			die(path);
		close(fd);
		if (!t->unsaid)
			report(t->number, t->op);
	}
	/* What was not said to be done promises nothing, and nothing was done behind it. */
	if (!t->execute && t->op > t->until) {
		t->ended = 1;
		return;
	}
	t->synced = t->op;
	f->promised = 1;
	f->promised_blocks = f->blocks;
	memcpy(f->promise, f->written, sizeof(f->promise));
	f->cut = 0;
	/* A name is no data. */
	if (!data)
		f->moved = 0;
}

static void do_truncate(struct thread *t, struct file *f)
{
	int blocks = next(t, f->blocks + 1), at;
	char path[512];

	for (at = blocks; at < f->blocks; at++)
		f->written[at] = 0;
	f->blocks = blocks;
	f->cut = 1;
	file_path(t, f->folder, f->slot, path);
	if (t->execute && truncate(path, (off_t)blocks * BLOCK_BYTES))
		die(path);
}

static void do_rename(struct thread *t, struct file *f)
{
	int folder = some_folder(t), slot = free_slot(t, folder);
	char from[512], to[512];

	if (slot < 0)
		return;
	if (!f->moved) {
		f->was_folder = f->folder;
		f->was_slot = f->slot;
	} else {
		/* Twice: it may be anywhere. */
		f->promised = 0;
	}
	file_path(t, f->folder, f->slot, from);
	file_path(t, folder, slot, to);
	f->folder = folder;
	f->slot = slot;
	f->moved = 1;
	if (t->execute && rename(from, to))
		die(from);
}

static void do_unlink(struct thread *t, struct file *f)
{
	char path[512];

	f->there = 0;
	file_path(t, f->folder, f->slot, path);
	if (t->execute && unlink(path))
		die(path);
}

static void step(struct thread *t)
{
	int what = next(t, 100);
	struct file *f = what < 20 ? NULL : some_file(t);

	t->op++;
	if (what < 14)
		do_create(t);
	else if (what < 20)
		do_folder(t);
	else if (!f)
		return;
	else if (what < 40)
		write_blocks(t, f, f->blocks, 1 + next(t, 8));
	else if (what < 48)
		write_blocks(t, f, f->blocks ? next(t, f->blocks) : 0, 1);
	else if (what < 56)
		/* Holes: a tree of many extents. */
		write_blocks(t, f, 2 * next(t, BLOCKS / 2), 1);
	else if (what < 86 || plain)
		do_fsync(t, f);
	else if (what < 91)
		do_truncate(t, f);
	else if (what < 95)
		do_rename(t, f);
	else
		do_unlink(t, f);
}

static void begin_at(struct thread *t, const char *base, uint64_t seed, int number, int execute)
{
	int at;

	memset(t, 0, sizeof(*t));
	t->number = number;
	t->execute = execute;
	t->random = (seed * 1000 + number + 1) * 0x9e3779b97f4a7c15ULL;
	snprintf(t->base, sizeof(t->base), "%s", base);
	for (at = 1; at < FOLDERS; at++)
		t->parent[at] = -1;
}

static struct thread *begin(const char *base, uint64_t seed, int number, int execute)
{
	struct thread *t = malloc(sizeof(*t));

	if (!t)
		die("malloc");
	begin_at(t, base, seed, number, execute);
	return t;
}

static int broken(const char *path, const char *what, uint64_t is, uint64_t wanted)
{
	if (quiet)
		return 1;
	printf("broken: %s: %s: %llu, and %llu was promised\n", path, what, (unsigned long long)is,
	       (unsigned long long)wanted);
	return 1;
}

/* A block is of its file, whole, and as old as promised or newer. */
static int check_block(const char *path, int fd, uint64_t head, int number, uint64_t op)
{
	uint64_t block[WORDS];
	unsigned int at;

	if (pread(fd, block, sizeof(block), (off_t)number * BLOCK_BYTES) != sizeof(block))
		return broken(path, "a block that cannot be read", number, op);
	if (block[1] < op)
		return broken(path, "an older block", block[1], op);
	/* A hole, or one that was filled later. */
	if (!op && !block[1])
		head = 0, number = 0;
	for (at = 0; at < WORDS; at += 2)
		if (block[at] != (head | number) || block[at + 1] != block[1])
			return broken(path, "a block of something else", block[at], head | number);
	return 0;
}

static int check_at(struct thread *t, struct file *f, const char *path)
{
	int fd = open(path, O_RDONLY), at, bad = 0;
	struct stat st;

	if (fd < 0)
		return broken(path, "not there", 0, f->promised_blocks);
	if (fstat(fd, &st))
		die(path);
	/* After a truncation that is not known to be durable it may be shorter, and a block be a hole. */
	if (!f->cut) {
		if (st.st_size < (off_t)f->promised_blocks * BLOCK_BYTES)
			bad += broken(path, "bytes", st.st_size, (uint64_t)f->promised_blocks * BLOCK_BYTES);
		for (at = 0; at < f->promised_blocks && !bad; at++)
			bad += check_block(path, fd, (uint64_t)t->number << 56 | f->id << 16, at, f->promise[at]);
	}
	close(fd);
	return bad;
}

static int check_file(struct thread *t, struct file *f)
{
	char path[512];
	int bad;

	if (f->moved) {
		/* What stands under its new name may have to go yet. */
		file_path(t, f->was_folder, f->was_slot, path);
		quiet++;
		bad = check_at(t, f, path);
		quiet--;
		if (!bad)
			return 0;
	}
	file_path(t, f->folder, f->slot, path);
	return check_at(t, f, path);
}
