// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/* See afterimage_guest.h. */
#define _GNU_SOURCE
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "afterimage_control_disk.h"
#include "afterimage_guest.h"

/* Somebody else's answer is in our slot, or none because the daemon was started again: how often a command is sent. */
#define TRIES 16

struct afterimage {
	int fd;
	off_t slot;
	uint64_t tag;
	/* Direct I/O wants aligned memory. */
	struct afterimage_answer *sector;
	char device[64];
	char text[AFTERIMAGE_TEXT_BYTES_MAX + 1];
};

/* CRC-32C (Castagnoli), of a sector now and then. */
static uint32_t checksum(const void *bytes, size_t length)
{
	const unsigned char *byte = bytes;
	uint32_t crc = ~0u;
	int bit;

	while (length--) {
		crc ^= *byte++;
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static int is_control_disk(const char *name)
{
	char path[300], serial[64] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/sys/block/%s/serial", name);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (!fgets(serial, sizeof(serial), file))
		serial[0] = 0;
	fclose(file);
	serial[strcspn(serial, "\n")] = 0;
	return !strcmp(serial, AFTERIMAGE_CONTROL_SERIAL);
}

static int find(char *device, size_t length)
{
	DIR *folder = opendir("/sys/block");
	struct dirent *entry;
	int found = -1;

	errno = ENODEV;
	if (!folder)
		return -1;
	while (found < 0 && (entry = readdir(folder))) {
		if (is_control_disk(entry->d_name))
			found = snprintf(device, length, "/dev/%s", entry->d_name) < (int)length ? 0 : -1;
	}
	closedir(folder);
	if (found < 0)
		errno = ENODEV;
	return found;
}

/* A slot of our own, as far as everybody locks: the tag tells answers apart where somebody does not. */
static int take_slot(struct afterimage *control)
{
	const unsigned int slots = AFTERIMAGE_SLOTS - 1 - AFTERIMAGE_FILE_SYSTEM_SLOTS;
	unsigned int first = now_ns() / 1000 % slots, n;
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = AFTERIMAGE_SECTOR_BYTES };

	for (n = 0; n <= slots; n++) {
		control->slot = (off_t)(1 + (first + n) % slots) * AFTERIMAGE_SLOT_BYTES;
		lock.l_start = control->slot;
		/* All are taken: wait for the last one that was tried. */
		if (!fcntl(control->fd, n < slots ? F_OFD_SETLK : F_OFD_SETLKW, &lock))
			return 0;
		if (errno != EAGAIN && errno != EACCES)
			return -1;
	}
	return -1;
}

static int read_answer(struct afterimage *control, off_t at)
{
	struct afterimage_answer *answer = control->sector;
	ssize_t got = pread(control->fd, answer, sizeof(*answer), at);
	uint32_t crc;
	size_t length;

	if (got != sizeof(*answer)) {
		if (got >= 0)
			errno = EIO;
		return -1;
	}
	crc = le32toh(answer->crc);
	answer->crc = 0;
	length = le16toh(answer->text_len);
	if (memcmp(answer->magic, AFTERIMAGE_ANSWER_MAGIC, sizeof(answer->magic)) ||
	    le16toh(answer->version) != AFTERIMAGE_CONTROL_VERSION || checksum(answer, sizeof(*answer)) != crc ||
	    length > AFTERIMAGE_TEXT_BYTES_MAX) {
		snprintf(control->text, sizeof(control->text), "%s is no control disk that this program knows", control->device);
		errno = EPROTO;
		return -1;
	}
	memcpy(control->text, answer->text, length);
	control->text[length] = 0;
	return 0;
}

void afterimage_close(struct afterimage *control)
{
	int error = errno;

	if (control && control->fd >= 0)
		close(control->fd);
	if (control)
		free(control->sector);
	free(control);
	errno = error;
}

int afterimage_open(struct afterimage **opened, const char *device)
{
	struct afterimage *control = calloc(1, sizeof(*control));
	void *sector;
	int error;

	*opened = NULL;
	if (!control)
		return -1;
	control->fd = -1;
	error = posix_memalign(&sector, 4096, 4096);
	if (error) {
		errno = error;
		goto failed;
	}
	control->sector = sector;
	if (device && snprintf(control->device, sizeof(control->device), "%s", device) >= (int)sizeof(control->device)) {
		errno = ENAMETOOLONG;
		goto failed;
	}
	if (!device && find(control->device, sizeof(control->device)))
		goto failed;
	control->fd = open(control->device, O_RDWR | O_DIRECT | O_CLOEXEC);
	if (control->fd < 0 || read_answer(control, 0) || take_slot(control))
		goto failed;
	control->tag = now_ns() ^ (uint64_t)getpid() << 40;
	*opened = control;
	return 0;
failed:
	afterimage_close(control);
	return -1;
}

static int command(struct afterimage *control, int operation, const struct afterimage_point *point, int timeout_ms,
		   const unsigned char *file_system)
{
	struct afterimage_command *sent = (struct afterimage_command *)control->sector;
	struct afterimage_answer *answer = control->sector;
	int attempt, error;
	ssize_t put;

	for (attempt = 0; attempt < TRIES; attempt++) {
		memset(sent, 0, sizeof(*sent));
		memcpy(sent->magic, AFTERIMAGE_COMMAND_MAGIC, sizeof(sent->magic));
		sent->version = htole16(AFTERIMAGE_CONTROL_VERSION);
		sent->operation = htole16(operation);
		sent->tag = htole64(++control->tag);
		if (point) {
			sent->instance = htole64(point->instance);
			sent->sequence = htole64(point->sequence);
		}
		sent->timeout_ms = htole32(timeout_ms);
		if (file_system)
			memcpy(sent->file_system, file_system, sizeof(sent->file_system));
		sent->crc = htole32(checksum(sent, sizeof(*sent)));
		put = pwrite(control->fd, sent, sizeof(*sent), control->slot);
		error = put < 0 ? errno : put == sizeof(*sent) ? 0 : EIO;
		if (read_answer(control, control->slot))
			return -1;
		if (le64toh(answer->tag) != control->tag || le16toh(answer->operation) != operation) {
			/* What was refused before its tag was read has no other answer. */
			if (error && le16toh(answer->operation) == AFTERIMAGE_NONE && le16toh(answer->status)) {
				errno = error;
				return -1;
			}
			continue;
		}
		switch (le16toh(answer->status)) {
		case AFTERIMAGE_DONE:
			errno = error;
			return error ? -1 : 0;
		case AFTERIMAGE_NOT_YET:
			errno = ETIMEDOUT;
			return -1;
		case AFTERIMAGE_UNSUPPORTED:
			errno = EOPNOTSUPP;
			return -1;
		default:
			errno = EIO;
			return -1;
		}
	}
	snprintf(control->text, sizeof(control->text), "%s does not answer: somebody else writes to its slots", control->device);
	errno = EBUSY;
	return -1;
}

static int point_of(struct afterimage *control, int operation, struct afterimage_point *point)
{
	if (command(control, operation, NULL, 0, NULL))
		return -1;
	if (point) {
		point->instance = le64toh(control->sector->instance);
		point->sequence = le64toh(control->sector->sequence);
	}
	return 0;
}

int afterimage_order(struct afterimage *control, struct afterimage_point *point)
{
	return point_of(control, AFTERIMAGE_VORDER, point);
}

int afterimage_flush(struct afterimage *control, struct afterimage_point *point)
{
	return point_of(control, AFTERIMAGE_VFLUSH, point);
}

int afterimage_look(struct afterimage *control, struct afterimage_point *newest, struct afterimage_point *durable)
{
	const struct afterimage_answer *answer = control->sector;

	if (read_answer(control, 0))
		return -1;
	if (newest) {
		newest->instance = le64toh(answer->instance);
		newest->sequence = le64toh(answer->sequence);
	}
	if (durable) {
		durable->instance = le64toh(answer->instance);
		durable->sequence = le64toh(answer->durable);
	}
	return 0;
}

int afterimage_wait(struct afterimage *control, const struct afterimage_point *point, int timeout_ms)
{
	uint64_t until = now_ns() + (timeout_ms < 0 ? 0 : timeout_ms) * 1000000ull, now;
	struct afterimage_point here;
	int part;

	for (;;) {
		now = now_ns();
		part = AFTERIMAGE_WAIT_MS_MAX;
		if (timeout_ms >= 0 && until < now + part * 1000000ull)
			part = until > now ? (until - now + 999999) / 1000000 : 0;
		if (!command(control, AFTERIMAGE_WAIT, point, part, NULL))
			return 0;
		if (errno != ETIMEDOUT || (timeout_ms >= 0 && now_ns() >= until))
			return -1;
		/* Asked in parts, each of which would mean another now; and what is read lacks what is published. */
		if (!point) {
			here.instance = le64toh(control->sector->instance);
			here.sequence = le64toh(control->sector->sequence);
			point = &here;
		}
	}
}

int afterimage_retained(struct afterimage *control, const unsigned char file_system[16], int bring_home,
			struct afterimage_retained *retained)
{
	const struct afterimage_held *held = &control->sector->held;

	if (command(control, bring_home ? AFTERIMAGE_RECOVER : AFTERIMAGE_QUERY, NULL, 0, file_system))
		return -1;
	retained->versions = le64toh(held->versions);
	retained->pending = le64toh(held->pending);
	retained->data_bytes = le64toh(held->data_bytes);
	retained->information_bytes = le64toh(held->information_bytes);
	return 0;
}

const char *afterimage_text(const struct afterimage *control)
{
	return control->text;
}

const char *afterimage_device(const struct afterimage *control)
{
	return control->device;
}
