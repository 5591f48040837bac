/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * For programs in a guest: order, flush and wait for durability through the control disk (docs/control-disk.md). What such a call
 * covers has reached the disk before: what is still in the guest's page cache is not covered. Sync it first (fsync, sync).
 *
 * Every call returns 0, or -1 with errno. A handle may be used from one thread at a time.
 */
#ifndef AFTERIMAGE_GUEST_H
#define AFTERIMAGE_GUEST_H

#include <stdint.h>

struct afterimage;

/* A place in the history of all disks of the guest. Good also after restarts of guest and host's daemon. */
struct afterimage_point {
	uint64_t instance;
	uint64_t sequence;
};

/* Opens the control disk: DEVICE, or the one that there is (NULL). ENODEV: there is none. */
int afterimage_open(struct afterimage **opened, const char *device);
void afterimage_close(struct afterimage *control);

/* Nothing that is written later survives a power cut unless everything before the point does. */
int afterimage_order(struct afterimage *control, struct afterimage_point *point);

/* Everything before the point survives a power cut now, whatever the contract. */
int afterimage_flush(struct afterimage *control, struct afterimage_point *point);

/*
 * Waits until everything before the point (NULL: now) survives a power cut. ETIMEDOUT: not within timeout_ms; negative: for
 * ever. Forces nothing where durability comes by itself.
 */
int afterimage_wait(struct afterimage *control, const struct afterimage_point *point, int timeout_ms);

/*
 * The newest point, and the one up to which everything survives a power cut. Either may be NULL. It is only read: a commit that a file
 * system has published (vma_exitless) may be behind both. For a point behind everything use afterimage_order.
 */
int afterimage_look(struct afterimage *control, struct afterimage_point *newest, struct afterimage_point *durable);

/* What the daemon retains of a file system's journal. */
struct afterimage_retained {
	uint64_t versions;		/* blocks of which a committed version is known */
	uint64_t pending;		/* those whose home has not been written since */
	uint64_t data_bytes;
	uint64_t information_bytes;	/* what is known about them */
};

/* The same of the file system with this UUID, with bring_home after what is committed has gone home, durably. */
int afterimage_retained(struct afterimage *control, const unsigned char file_system[16], int bring_home,
			struct afterimage_retained *retained);

/* One sentence: what was wrong with the last call; after afterimage_look, the promise in force. */
const char *afterimage_text(const struct afterimage *control);

/* The device's name. */
const char *afterimage_device(const struct afterimage *control);

#endif
