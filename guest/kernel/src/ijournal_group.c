// SPDX-License-Identifier: GPL-2.0
/*
 * iJournaling's groups: the runs of fsyncs that wait at the same time go out together.
 *
 *   data written: "coming" -> runs captured -> the area has few groups under way: lead
 *                                           -> else wait to be taken along, or to lead
 *   lead: whoever came before has come -> all of the queue -> their blocks -> one request, behind a flush and through
 *         the drive's cache -> they return
 *
 * The block layer sends flushes before anything else that waits for the device. One for each fsync would let the data
 * of the others in one by one, where the device takes few requests at once. So a leader waits for the fsyncs that were
 * writing little data when it was about to go, and for nobody who begins later; one that is alone waits for nobody.
 * They hold nothing that it has, and wait for no leader: their data is complete before they take part in anything here.
 * Several groups under way share flushes: what comes behind the requests of one begins those of the next.
 *
 * What a crash may leave of a group: each run of it, whole or not at all, in any choice; recovery reads each for
 * itself. All of them are durable when the request has ended, with the data of each fsync: it was complete before its
 * runs were queued, and the flush begins later than that. No fsync returns before. Where the request fails, all commit.
 */

#include <linux/faults.h>
#include "ext4_jbd2.h"
#include "ijournal.h"
#include "ijournal_fs.h"

/* Of an area: an SSD's figures are worse with fewer, those of a device that takes one request at a time with more. */
#define IJ_GROUPS_MAX 4
/* Who writes more is not waited for: beside one fsync of 4 MiB the longest of another doubled. */
#define IJ_COMING_PAGES 64

/* An fsync that writes data. */
struct ij_coming {
	struct list_head link;
	u64 number;
};

/* Of what is dirty, or on its way already. */
static bool ij_writes_little(struct address_space *mapping, loff_t start, loff_t end)
{
	static const xa_mark_t marks[] = { PAGECACHE_TAG_DIRTY, PAGECACHE_TAG_WRITEBACK };
	unsigned int pages = 0, at;
	void *page;

	for (at = 0; at < ARRAY_SIZE(marks); at++) {
		XA_STATE(xas, &mapping->i_pages, start >> PAGE_SHIFT);

		rcu_read_lock();
		xas_for_each_marked(&xas, page, end >> PAGE_SHIFT, marks[at])
			if (++pages > IJ_COMING_PAGES)
				break;
		rcu_read_unlock();
	}
	return pages <= IJ_COMING_PAGES;
}

/**
 * ij_write_data - write an fsync's data, and wait for it
 * @file: the file
 * @start: its first byte
 * @end: its last
 *
 * Return: 0, or an error.
 */
int ij_write_data(struct file *file, loff_t start, loff_t end)
{
	struct ij_fs *ij = EXT4_SB(file->f_mapping->host->i_sb)->s_ij;
	struct ij_coming coming;
	bool first;
	int err;

	if (!ij || !ij_writes_little(file->f_mapping, start, end))
		return file_write_and_wait_range(file, start, end);
	spin_lock(&ij->coming_lock);
	coming.number = ++ij->coming_number;
	list_add_tail(&coming.link, &ij->coming);
	spin_unlock(&ij->coming_lock);
	err = file_write_and_wait_range(file, start, end);
	spin_lock(&ij->coming_lock);
	first = list_is_first(&coming.link, &ij->coming);
	list_del(&coming.link);
	spin_unlock(&ij->coming_lock);
	if (first)
		wake_up_all(&ij->came);
	return err;
}

/* Nobody of those who came up to then is still writing data. */
static bool ij_have_come(struct ij_fs *ij, u64 number)
{
	struct ij_coming *oldest;
	bool have;

	spin_lock(&ij->coming_lock);
	oldest = list_first_entry_or_null(&ij->coming, struct ij_coming, link);
	have = !oldest || oldest->number > number;
	spin_unlock(&ij->coming_lock);
	return have;
}

/* One block; what lies elsewhere than behind the last one takes a request of its own, which needs no flush again. */
static int ij_add_block(struct ij_fs *ij, struct bio **bio, u8 *block, u64 home, unsigned int left, blk_opf_t *flags)
{
	struct page *page = is_vmalloc_addr(block) ? vmalloc_to_page(block) : virt_to_page(block);
	sector_t sector = home << (ij->sb->s_blocksize_bits - SECTOR_SHIFT);
	int err;

	if (*bio) {
		if (bio_end_sector(*bio) == sector &&
		    bio_add_page(*bio, page, IJOURNAL_BLOCK_BYTES, offset_in_page(block)))
			return 0;
		err = submit_bio_wait(*bio);
		bio_put(*bio);
		*bio = NULL;
		*flags &= ~REQ_PREFLUSH;
		if (err)
			return err;
	}
	*bio = bio_alloc(ij->sb->s_bdev, bio_max_segs(left), *flags, GFP_NOFS);
	(*bio)->bi_iter.bi_sector = sector;
	__bio_add_page(*bio, page, IJOURNAL_BLOCK_BYTES, offset_in_page(block));
	return 0;
}

/* All blocks of a group, in as few requests as they lie in pieces. */
static int ij_write_blocks(struct ij_fs *ij, struct ij_area *area, struct list_head *group)
{
	u64 *home = ij->blocks + 1 + (area - ij->area) * ij->area_blocks;
	blk_opf_t flags = REQ_OP_WRITE | REQ_SYNC | REQ_META | REQ_PRIO;
	unsigned int left = 0, at;
	struct ij_batch *batch;
	struct bio *bio = NULL;
	int err = 0;

	if (test_opt(ij->sb, BARRIER) && !vext4_without(VEXT4_PART_IJOURNAL_FLUSH) &&
	    !(vext4_without(VEXT4_PART_IJOURNAL_GROUP) && !list_is_singular(group)))
		flags |= REQ_PREFLUSH | REQ_FUA;
	list_for_each_entry(batch, group, link)
		left += batch->blocks;
	list_for_each_entry(batch, group, link)
		for (at = 0; at < batch->blocks && !err; at++, left--)
			err = ij_add_block(ij, &bio, batch->bytes + (size_t)at * IJOURNAL_BLOCK_BYTES,
					   home[batch->first + at], left, &flags);
	if (bio) {
		err = submit_bio_wait(bio);
		bio_put(bio);
	}
	return err;
}

/* For tests: so that a crash can come between the way and the file. */
static void ij_write_way(struct ij_fs *ij, struct ij_area *area, struct list_head *group)
{
	struct ij_batch *batch = list_last_entry(group, struct ij_batch, link);
	unsigned int blocks = batch->blocks;

	if (batch->count == 1)
		return;
	batch->blocks = batch->runs[batch->count - 1].block;
	ij_write_blocks(ij, area, group);
	batch->blocks = blocks;
	vext4_fault(VEXT4_FAULT_IJOURNAL_WAY);
}

/* Write all who wait, and let one of those who came meanwhile lead the next. */
static void ij_lead(struct ij_fs *ij, struct ij_area *area, struct ij_batch *own)
{
	u64 number = READ_ONCE(ij->coming_number);
	struct ij_batch *batch, *next;
	LIST_HEAD(without_room);
	LIST_HEAD(group);
	int err;

	io_wait_event(ij->came, ij_have_come(ij, number));
	spin_lock(&area->lock);
	list_splice_init(&area->waiting, &group);
	spin_unlock(&area->lock);
	list_add(&own->link, &group);
	ij_place(ij, area, &group, &without_room);
	if (vext4_armed(VEXT4_FAULT_IJOURNAL_WAY) && !list_empty(&group))
		ij_write_way(ij, area, &group);
	err = ij_write_blocks(ij, area, &group);
	list_for_each_entry(batch, &group, link) {
		ij_placed(area, batch);
		batch->outcome = err ? IJ_ERROR : IJ_WRITTEN;
		atomic64_add(batch->count, &ij->runs);
		atomic64_add(batch->blocks, &ij->run_blocks);
	}

	spin_lock(&area->lock);
	next = list_first_entry_or_null(&area->waiting, struct ij_batch, link);
	if (next)
		list_del_init(&next->link);
	else
		area->groups--;
	spin_unlock(&area->lock);
	if (next)
		complete(&next->turn);
	list_for_each_entry(batch, &without_room, link)
		batch->outcome = IJ_AREA_FULL;
	list_splice(&without_room, &group);
	/* Whoever is told is gone. */
	list_for_each_entry_safe(batch, next, &group, link) {
		batch->ended = true;
		complete(&batch->turn);
	}
}

/**
 * ij_write - write the runs of an fsync, with those of others who wait
 * @ij: the file system
 * @area: where
 * @batch: the runs; the fsync's data is complete
 *
 * Return: IJ_WRITTEN where they are durable, or why not.
 */
enum ij_outcome ij_write(struct ij_fs *ij, struct ij_area *area, struct ij_batch *batch)
{
	bool leads;

	init_completion(&batch->turn);
	spin_lock(&area->lock);
	leads = area->groups < IJ_GROUPS_MAX;
	if (leads)
		area->groups++;
	else
		list_add_tail(&batch->link, &area->waiting);
	spin_unlock(&area->lock);
	if (!leads)
		wait_for_completion_io(&batch->turn);
	if (!batch->ended)
		ij_lead(ij, area, batch);
	else if (batch->outcome == IJ_WRITTEN)
		atomic64_inc(&ij->grouped);
	return batch->outcome;
}
