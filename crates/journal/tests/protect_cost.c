/*
 * What a process can do against stores of another one to memory that both have mapped, and what protecting a page costs beside copying it.
 * Run by protect_cost.rs.
 *
 * The other process is a VMM, whose virtual processors store through its mapping; this one is the daemon, which has the same memory as vhost-user
 * gives it: a descriptor of a memfd.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
/* Each round has pages of its own, which are in no cache. */
#define PAGES 64
#define ROUNDS 200
#define POOL (PAGES * ROUNDS * (size_t)PAGE)

static volatile uint64_t *page;

static double now_us(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return at.tv_sec * 1e6 + at.tv_nsec / 1e3;
}

/* Whether the other process still changes the page, within a tenth of a second. */
static void goes_on(const char *what, int failed)
{
	uint64_t before = *page;
	int turns;

	for (turns = 0; turns < 100 && *page == before; turns++)
		usleep(1000);
	printf("%s: %s, the other's stores %s\n", what, failed ? strerror(failed) : "accepted", *page == before ? "end" : "go on");
}

static int protect_by_userfaultfd(void *at, size_t bytes)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM };
	struct uffdio_register range = { .range = { (uintptr_t)at, bytes }, .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect protect = { .range = { (uintptr_t)at, bytes }, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range) || ioctl(fd, UFFDIO_WRITEPROTECT, &protect))
		return errno;
	return 0;
}

static uint8_t *pool, *all_copies;

/* Copy-on-write: what was protected is copied, and may be stored to again. */
static void fault(int signal, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1);

	memcpy(all_copies + (at - (uintptr_t)pool), (void *)at, PAGE);
	mprotect((void *)at, PAGE, PROT_READ | PROT_WRITE);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

enum way { COPY, PROTECT, PROTECT_AND_STORE };

/* The median of what it takes, in microseconds a page. */
static double cost_us(enum way way, int pages)
{
	static double took[ROUNDS];
	int round, n;

	for (round = 0; round < ROUNDS; round++) {
		uint8_t *memory = pool + (size_t)round * PAGES * PAGE, *copies = all_copies + (size_t)round * PAGES * PAGE;
		double begun = now_us();

		for (n = 0; n < pages; n++) {
			if (way == COPY)
				memcpy(copies + n * PAGE, memory + n * PAGE, PAGE);
			else
				/* Pages of a transaction do not lie side by side. */
				mprotect(memory + n * PAGE, PAGE, PROT_READ);
		}
		for (n = 0; way == PROTECT_AND_STORE && n < pages; n++)
			memory[n * PAGE] = round;
		for (n = 0; way == PROTECT && n < pages; n++)
			mprotect(memory + n * PAGE, PAGE, PROT_READ | PROT_WRITE);
		took[round] = (now_us() - begun) / pages;
	}
	qsort(took, ROUNDS, sizeof(*took), by_size);
	return took[ROUNDS / 2];
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = fault, .sa_flags = SA_SIGINFO };
	int fd = memfd_create("guest", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	static const int sizes[] = { 1, 8, 64 };
	pid_t other;
	size_t at;

	if (fd < 0 || ftruncate(fd, PAGE))
		return 1;
	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	other = fork();
	if (other == 0) {
		volatile uint64_t *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			++*own;
	}
	usleep(20000);
	goes_on("seal F_SEAL_WRITE", fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) ? errno : 0);
	goes_on("seal F_SEAL_FUTURE_WRITE", fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) ? errno : 0);
	goes_on("fchmod 0400", fchmod(fd, 0400) ? errno : 0);
	goes_on("mprotect of our mapping", mprotect((void *)page, PAGE, PROT_READ) ? errno : 0);
	goes_on("userfaultfd, write protection of our mapping", protect_by_userfaultfd((void *)page, PAGE));
	kill(other, SIGKILL);
	waitpid(other, NULL, 0);

	pool = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	all_copies = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	memset(pool, 1, POOL);
	sigaction(SIGSEGV, &action, NULL);
	for (at = 0; at < sizeof(sizes) / sizeof(*sizes); at++)
		printf("%2d pages, µs a page: copied %.2f, protected and released %.2f, protected and stored to %.2f\n", sizes[at], cost_us(COPY, sizes[at]),
		       cost_us(PROTECT, sizes[at]), cost_us(PROTECT_AND_STORE, sizes[at]));
	return 0;
}
