// SPDX-License-Identifier: GPL-2.0
/*
 * iJournaling's areas: which blocks runs get, and epochs. Who writes them is in ijournal_group.c.
 *
 * A block is given out again when the transaction that its run is of is committed, and nobody is writing it any more.
 *
 * An epoch is over when its transactions are too many to be told apart for certain: no more runs are written, fsyncs
 * commit. When that has made all runs invalid and none is being written, the next epoch begins with the header's write.
 * What a crash may leave of it: the old epoch, of which no run is valid, or the new one, of which there is none.
 */

#include <linux/faults.h>
#include <linux/module.h>
#include <linux/random.h>
#include "ext4_jbd2.h"
#include "ijournal.h"
#include "ijournal_fs.h"

/* Numbers of transactions are compared modulo 2^32: an old run's must not come to look new. */
#if VEXT4_FAULTS
static uint epoch_transactions = 1U << 30;
module_param(epoch_transactions, uint, 0644);
#else
static const uint epoch_transactions = 1U << 30;
#endif

/* Blocks whose runs are committed are free. The area is locked. */
static void ij_release(struct ij_fs *ij, struct ij_area *area)
{
	u32 committed = ij_committed(ij);

	while (area->marks_count) {
		struct ij_mark *oldest = &area->marks[area->oldest];

		if (oldest->writing || tid_gt(oldest->tid, committed))
			break;
		area->used -= oldest->blocks;
		area->oldest = (area->oldest + 1) % IJ_MARKS;
		area->marks_count--;
	}
}

/* Blocks in a row, and the mark that says whose they are; false where there is no room. The area is locked. */
static bool ij_reserve(struct ij_fs *ij, struct ij_area *area, struct ij_batch *batch)
{
	u32 tid = batch->runs[0].tid;
	unsigned int skipped = 0, at;
	struct ij_mark *last;

	for (at = 1; at < batch->count; at++)
		if (tid_gt(batch->runs[at].tid, tid))
			tid = batch->runs[at].tid;
	ij_release(ij, area);
	if (area->head + batch->blocks > ij->area_blocks)
		skipped = ij->area_blocks - area->head;
	if (area->used + skipped + batch->blocks > ij->area_blocks)
		return false;
	batch->mark = (area->oldest + area->marks_count + IJ_MARKS - 1) % IJ_MARKS;
	last = &area->marks[batch->mark];
	if (!area->marks_count || (last->tid != tid && area->marks_count < IJ_MARKS)) {
		batch->mark = (area->oldest + area->marks_count++) % IJ_MARKS;
		last = &area->marks[batch->mark];
		memset(last, 0, sizeof(*last));
		last->tid = tid;
	}
	if (tid_gt(tid, last->tid))
		last->tid = tid;
	last->blocks += skipped + batch->blocks;
	last->writing++;
	area->used += skipped + batch->blocks;
	batch->first = skipped ? 0 : area->head;
	area->head = (batch->first + batch->blocks) % ij->area_blocks;
	return true;
}

static void ij_seal(struct ij_fs *ij, u8 *bytes, struct ij_run *run, unsigned int area, unsigned int at)
{
	struct ijournal_header *header = (struct ijournal_header *)bytes;
	size_t len = (size_t)run->blocks * IJOURNAL_BLOCK_BYTES;
	struct ijournal_commit *commit = (struct ijournal_commit *)(bytes + len - sizeof(*commit));

	memcpy(header->epoch, ij->epoch, sizeof(header->epoch));
	header->area = cpu_to_le32(area);
	header->at = cpu_to_le32(at);
	memcpy(commit->magic, IJOURNAL_COMMIT_MAGIC, sizeof(commit->magic));
	commit->sub_id = header->sub_id;
	commit->crc = cpu_to_le32(~ext4_chksum(EXT4_SB(ij->sb), ~0, bytes, len - sizeof(commit->crc)));
}

/**
 * ij_place - give the runs of fsyncs their blocks, in a row for as long as the area does not end
 * @ij: the file system
 * @area: where
 * @group: the fsyncs, whose runs are complete then
 * @without_room: those that get none
 *
 * The blocks are free again when the runs' transactions are committed, behind ij_placed().
 */
void ij_place(struct ij_fs *ij, struct ij_area *area, struct list_head *group, struct list_head *without_room)
{
	struct ij_batch *batch, *next;
	struct ij_run *run;

	spin_lock(&area->lock);
	list_for_each_entry_safe(batch, next, group, link)
		if (!ij_reserve(ij, area, batch))
			list_move(&batch->link, without_room);
	spin_unlock(&area->lock);
	list_for_each_entry(batch, group, link)
		for (run = batch->runs; run < batch->runs + batch->count; run++)
			ij_seal(ij, batch->bytes + (size_t)run->block * IJOURNAL_BLOCK_BYTES, run, area - ij->area,
				batch->first + run->block);
}

/* The file system's blocks that recovery finds free: what a transaction has freed that is not committed is not. */
static s64 ij_free_blocks(struct ij_fs *ij, bool exactly)
{
	struct ext4_sb_info *sbi = EXT4_SB(ij->sb);
	struct percpu_counter *free = &sbi->s_freeclusters_counter;

	s64 blocks = exactly ? percpu_counter_sum_positive(free) : percpu_counter_read_positive(free);

	return blocks - READ_ONCE(sbi->s_mb_free_pending);
}

/**
 * ij_has_space - does recovery find blocks for the names in all runs that may be needed, and in a few more?
 * @ij: the file system
 *
 * A name may stand in a slot that another has left, which in the committed directory it has not: recovery adds it
 * behind. A run has one name. It makes at most one block of the directory necessary, one more where that is split, one
 * of its index, and one of its extents' tree.
 *
 * Return: whether it does; else a commit is safe.
 */
bool ij_has_space(struct ij_fs *ij)
{
	const s64 per_run = 4, coming = 64;
	s64 runs = (s64)ij->areas * ij->area_blocks;
	unsigned int at;

	if (ij_free_blocks(ij, false) >= per_run * (runs + coming) + EXT4_FREECLUSTERS_WATERMARK)
		return true;
	runs = 0;
	for (at = 0; at < ij->areas; at++) {
		spin_lock(&ij->area[at].lock);
		ij_release(ij, &ij->area[at]);
		runs += ij->area[at].used;
		spin_unlock(&ij->area[at].lock);
	}
	return ij_free_blocks(ij, true) >= per_run * (runs + coming);
}

/**
 * ij_placed - the runs of an fsync are not being written any more
 * @area: where
 * @batch: the runs
 */
void ij_placed(struct ij_area *area, struct ij_batch *batch)
{
	spin_lock(&area->lock);
	area->marks[batch->mark].writing--;
	spin_unlock(&area->lock);
}

/* One block of the areas' file, read or written. */
static int ij_header_io(struct ij_fs *ij, void *block, blk_opf_t flags)
{
	struct bio *bio = bio_alloc(ij->sb->s_bdev, 1, flags, GFP_NOFS);
	int err;

	bio->bi_iter.bi_sector = ij->blocks[0] << (ij->sb->s_blocksize_bits - SECTOR_SHIFT);
	__bio_add_page(bio, virt_to_page(block), IJOURNAL_BLOCK_BYTES, offset_in_page(block));
	err = submit_bio_wait(bio);
	bio_put(bio);
	return err;
}

static u32 ij_header_crc(struct ij_fs *ij, struct ijournal_areas *header)
{
	__le32 crc = header->crc;
	u32 found;

	header->crc = 0;
	found = ~ext4_chksum(EXT4_SB(ij->sb), ~0, header, sizeof(*header));
	header->crc = crc;
	return found;
}

/**
 * ij_read_areas - where the areas are
 * @ij: the file system, the areas' file opened
 *
 * Return: NULL where what the header says of them fits, and they are all there; else what is wrong.
 */
const char *ij_read_areas(struct ij_fs *ij)
{
	struct ijournal_areas *header = ij->header;
	struct ext4_map_blocks map = { .m_len = 1 };
	u64 blocks = (u64)i_size_read(ij->file) >> ij->sb->s_blocksize_bits;
	u64 *grown;
	int found;

	if (blocks < 1 + IJOURNAL_AREA_BLOCKS_MIN || blocks > 1 + IJOURNAL_AREAS_BLOCKS_MAX)
		return "the areas' file is too short or too long";
	grown = kvmalloc_array(blocks, sizeof(*grown), GFP_KERNEL);
	if (!grown)
		return "there is no memory for the areas' map";
	ij->blocks = grown;
	while (map.m_lblk < blocks) {
		map.m_len = min_t(u64, blocks - map.m_lblk, 1024);
		found = ext4_map_blocks(NULL, ij->file, &map, 0);
		if (found <= 0 || !(map.m_flags & EXT4_MAP_MAPPED) || map.m_flags & EXT4_MAP_UNWRITTEN)
			return "the areas' file has a block that is not written";
		for (; found; found--)
			ij->blocks[map.m_lblk++] = map.m_pblk++;
	}
	if (ij_header_io(ij, header, REQ_OP_READ | REQ_META))
		return "the areas' header cannot be read";
	if (memcmp(header->magic, IJOURNAL_AREAS_MAGIC, sizeof(header->magic)))
		return "the areas' file does not begin with a header of areas";
	if (le16_to_cpu(header->version) != IJOURNAL_VERSION)
		return "the areas are of a version that is not known here";
	if (ij_header_crc(ij, header) != le32_to_cpu(header->crc))
		return "the checksum of the areas' header is wrong";
	ij->areas = le32_to_cpu(header->areas);
	ij->area_blocks = le32_to_cpu(header->area_blocks);
	if (!ij->areas || ij->areas > IJOURNAL_AREAS_MAX || ij->area_blocks < IJOURNAL_AREA_BLOCKS_MIN ||
	    le32_to_cpu(header->block_bytes) != IJOURNAL_BLOCK_BYTES ||
	    1 + (u64)ij->areas * ij->area_blocks != blocks)
		return "the areas are not as long as their header says";
	return NULL;
}

/**
 * ij_begin_epoch - what is in the areas means nothing from now on
 * @ij: the file system, in which nobody writes a run
 *
 * Return: NULL, or why not.
 */
const char *ij_begin_epoch(struct ij_fs *ij)
{
	struct ijournal_areas *header = ij->header;
	u32 first = ij_committed(ij) + 1;

	get_random_bytes(header->epoch, sizeof(header->epoch));
	header->first_tid = cpu_to_le32(first);
	header->crc = cpu_to_le32(ij_header_crc(ij, header));
	if (ij_header_io(ij, header, REQ_OP_WRITE | REQ_SYNC | REQ_META | REQ_PREFLUSH | REQ_FUA))
		return "the areas' header cannot be written";
	memcpy(ij->epoch, header->epoch, sizeof(ij->epoch));
	WRITE_ONCE(ij->first_tid, first);
	atomic64_set(&ij->sub_id, 0);
	WRITE_ONCE(ij->epochs, ij->epochs + 1);
	return NULL;
}

/**
 * ij_epoch_is_over - may a transaction have no runs in this epoch any more?
 * @ij: the file system
 * @tid: the transaction, not committed
 */
bool ij_epoch_is_over(struct ij_fs *ij, u32 tid)
{
	return tid - ij->first_tid > READ_ONCE(epoch_transactions);
}

/* No run is valid, and none is being written. */
static bool ij_runs_are_past(struct ij_fs *ij)
{
	unsigned int at, mark;
	bool past = true;

	for (at = 0; at < ij->areas && past; at++) {
		struct ij_area *area = &ij->area[at];
		u32 committed = ij_committed(ij);

		spin_lock(&area->lock);
		for (mark = 0; mark < area->marks_count; mark++) {
			struct ij_mark *each = &area->marks[(area->oldest + mark) % IJ_MARKS];

			if (each->writing || tid_gt(each->tid, committed))
				past = false;
		}
		spin_unlock(&area->lock);
	}
	return past;
}

/**
 * ij_renew_epoch - the next epoch, as soon as it may begin
 * @ij: the file system, whose epoch was over a moment ago
 *
 * Return: whether there is a new one.
 */
bool ij_renew_epoch(struct ij_fs *ij)
{
	u64 before = READ_ONCE(ij->epochs);
	const char *why = NULL;

	if (!ij_runs_are_past(ij))
		return false;
	/* Whoever is between its first look at the epoch and the end of its write is waited for. */
	percpu_down_write(&ij->epoch_lock);
	if (ij->epochs == before && ij_runs_are_past(ij))
		why = ij_begin_epoch(ij);
	percpu_up_write(&ij->epoch_lock);
	if (why)
		ext4_msg(ij->sb, KERN_ERR, "ijournal: %s", why);
	return READ_ONCE(ij->epochs) != before;
}
