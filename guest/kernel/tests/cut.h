/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Threads that write files and cut them again, never an fsync; beside them files are made whose folder is fsynced, which is a commit. So commits come in
 * the middle of truncations: between the new size and the blocks that go, which is when a file is on the list of orphans.
 */
#define CUT_THREADS 6
#define CUT_BLOCKS 128
#define CUT_KEPT 6

static void *cut_work(void *number)
{
	uint64_t thread = (uintptr_t)number, at = 0;
	char path[512];
	int fd;

	path_of(path, "cut", thread);
	fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
	for (;; at++) {
		put(fd, thread, 0, CUT_BLOCKS);
		/* Sometimes its blocks are home by then. */
		if (at % 2 && sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE))
			die("sync_file_range");
		if (ftruncate(fd, (off_t)CUT_KEPT * BLOCK_BYTES))
			die("truncate");
	}
	return NULL;
}

static void cut_write(void)
{
	pthread_t thread;
	uintptr_t number;
	char path[512];
	uint64_t step;
	int fd;

	for (number = 0; number < CUT_THREADS; number++)
		if (pthread_create(&thread, NULL, cut_work, (void *)number))
			die("thread");
	for (step = 1; step <= steps; step++) {
		path_of(path, "s", step);
		close(open_at(path, O_WRONLY | O_CREAT | O_EXCL));
		fd = open_at(base, O_RDONLY);
		done(fd, step);
	}
}

static uint64_t cut_state(void)
{
	uint64_t step = 0, thread;
	char path[512];

	for (thread = 0; thread < CUT_THREADS; thread++) {
		path_of(path, "cut", thread);
		own(path, thread, 1);
	}
	do
		path_of(path, "s", ++step);
	while (step <= steps && !access(path, F_OK));
	return step - 1;
}
