/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Threads that fsync at the same time, each its own files: one block more in each round, a new file every four rounds. An fsync that has ended is
 * said when it is its turn, another thread's first in each round: so what is promised has one order, and who is first is mostly not the one that
 * has written for all. Now and then one fsyncs the folder first, which is a commit, while the others go on.
 */
#define TOGETHER 8
#define TOGETHER_FILE 4

static pthread_mutex_t together_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t together_turn = PTHREAD_COND_INITIALIZER;
static uint64_t together_said;

static uint64_t together_path(char *path, uint64_t thread, uint64_t round)
{
	char kind[32];

	snprintf(kind, sizeof(kind), "t%llu-", (unsigned long long)thread);
	path_of(path, kind, round / TOGETHER_FILE);
	return (thread + 1) << 32 | (round / TOGETHER_FILE + 1);
}

/* Steps count from 0 here. */
static uint64_t together_thread(uint64_t step)
{
	return (step + step / TOGETHER) % TOGETHER;
}

static void together_commit(void)
{
	int fd = open_at(base, O_RDONLY);

	if (fsync(fd))
		die(base);
	close(fd);
}

static void *together_work(void *number)
{
	uint64_t thread = (uintptr_t)number, round, step, file;
	char path[512];
	int fd = -1;

	for (round = 0; round < steps / TOGETHER; round++) {
		file = together_path(path, thread, round);
		if (round % TOGETHER_FILE == 0) {
			if (fd >= 0)
				close(fd);
			fd = open_at(path, O_WRONLY | O_CREAT | O_EXCL);
		}
		if (round % TOGETHER_FILE == 1 && round / TOGETHER_FILE % TOGETHER == thread)
			together_commit();
		put(fd, file, round % TOGETHER_FILE, 1);
		if (fsync(fd))
			die("fsync");
		for (step = round * TOGETHER; together_thread(step) != thread;)
			step++;
		pthread_mutex_lock(&together_lock);
		while (together_said != step)
			pthread_cond_wait(&together_turn, &together_lock);
		report(0, ++together_said);
		pthread_cond_broadcast(&together_turn);
		pthread_mutex_unlock(&together_lock);
	}
	return NULL;
}

static void together_write(void)
{
	pthread_t threads[TOGETHER];
	uintptr_t thread;

	for (thread = 0; thread < TOGETHER; thread++)
		if (pthread_create(&threads[thread], NULL, together_work, (void *)thread))
			die("thread");
	for (thread = 0; thread < TOGETHER; thread++)
		pthread_join(threads[thread], NULL);
}

static uint64_t together_state(void)
{
	uint64_t step, thread, file, rounds[TOGETHER];
	char path[512];

	/* A commit between an fsync's data and its i-transaction may leave zeroes at the end. */
	for (thread = 0; thread < TOGETHER; thread++)
		for (rounds[thread] = 0; rounds[thread] < steps / TOGETHER; rounds[thread]++) {
			file = together_path(path, thread, rounds[thread]);
			if (own(path, file, 1) <= rounds[thread] % TOGETHER_FILE)
				break;
		}
	for (step = 0; step < steps / TOGETHER * TOGETHER; step++)
		if (rounds[together_thread(step)] <= step / TOGETHER)
			break;
	return step;
}
