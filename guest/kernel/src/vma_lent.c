// SPDX-License-Identifier: GPL-2.0
/*
 * The exitless commit (VM Aware Journaling, § 3.2): a transaction is published by one store, and no request is sent.
 *
 * Where it is published is memory that the control disk has as the buffer of a read, which it holds for a while and
 * looks at meanwhile (struct afterimage_lent). Blocks are copied there, and stay as they are until the control disk has
 * taken them, or the read has ended without; then they are sent as commands. There is one publication at a time.
 *
 * A sync may return when its transaction is published. Nothing else may: the commit goes on, and homes are written,
 * blocks reused and tails moved, when the control disk has taken it. So what is written home never depends on a
 * transaction that could be lost, and what can be lost is the one transaction that was published and not taken; in no
 * crash of this machine, as long as the host's process lives.
 *
 * How long it says so is bounded: a sync that comes later than AFTERIMAGE_PUBLISHED_US_MAX after the store waits until
 * the transaction is taken.
 *
 * Before another kernel is started in this memory without a reset of the device (kexec), what is published is taken,
 * and nothing is published any more.
 */

#define pr_fmt(fmt) "JBD2: " fmt

#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/buffer_head.h>
#include <linux/completion.h>
#include <linux/crc32.h>
#include <linux/delay.h>
#include <linux/faults.h>
#include <linux/highmem.h>
#include <linux/jbd2.h>
#include <linux/ktime.h>
#include <linux/reboot.h>
#include <linux/slab.h>
#include "vma_control.h"
#include "vma_lent.h"

/* How often it is looked whether something was taken, in microseconds: twice as long each time. */
#define VMAJ_LOOK_US 20
#define VMAJ_LOOK_US_MAX 1000
/* How long a reboot waits for what is published, in milliseconds. */
#define VMAJ_REBOOT_MS 10000

/**
 * struct vmaj_lent - memory that is lent
 * @bdev: the control disk
 * @first: what is said of it, in its first page
 * @pages: all of them
 * @count: how many
 * @offered: the read was sent, and has not been seen to end
 * @refused: it is not to be sent again
 * @leaving: another kernel may be next
 * @over: the read has ended
 * @published: the newest publication
 * @tid: the newest transaction that counts as committed because it is published
 * @since: when that was
 * @reboot: whoever wants to start another kernel
 */
struct vmaj_lent {
	struct block_device *bdev;
	struct afterimage_lent *first;
	struct page **pages;
	unsigned int count;
	bool offered;
	bool refused;
	bool leaving;
	struct completion over;
	u32 published;
	tid_t tid;
	u64 since;
	struct notifier_block reboot;
};

static bool vmaj_lent_is_open(struct vmaj_lent *lent)
{
	return READ_ONCE(lent->first->state) == cpu_to_le32(AFTERIMAGE_OPEN) && !READ_ONCE(lent->leaving);
}

static bool vmaj_lent_is_taken(struct vmaj_lent *lent)
{
	/* What was copied may be changed behind this. */
	return smp_load_acquire(&lent->first->taken) == cpu_to_le32(READ_ONCE(lent->published));
}

static int vmaj_lent_reboots(struct notifier_block *reboot, unsigned long action, void *data)
{
	struct vmaj_lent *lent = container_of(reboot, struct vmaj_lent, reboot);
	unsigned int ms;

	WRITE_ONCE(lent->leaving, true);
	/* Pairs with vmaj_lent_publish(): what is not seen here does not count as committed. */
	smp_mb();
	for (ms = 0; ms < VMAJ_REBOOT_MS && !vmaj_lent_is_taken(lent) && !completion_done(&lent->over); ms++)
		usleep_range(1000, 1500);
	return NOTIFY_DONE;
}

/* Say whose commits will be published. */
static void vmaj_lent_name(struct vmaj_lent *lent, const struct vmaj_control *control)
{
	struct afterimage_lent *first = lent->first;

	memcpy(first->magic, AFTERIMAGE_LENT_MAGIC, sizeof(first->magic));
	first->version = cpu_to_le16(AFTERIMAGE_CONTROL_VERSION);
	first->instance = cpu_to_le64(control->instance);
	first->sequence = cpu_to_le64(control->sequence);
	memcpy(first->file_system, control->file_system, sizeof(first->file_system));
	first->crc = cpu_to_le32(~__crc32c_le(~0, (void *)first, offsetof(struct afterimage_lent, published)));
}

/**
 * vmaj_lent_alloc - memory to be lent
 * @control: to the control disk, which has been asked by which right
 *
 * Return: the memory, or NULL where there is none.
 */
struct vmaj_lent *vmaj_lent_alloc(const struct vmaj_control *control)
{
	struct vmaj_lent *lent = kzalloc(sizeof(*lent), GFP_KERNEL);
	/* One request reads all of it. */
	unsigned int pages = control->blocks_max;
	unsigned int i;

	BUILD_BUG_ON(sizeof(*lent->first) != PAGE_SIZE);
	if (!lent)
		return NULL;
	lent->bdev = control->disk.bdev;
	init_completion(&lent->over);
	complete(&lent->over);
	lent->reboot.notifier_call = vmaj_lent_reboots;
	lent->pages = kcalloc(pages, sizeof(*lent->pages), GFP_KERNEL);
	for (i = 0; lent->pages && i < pages; i++) {
		lent->pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!lent->pages[i])
			break;
		lent->count++;
	}
	if (!lent->pages || lent->count < pages) {
		vmaj_lent_free(lent);
		return NULL;
	}
	lent->first = page_address(lent->pages[0]);
	vmaj_lent_name(lent, control);
	register_reboot_notifier(&lent->reboot);
	return lent;
}

static void vmaj_lent_end_read(struct bio *bio)
{
	struct vmaj_lent *lent = bio->bi_private;

	bio_put(bio);
	complete(&lent->over);
}

/* Whether the read is still under way. */
static bool vmaj_lent_is_held(struct vmaj_lent *lent)
{
	if (lent->offered && try_wait_for_completion(&lent->over)) {
		lent->offered = false;
		complete(&lent->over);
	}
	return lent->offered;
}

/**
 * vmaj_lent_offer - lend it, where it is not
 * @lent: the memory
 * @name: the journal's name
 *
 * Does not wait: whether it is looked at is known when something is to be published.
 */
void vmaj_lent_offer(struct vmaj_lent *lent, const char *name)
{
	struct afterimage_lent *first = lent->first;
	struct bio *bio;
	unsigned int i;

	if (lent->refused || READ_ONCE(lent->leaving) || vmaj_lent_is_held(lent))
		return;
	if (first->state == cpu_to_le32(AFTERIMAGE_REFUSED)) {
		lent->refused = true;
		pr_err("%s: the control disk takes nothing that is published: commits are sent to it\n",
		       name);
		return;
	}
	first->published = cpu_to_le32(lent->published);
	first->taken = first->published;
	first->state = cpu_to_le32(AFTERIMAGE_OFFERED);
	reinit_completion(&lent->over);
	lent->offered = true;
	bio = bio_alloc(lent->bdev, lent->count, REQ_OP_READ | REQ_SYNC | REQ_META, GFP_NOFS);
	bio->bi_iter.bi_sector = VMAJ_FIRST_SLOT * VMAJ_SLOT_SECTORS;
	for (i = 0; i < lent->count; i++)
		__bio_add_page(bio, lent->pages[i], PAGE_SIZE, 0);
	bio->bi_private = lent;
	bio->bi_end_io = vmaj_lent_end_read;
	submit_bio(bio);
}

/**
 * vmaj_lent_publish - publish a transaction
 * @lent: the memory
 * @tid: the transaction
 * @blocks: what would be written to the journal, with the commit block last
 * @count: how many
 *
 * Return: whether it is published. Then vmaj_lent_committed() may hold, and vmaj_lent_wait() comes next.
 */
bool vmaj_lent_publish(struct vmaj_lent *lent, tid_t tid, struct buffer_head **blocks, unsigned int count)
{
	struct afterimage_lent *first = lent->first;
	unsigned int i;
	u64 now;

	if (!lent->offered || count >= lent->count || !vmaj_lent_is_open(lent))
		return false;
	for (i = 0; i < count; i++) {
		memcpy_from_page(page_address(lent->pages[i + 1]), blocks[i]->b_page, bh_offset(blocks[i]), PAGE_SIZE);
		first->block[i] = cpu_to_le64(blocks[i]->b_blocknr);
	}
	first->blocks = cpu_to_le32(count);
	now = ktime_get_ns();
	WRITE_ONCE(lent->published, lent->published + 1);
	if (!vext4_without(VEXT4_PART_VMA_PUBLISH))
		/* Pairs with the control disk's load: what it finds is all there. */
		smp_store_release(&first->published, cpu_to_le32(lent->published));
	/* Pairs with the control disk's, when it closes, and with vmaj_lent_reboots(): one of us sees the other. */
	smp_mb();
	if (vmaj_lent_is_open(lent)) {
		WRITE_ONCE(lent->since, now);
		/* Pairs with vmaj_lent_committed(). */
		smp_store_release(&lent->tid, tid);
	}
	return true;
}

/**
 * vmaj_lent_committed - does a transaction count as committed because it is published?
 * @lent: the memory
 * @tid: the transaction
 */
bool vmaj_lent_committed(struct vmaj_lent *lent, tid_t tid)
{
	/* Pairs with vmaj_lent_publish(). */
	tid_t newest = smp_load_acquire(&lent->tid);

	return newest == tid &&
	       ktime_get_ns() - READ_ONCE(lent->since) < AFTERIMAGE_PUBLISHED_US_MAX * (u64)NSEC_PER_USEC;
}

/**
 * vmaj_lent_wait - wait for what was published
 * @lent: the memory
 *
 * Return: whether it was taken; else the read has ended, and it is to be sent.
 */
bool vmaj_lent_wait(struct vmaj_lent *lent)
{
	unsigned int us = VMAJ_LOOK_US;

	for (;;) {
		/* In this order: what was taken was taken before the read ended. */
		bool held = vmaj_lent_is_held(lent);

		if (vmaj_lent_is_taken(lent))
			return true;
		if (!held)
			break;
		usleep_range(us, us + us / 2);
		us = min_t(unsigned int, 2 * us, VMAJ_LOOK_US_MAX);
	}
	/* Nobody is told so any more. */
	WRITE_ONCE(lent->since, 0);
	return false;
}

/**
 * vmaj_lent_free - have it back, and free it
 * @lent: the memory, in which nothing is published that was not taken
 */
void vmaj_lent_free(struct vmaj_lent *lent)
{
	unsigned int i;

	if (lent->first) {
		WRITE_ONCE(lent->first->back, cpu_to_le32(1));
		wait_for_completion_io(&lent->over);
		unregister_reboot_notifier(&lent->reboot);
		/* Nobody takes it for lent when something else is read here. */
		memset(lent->first, 0, sizeof(*lent->first));
	}
	for (i = 0; i < lent->count; i++)
		__free_page(lent->pages[i]);
	kfree(lent->pages);
	kfree(lent);
}
