// SPDX-License-Identifier: Apache-2.0
/*
 * A loadable extension for any program that uses SQLite: each of a database's files gets the journaling mode that fits
 * how it is written (Journaling of Journal Is (Almost) Free, FAST 2014, § 2.2).
 *
 *   database, rollback journal, super-journal   data: written here and there, made and deleted with each transaction
 *   write-ahead log                             ordered: appended to, and nothing else
 *
 *   .load ./journaling     (or sqlite3_load_extension()), then open databases: the extension is the default VFS from now on
 *
 * Files have their mode from the moment when SQLite opens them, so that PRAGMA journal_mode needs nothing of its own: a
 * journal or a log that it makes is opened here, too. Everything but opening is the VFS's own, without anything between.
 *
 * The mode is set on SQLite's own descriptor, by its system call "open" (sqlite3_vfs.xSetSystemCall). A descriptor of
 * our own would have to be closed, and closing one drops every lock that the process holds on the file (fcntl(2)).
 *
 * Where a mode cannot be set, the file keeps the one it has, and the program's error log (SQLITE_CONFIG_LOG) hears once
 * for each reason why. Nothing ever fails because of it.
 */
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#define EXT4_MAGIC 0xef53

/* vext4's own, by value; docs/guest-kernel.md. */
#define VEXT4_IOC_GET_JOURNALING _IO('f', 0xe0)
#define VEXT4_IOC_SET_JOURNALING _IO('f', 0xe1)
enum mode { DEFAULT, DATA, ORDERED };
static const char *const names[] = { "default", "data", "ordered" };

typedef int system_open(const char *path, int flags, int permissions);

/* What the open that is under way on this thread wants. */
static __thread struct {
	const char *path;
	enum mode mode;
} wish;

static sqlite3_vfs *below;
static system_open *open_below;

/* Each reason is told once. */
enum reason { NO_SYSTEM_CALL, NOT_EXT4, NOT_ALLOWED, DELAYED_ALLOCATION, JOURNAL_MOUNT, FAILED };

static void tell(enum reason reason, const char *path, enum mode mode, const char *why)
{
	static atomic_uint told;

	if (!(atomic_fetch_or(&told, 1u << reason) & 1u << reason))
		sqlite3_log(SQLITE_WARNING, "journaling: %s is not data=%s: %s", path, names[mode], why);
}

/* How stock ext4 is mounted: the attribute of one file means nothing under some options. */
struct mount {
	dev_t device;
	int journal;
	int delayed;
};

static struct mount look_up(dev_t device)
{
	struct mount found = { device, 0, 1 };
	char line[8192], wanted[32];
	FILE *table = fopen("/proc/self/mountinfo", "re");

	if (!table)
		return found;
	snprintf(wanted, sizeof(wanted), " %u:%u ", major(device), minor(device));
	while (fgets(line, sizeof(line), table)) {
		const char *options = strstr(line, " - ");

		if (!strstr(line, wanted) || !options)
			continue;
		found.journal = strstr(options, "data=journal") != NULL;
		found.delayed = !found.journal && !strstr(options, "nodelalloc");
		break;
	}
	fclose(table);
	return found;
}

/* The last one is remembered: a program's databases are on one file system. */
static struct mount mount_of(dev_t device)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct mount last;
	struct mount found;

	pthread_mutex_lock(&lock);
	if (last.device != device)
		last = look_up(device);
	found = last;
	pthread_mutex_unlock(&lock);
	return found;
}

static void set_on_stock(int fd, const char *path, enum mode mode)
{
	struct stat status;
	struct mount mount;
	int flags;

	if (fstat(fd, &status) || ioctl(fd, FS_IOC_GETFLAGS, &flags)) {
		tell(FAILED, path, mode, strerror(errno));
		return;
	}
	mount = mount_of(status.st_dev);
	if (mount.journal) {
		if (mode == ORDERED)
			tell(JOURNAL_MOUNT, path, mode, "all data is journaled here (data=journal), and only vext4 can except a file");
		return;
	}
	if (!(flags & FS_JOURNAL_DATA_FL) == (mode != DATA))
		goto set;
	flags ^= FS_JOURNAL_DATA_FL;
	if (ioctl(fd, FS_IOC_SETFLAGS, &flags)) {
		if (errno == EPERM)
			tell(NOT_ALLOWED, path, mode, "ext4 asks for CAP_SYS_RESOURCE; chattr +j on the folder gives it to new files");
		else
			tell(FAILED, path, mode, strerror(errno));
		return;
	}
set:
	if (mode == DATA && mount.delayed)
		tell(DELAYED_ALLOCATION, path, mode, "ext4 honours the attribute only where it is mounted with nodelalloc");
}

static void set(int fd, const char *path, enum mode mode)
{
	struct statfs fs;
	int now;

	if (fstatfs(fd, &fs) || fs.f_type != EXT4_MAGIC) {
		tell(NOT_EXT4, path, mode, "it is not on ext4");
		return;
	}
	now = ioctl(fd, VEXT4_IOC_GET_JOURNALING, 0);
	if (now < 0)
		set_on_stock(fd, path, mode);
	else if (now != (int)mode && ioctl(fd, VEXT4_IOC_SET_JOURNALING, mode))
		tell(errno == EPERM ? NOT_ALLOWED : FAILED, path, mode, strerror(errno));
}

/* SQLite's system call. */
static int open_and_set(const char *path, int flags, int permissions)
{
	int fd = open_below(path, flags, permissions);
	int before = errno;

	if (fd >= 0 && wish.path && !strcmp(path, wish.path) && (flags & O_ACCMODE) != O_RDONLY)
		set(fd, path, wish.mode);
	errno = before;
	return fd;
}

static int vfs_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *file, int flags, int *out)
{
	int status;

	(void)vfs;
	if (path && flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_SUPER_JOURNAL | SQLITE_OPEN_WAL)) {
		wish.path = path;
		wish.mode = flags & SQLITE_OPEN_WAL ? ORDERED : DATA;
	}
	status = below->xOpen(below, path, file, flags, out);
	wish.path = NULL;
	return status;
}

/* What is below hears all else as if it had been asked itself. */

static int vfs_delete(sqlite3_vfs *vfs, const char *path, int sync)
{
	(void)vfs;
	return below->xDelete(below, path, sync);
}

static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *out)
{
	(void)vfs;
	return below->xAccess(below, path, flags, out);
}

static int vfs_full_pathname(sqlite3_vfs *vfs, const char *path, int size, char *out)
{
	(void)vfs;
	return below->xFullPathname(below, path, size, out);
}

static void *vfs_dl_open(sqlite3_vfs *vfs, const char *path)
{
	(void)vfs;
	return below->xDlOpen(below, path);
}

static void vfs_dl_error(sqlite3_vfs *vfs, int size, char *out)
{
	(void)vfs;
	below->xDlError(below, size, out);
}

static void (*vfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *symbol))(void)
{
	(void)vfs;
	return below->xDlSym(below, library, symbol);
}

static void vfs_dl_close(sqlite3_vfs *vfs, void *library)
{
	(void)vfs;
	below->xDlClose(below, library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int size, char *out)
{
	(void)vfs;
	return below->xRandomness(below, size, out);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds)
{
	(void)vfs;
	return below->xSleep(below, microseconds);
}

static int vfs_current_time(sqlite3_vfs *vfs, double *out)
{
	(void)vfs;
	return below->xCurrentTime(below, out);
}

static int vfs_get_last_error(sqlite3_vfs *vfs, int size, char *out)
{
	(void)vfs;
	return below->xGetLastError(below, size, out);
}

static int vfs_current_time_int64(sqlite3_vfs *vfs, sqlite3_int64 *out)
{
	(void)vfs;
	return below->xCurrentTimeInt64(below, out);
}

static int vfs_set_system_call(sqlite3_vfs *vfs, const char *name, sqlite3_syscall_ptr call)
{
	(void)vfs;
	return below->xSetSystemCall(below, name, call);
}

static sqlite3_syscall_ptr vfs_get_system_call(sqlite3_vfs *vfs, const char *name)
{
	(void)vfs;
	return below->xGetSystemCall(below, name);
}

static const char *vfs_next_system_call(sqlite3_vfs *vfs, const char *name)
{
	(void)vfs;
	return below->xNextSystemCall(below, name);
}

static sqlite3_vfs shim = {
	.iVersion = 3,
	.zName = "journaling",
	.xOpen = vfs_open,
	.xDelete = vfs_delete,
	.xAccess = vfs_access,
	.xFullPathname = vfs_full_pathname,
	.xDlOpen = vfs_dl_open,
	.xDlError = vfs_dl_error,
	.xDlSym = vfs_dl_sym,
	.xDlClose = vfs_dl_close,
	.xRandomness = vfs_randomness,
	.xSleep = vfs_sleep,
	.xCurrentTime = vfs_current_time,
	.xGetLastError = vfs_get_last_error,
	.xCurrentTimeInt64 = vfs_current_time_int64,
	.xSetSystemCall = vfs_set_system_call,
	.xGetSystemCall = vfs_get_system_call,
	.xNextSystemCall = vfs_next_system_call,
};

__attribute__((visibility("default")))
int sqlite3_extension_init(sqlite3 *db, char **error, const sqlite3_api_routines *api)
{
	SQLITE_EXTENSION_INIT2(api);
	(void)db;
	(void)error;
	/* Loaded by another connection: it stays, and is there once. */
	if (sqlite3_vfs_find(shim.zName))
		return SQLITE_OK_LOAD_PERMANENTLY;
	below = sqlite3_vfs_find(NULL);
	if (below->iVersion >= 3 && below->xSetSystemCall && below->xGetSystemCall)
		open_below = (system_open *)below->xGetSystemCall(below, "open");
	if (!open_below || below->xSetSystemCall(below, "open", (sqlite3_syscall_ptr)open_and_set)) {
		tell(NO_SYSTEM_CALL, "any file", DATA, "SQLite's VFS has no system call open that could be followed");
		return SQLITE_OK_LOAD_PERMANENTLY;
	}
	shim.szOsFile = below->szOsFile;
	shim.mxPathname = below->mxPathname;
	if (sqlite3_vfs_register(&shim, 1)) {
		below->xSetSystemCall(below, "open", (sqlite3_syscall_ptr)open_below);
		return SQLITE_ERROR;
	}
	return SQLITE_OK_LOAD_PERMANENTLY;
}
