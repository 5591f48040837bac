// SPDX-License-Identifier: GPL-2.0
/*
 * fsynced: random operations on files, some of which are fsynced, and what a crash has left of those.
 *
 *   fsynced write FOLDER SEED     threads make folders, create, write, truncate, rename, unlink and fsync, and say {"mark":"THREAD OP"} after
 *                                 each fsync; one more appends to one file, on another CPU each time
 *   fsynced check FOLDER SEED THREAD:OP...    what each thread has said last
 *   fsynced turns FOLDER SEED TURNS           the threads take turns, so that there is one order: {"mark":"0 TURN"}
 *   fsynced state FOLDER SEED TURNS           the newest mark whose promises are kept
 *
 * SEED may be followed by p (nothing is truncated, renamed or unlinked, so that nothing but time is a reason for a commit) and by
 * @N: so many threads, 4 where nothing is said.
 */
#include "actors.h"

#define THREADS_MAX 16

static int threads_count = 4;
/* Where something was not as promised last. */
static int suspect, suspect_file;

static int check_files(struct thread *t, int *files)
{
	struct file *f;
	int bad = 0;

	for (f = t->files; f < t->files + FILES; f++)
		if (f->there && f->promised) {
			++*files;
			bad += check_file(t, f);
			if (bad && quiet) {
				suspect_file = f - t->files;
				break;
			}
		}
	return bad;
}

static void make_folder(struct thread *t)
{
	char path[512];

	folder_path(t, 0, path);
	if (mkdir(path, 0755))
		die(path);
}

static void *work(void *data)
{
	struct thread *t = data;

	make_folder(t);
	for (;;)
		step(t);
	return NULL;
}

/* One file, fsynced on another CPU each time: only the order of their i-transactions tells the newest. */
static void append(const char *base)
{
	uint64_t block[WORDS], op;
	cpu_set_t cpus;
	char path[512];
	int fd;

	snprintf(path, sizeof(path), "%s/appended", base);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
	if (fd < 0)
		die(path);
	for (op = 1;; op++) {
		CPU_ZERO(&cpus);
		CPU_SET(op % sysconf(_SC_NPROCESSORS_ONLN), &cpus);
		if (sched_setaffinity(0, sizeof(cpus), &cpus))
			die("affinity");
		fill(block, APPENDER, 0, op % 65536, op);
		if (write(fd, block, sizeof(block)) != sizeof(block) || fsync(fd))
			die("append");
		report(APPENDER, op);
	}
}

static int check(const char *base, uint64_t seed, int count, char **said)
{
	int at, number, bad = 0, files = 0, fd;
	unsigned long long op, each;
	struct thread *t;
	char path[512];

	for (at = 0; at < count; at++) {
		if (sscanf(said[at], "%d:%llu", &number, &op) != 2)
			return 2;
		if (number == APPENDER) {
			snprintf(path, sizeof(path), "%s/appended", base);
			fd = open(path, O_RDONLY);
			if (fd < 0) {
				bad += broken(path, "not there", 0, op);
				continue;
			}
			for (each = 1; each <= op && !bad; each++) {
				uint64_t block[WORDS];

				if (pread(fd, block, sizeof(block), (off_t)(each - 1) * BLOCK_BYTES) != sizeof(block))
					bad += broken(path, "blocks", each - 1, op);
				else if (block[1] != each || block[WORDS - 1] != each)
					bad += broken(path, "another block", block[1], each);
			}
			files++;
			continue;
		}
		t = begin(base, seed, number, 0);
		t->until = op;
		while (!t->ended)
			step(t);
		bad += check_files(t, &files);
		free(t);
	}
	printf("%d files as promised, %d not\n", files - bad, bad);
	return bad ? 65 : 0;
}

/* Always the same memory: new pages are dear in User Mode Linux. */
static struct thread all[THREADS_MAX];

static void begin_all(const char *base, uint64_t seed, int execute)
{
	int at;

	for (at = 0; at < threads_count; at++) {
		begin_at(&all[at], base, seed, at, execute);
		all[at].until = UINT64_MAX;
	}
}

/* One step after the other: the threads are none. */
static int turns(const char *base, uint64_t seed, uint64_t count)
{
	uint64_t turn;
	int at;

	begin_all(base, seed, 1);
	for (at = 0; at < threads_count; at++)
		make_folder(&all[at]);
	for (turn = 1; turn <= count; turn++) {
		struct thread *t = &all[turn % threads_count];

		t->unsaid = 1;
		step(t);
		if (t->synced == t->op)
			report(0, turn);
	}
	return 0;
}

/* Whether all that was promised up to a turn is there, whatever came behind it up to the next fsync. */
static int kept(const char *base, uint64_t seed, uint64_t count, uint64_t until)
{
	int at, bad = 0, files = 0, ended = 0, actor;
	struct file *f;
	uint64_t turn;

	begin_all(base, seed, 0);
	for (turn = 1; turn <= count && !ended; turn++) {
		struct thread *t = &all[turn % threads_count];

		if (turn > until)
			t->until = t->op;
		step(t);
		ended = t->ended;
		/* Not an fsync. */
		if (turn == until && t->synced != t->op)
			bad++;
	}
	/* What was missing for a later turn mostly is for this one. */
	for (at = 0; at < threads_count && !bad; at++) {
		actor = (suspect + at) % threads_count;
		f = &all[actor].files[suspect_file];
		if (at == 0 && f->there && f->promised)
			bad += check_file(&all[actor], f);
		if (!bad)
			bad += check_files(&all[actor], &files);
		if (bad)
			suspect = actor;
	}
	return !bad;
}

static int state(const char *base, uint64_t seed, uint64_t count)
{
	uint64_t turn;

	quiet++;
	for (turn = count; turn && !kept(base, seed, count, turn);)
		turn--;
	if (turn)
		printf("0 %llu\n", (unsigned long long)turn);
	else
		printf("begin\n");
	return 0;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS_MAX];
	uint64_t seed;
	char *end;
	int at;

	if (argc < 4)
		return 2;
	seed = strtoull(argv[3], &end, 10);
	plain = *end == 'p';
	if (strchr(end, '@'))
		threads_count = atoi(strchr(end, '@') + 1);
	if (threads_count < 1 || threads_count > THREADS_MAX)
		return 2;
	if (!strcmp(argv[1], "check"))
		return check(argv[2], seed, argc - 4, argv + 4);
	if (argc == 5 && !strcmp(argv[1], "turns"))
		return turns(argv[2], seed, strtoull(argv[4], NULL, 10));
	if (argc == 5 && !strcmp(argv[1], "state"))
		return state(argv[2], seed, strtoull(argv[4], NULL, 10));
	if (argc != 4 || strcmp(argv[1], "write"))
		return 2;
	for (at = 0; at < threads_count; at++)
		if (pthread_create(&threads[at], NULL, work, begin(argv[2], seed, at, 1)))
			die("thread");
	append(argv[2]);
	return 0;
}
