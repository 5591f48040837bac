// SPDX-License-Identifier: GPL-2.0
/*
 * iJournaling's areas: checked at mount, written by fsyncs.
 *
 * What a crash may leave of a write: each run of it, whole or not at all. All of them are durable, with everything that
 * was written before, when the write has ended: it goes behind a flush and through the drive's cache.
 *
 * A block is given out again when the transaction that its run is of is committed, and nobody is writing it any more.
 */

#include <linux/namei.h>
#include <linux/proc_fs.h>
#include <linux/quotaops.h>
#include <linux/random.h>
#include <linux/seq_file.h>
#include "ext4_jbd2.h"
#include "ijournal.h"
#include "ijournal_fs.h"

/**
 * ij_is_option - is it ours?
 * @key: a mount option
 */
bool ij_is_option(const char *key)
{
	return !strcmp(key, "ijournal");
}

/* Write blocks of the areas' file, in as few requests as they lie in pieces, each of them durable when it ends. */
static int ij_write_blocks(struct ij_fs *ij, u8 *bytes, unsigned int first, unsigned int count)
{
	blk_opf_t flags = REQ_OP_WRITE | REQ_SYNC | REQ_META | REQ_PRIO;
	unsigned int at = 0, piece;
	struct page *page;
	struct bio *bio;
	int err;

	if (test_opt(ij->sb, BARRIER) && !sio_without(SIO_PART_IJOURNAL_FLUSH))
		flags |= REQ_PREFLUSH | REQ_FUA;
	while (at < count) {
		for (piece = 1; at + piece < count && piece < BIO_MAX_VECS; piece++)
			if (ij->blocks[first + at + piece] != ij->blocks[first + at] + piece)
				break;
		bio = bio_alloc(ij->sb->s_bdev, piece, flags, GFP_NOFS);
		bio->bi_iter.bi_sector = ij->blocks[first + at] << (ij->sb->s_blocksize_bits - SECTOR_SHIFT);
		for (; piece; piece--, at++) {
			u8 *block = bytes + (size_t)at * IJOURNAL_BLOCK_BYTES;

			page = is_vmalloc_addr(block) ? vmalloc_to_page(block) : virt_to_page(block);
			__bio_add_page(bio, page, IJOURNAL_BLOCK_BYTES, offset_in_page(block));
		}
		err = submit_bio_wait(bio);
		bio_put(bio);
		if (err)
			return err;
	}
	return 0;
}

/* Blocks in a row. Returns the first, and the mark to end the write with, or false: there is no room. */
static bool ij_reserve(struct ij_fs *ij, struct ij_area *area, unsigned int blocks, u32 tid, unsigned int *first,
		       unsigned int *mark)
{
	u32 committed = ij_committed(ij->sb);
	unsigned int skipped = 0;
	struct ij_mark *last;
	bool room = false;

	spin_lock(&area->lock);
	while (area->marks_count) {
		struct ij_mark *oldest = &area->marks[area->oldest];

		if (oldest->writing || tid_gt(oldest->tid, committed))
			break;
		area->used -= oldest->blocks;
		area->oldest = (area->oldest + 1) % IJ_MARKS;
		area->marks_count--;
	}
	if (area->head + blocks > ij->area_blocks)
		skipped = ij->area_blocks - area->head;
	if (area->used + skipped + blocks > ij->area_blocks)
		goto out;
	room = true;
	*mark = (area->oldest + area->marks_count + IJ_MARKS - 1) % IJ_MARKS;
	last = &area->marks[*mark];
	if (!area->marks_count || (last->tid != tid && area->marks_count < IJ_MARKS)) {
		*mark = (area->oldest + area->marks_count++) % IJ_MARKS;
		last = &area->marks[*mark];
		memset(last, 0, sizeof(*last));
		last->tid = tid;
	}
	if (tid_gt(tid, last->tid))
		last->tid = tid;
	last->blocks += skipped + blocks;
	last->writing++;
	area->used += skipped + blocks;
	*first = skipped ? 0 : area->head;
	area->head = (*first + blocks) % ij->area_blocks;
out:
	spin_unlock(&area->lock);
	return room;
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
 * ij_write - write the runs of an fsync
 * @ij: the file system
 * @batch: the runs
 * @area: where
 * @outcome: why not
 *
 * Return: whether they are durable.
 */
bool ij_write(struct ij_fs *ij, struct ij_batch *batch, struct ij_area *area, enum ij_outcome *outcome)
{
	unsigned int number = area - ij->area, first, mark, run, base;
	unsigned int split = 0;
	u32 tid = batch->runs[0].tid;
	int err = 0;

	for (run = 1; run < batch->count; run++)
		if (tid_gt(batch->runs[run].tid, tid))
			tid = batch->runs[run].tid;
	if (!ij_reserve(ij, area, batch->blocks, tid, &first, &mark)) {
		*outcome = IJ_AREA_FULL;
		return false;
	}
	for (run = 0; run < batch->count; run++)
		ij_seal(ij, batch->bytes + (size_t)batch->runs[run].block * IJOURNAL_BLOCK_BYTES, &batch->runs[run],
			number, first + batch->runs[run].block);
	base = 1 + number * ij->area_blocks + first;
	if (SIO_FAULTS && batch->count > 1) {
		/* So that a crash can come between the way and the file. */
		split = batch->runs[batch->count - 1].block;
		err = ij_write_blocks(ij, batch->bytes, base, split);
		sio_fault(SIO_FAULT_IJOURNAL_WAY);
	}
	if (!err)
		err = ij_write_blocks(ij, batch->bytes + (size_t)split * IJOURNAL_BLOCK_BYTES, base + split,
				      batch->blocks - split);
	spin_lock(&area->lock);
	area->marks[mark].writing--;
	spin_unlock(&area->lock);
	*outcome = err ? IJ_ERROR : IJ_WRITTEN;
	atomic64_add(batch->count, &ij->runs);
	atomic64_add(batch->blocks, &ij->run_blocks);
	return !err;
}

static int ij_show(struct seq_file *seq, void *v)
{
	static const char * const names[IJ_OUTCOMES] = {
		[IJ_WRITTEN] = "written",
		[IJ_COMMITTED] = "committed",
		[IJ_DIRECTORY] = "directory",
		[IJ_HARD_LINK] = "hard_link",
		[IJ_RENAME] = "rename",
		[IJ_NAME_REUSE] = "name_reuse",
		[IJ_INODE_REUSE] = "inode_reuse",
		[IJ_UNLINKED] = "unlinked",
		[IJ_XATTR_BLOCK] = "xattr_block",
		[IJ_JOURNALED_DATA] = "journaled_data",
		[IJ_LAYOUT] = "layout",
		[IJ_ORPHAN] = "orphan",
		[IJ_EXCHANGED] = "exchanged",
		[IJ_READ_BACK] = "read_back",
		[IJ_NO_NAME] = "no_name",
		[IJ_LARGE] = "large",
		[IJ_AREA_FULL] = "area_full",
		[IJ_EPOCH] = "epoch",
		[IJ_NO_MEMORY] = "no_memory",
		[IJ_ERROR] = "error",
	};
	struct ij_fs *ij = seq->private;
	int outcome;

	for (outcome = 0; outcome < IJ_OUTCOMES; outcome++)
		seq_printf(seq, "%s %lld\n", names[outcome], atomic64_read(&ij->outcomes[outcome]));
	seq_printf(seq, "runs %lld\n", atomic64_read(&ij->runs));
	seq_printf(seq, "bytes %lld\n", atomic64_read(&ij->run_blocks) * IJOURNAL_BLOCK_BYTES);
	if (SIO_FAULTS)
		seq_printf(seq, "directory_runs %lld\nuncommitted_directory_blocks %lld\n",
			   atomic64_read(&ij->dir_runs), atomic64_read(&ij->dir_blocks));
	return 0;
}

/* Whether the mount names files of quotas, which may be switched on later. */
static bool ij_has_quota_files(struct super_block *sb)
{
#ifdef CONFIG_QUOTA
	return EXT4_SB(sb)->s_jquota_fmt;
#else
	return false;
#endif
}

/* Why a file system cannot have it, or NULL. */
static const char *ij_refuses(struct super_block *sb)
{
	struct ext4_sb_info *sbi = EXT4_SB(sb);

	if (!sbi->s_journal || sbi->s_journal->j_dev != sb->s_bdev)
		return "it has no journal on its own device";
	if (sb->s_blocksize != IJOURNAL_BLOCK_BYTES || PAGE_SIZE != IJOURNAL_BLOCK_BYTES)
		return "its blocks, or this machine's pages, are not of 4 KiB";
	if (EXT4_INODE_SIZE(sb) < IJOURNAL_INODE_BYTES_MIN || EXT4_INODE_SIZE(sb) > IJOURNAL_INODE_BYTES_MAX)
		return "its inodes are of more than 256 bytes";
	if (ext4_has_feature_bigalloc(sb) || ext4_has_feature_meta_bg(sb) || ext4_has_feature_inline_data(sb) ||
	    ext4_has_feature_quota(sb) || ext4_has_feature_project(sb) || ext4_has_feature_casefold(sb) ||
	    ext4_has_feature_encrypt(sb) || ext4_has_feature_ea_inode(sb) ||
	    ext4_has_feature_fast_commit(sb))
		return "it has a feature that recovery does not know (docs/ijournaling.md)";
	if (test_opt(sb, DATA_FLAGS) != EXT4_MOUNT_ORDERED_DATA || !test_opt(sb, DELALLOC) ||
	    !test_opt(sb, DIOREAD_NOLOCK) || test_opt(sb, JOURNAL_ASYNC_COMMIT) || test_opt(sb, DAX_ALWAYS) ||
	    sb_any_quota_loaded(sb) || ij_has_quota_files(sb))
		return "it needs data=ordered,delalloc,dioread_nolock, and no quotas, DAX or journal_async_commit";
	return NULL;
}

/**
 * ij_may_remount - may a mount get these options?
 * @sb: the file system, with the new options
 */
bool ij_may_remount(struct super_block *sb)
{
	const char *why;

	if (!test_opt2(sb, IJOURNAL))
		return true;
	why = ij_refuses(sb);
	if (!why && !EXT4_SB(sb)->s_ij && !sb_rdonly(sb))
		why = "it cannot be switched on while the file system is writable";
	if (why)
		ext4_msg(sb, KERN_ERR, "ijournal: %s", why);
	return !why;
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

/* What is said of the areas fits, and they are all there. */
static const char *ij_map(struct ij_fs *ij, struct ijournal_areas *header)
{
	struct ext4_map_blocks map = { .m_len = 1 };
	u64 blocks = (u64)i_size_read(ij->file) >> ij->sb->s_blocksize_bits;
	u64 *grown;
	int found;

	if (blocks < 1 + IJOURNAL_AREA_BLOCKS_MIN || blocks > UINT_MAX)
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

/* A new epoch: what is in the areas means nothing from now on. */
static const char *ij_begin(struct ij_fs *ij, struct ijournal_areas *header)
{
	journal_t *journal = EXT4_SB(ij->sb)->s_journal;

	get_random_bytes(ij->epoch, sizeof(ij->epoch));
	read_lock(&journal->j_state_lock);
	ij->first_tid = journal->j_transaction_sequence;
	read_unlock(&journal->j_state_lock);
	memcpy(header->epoch, ij->epoch, sizeof(header->epoch));
	header->first_tid = cpu_to_le32(ij->first_tid);
	header->crc = cpu_to_le32(ij_header_crc(ij, header));
	if (ij_header_io(ij, header, REQ_OP_WRITE | REQ_SYNC | REQ_META | REQ_PREFLUSH | REQ_FUA))
		return "the areas' header cannot be written";
	return NULL;
}

static const char *ij_find_file(struct ij_fs *ij)
{
	struct dentry *root = ij->sb->s_root, *dentry;

	inode_lock(d_inode(root));
	dentry = lookup_one_len(IJOURNAL_FILE_NAME, root, strlen(IJOURNAL_FILE_NAME));
	inode_unlock(d_inode(root));
	if (IS_ERR(dentry))
		return "the areas' file cannot be looked up";
	if (d_is_positive(dentry) && S_ISREG(d_inode(dentry)->i_mode))
		ij->file = igrab(d_inode(dentry));
	/* A mount that fails leaves no dentries behind. */
	d_drop(dentry);
	dput(dentry);
	if (!ij->file)
		return "it has no areas: there is no file " IJOURNAL_FILE_NAME;
	if (!ext4_test_inode_flag(ij->file, EXT4_INODE_EXTENTS) || ext4_should_journal_data(ij->file))
		return "the areas' file is not mapped by extents, or its data is journaled";
	/* Nobody writes, moves or removes it as long as this is mounted. */
	inode_lock(ij->file);
	ij->file->i_flags |= S_SWAPFILE;
	inode_unlock(ij->file);
	return NULL;
}

static void ij_free(struct ij_fs *ij)
{
	struct hlist_node *next;
	struct ij_gone *gone;
	int bucket;

	if (ij->file) {
		inode_lock(ij->file);
		ij->file->i_flags &= ~S_SWAPFILE;
		inode_unlock(ij->file);
		iput(ij->file);
	}
	hash_for_each_safe(ij->gone, bucket, next, gone, node)
		kfree(gone);
	kvfree(ij->blocks);
	kvfree(ij->area);
	kfree(ij);
}

static const char *ij_open_areas(struct ij_fs *ij)
{
	void *header = (void *)__get_free_page(GFP_KERNEL);
	const char *why;
	unsigned int at;

	if (!header)
		return "there is no memory";
	why = ij_find_file(ij);
	if (!why)
		why = ij_map(ij, header);
	if (!why) {
		ij->area = kvcalloc(ij->areas, sizeof(*ij->area), GFP_KERNEL);
		for (at = 0; ij->area && at < ij->areas; at++) {
			spin_lock_init(&ij->area[at].lock);
			atomic64_set(&ij->area[at].sub_id, (s64)at << 32);
		}
		why = ij->area ? ij_begin(ij, header) : "there is no memory for the areas";
	}
	free_page((unsigned long)header);
	return why;
}

/**
 * ij_start - a file system becomes writable
 * @sb: the file system, its journal loaded and its root known
 *
 * Return: 0, or an error, and then a message that says why.
 */
int ij_start(struct super_block *sb)
{
	struct ext4_sb_info *sbi = EXT4_SB(sb);
	const char *why;
	struct ij_fs *ij;

	if (!test_opt2(sb, IJOURNAL))
		return 0;
	why = ij_refuses(sb);
	if (why) {
		ext4_msg(sb, KERN_ERR, "ijournal: %s", why);
		return -EINVAL;
	}
	if (!sbi->s_ij) {
		ij = kzalloc(sizeof(*ij), GFP_KERNEL);
		if (!ij)
			return -ENOMEM;
		ij->sb = sb;
		spin_lock_init(&ij->gone_lock);
		hash_init(ij->gone);
		why = ij_open_areas(ij);
		if (why) {
			ext4_msg(sb, KERN_ERR, "ijournal: %s", why);
			ij_free(ij);
			return -EINVAL;
		}
		proc_create_single_data("ijournal", 0444, sbi->s_journal->j_proc_entry, ij_show, ij);
		sbi->s_ij = ij;
	}
	ij_set_bit(sb);
	return 0;
}

/**
 * ij_stop - a file system is unmounted, or its mount has failed
 * @sb: the file system
 */
void ij_stop(struct super_block *sb)
{
	struct ext4_sb_info *sbi = EXT4_SB(sb);
	struct ij_fs *ij = sbi->s_ij;

	if (!ij)
		return;
	sbi->s_ij = NULL;
	remove_proc_entry("ijournal", sbi->s_journal->j_proc_entry);
	ij_free(ij);
}

/**
 * ij_set_bit - there may be valid i-transactions from now on
 * @sb: the file system; its superblock is written next
 */
void ij_set_bit(struct super_block *sb)
{
	if (EXT4_SB(sb)->s_ij)
		EXT4_SB(sb)->s_es->s_feature_incompat |= cpu_to_le32(IJOURNAL_INCOMPAT);
}

/**
 * ij_clear_bit - there are none: all is committed, and written home
 * @sb: the file system; its superblock is written next
 */
void ij_clear_bit(struct super_block *sb)
{
	EXT4_SB(sb)->s_es->s_feature_incompat &= cpu_to_le32(~IJOURNAL_INCOMPAT);
}

/**
 * ij_explain - say what is wrong with a file system that has to be recovered
 * @sb: the file system
 */
void ij_explain(struct super_block *sb)
{
	if (EXT4_SB(sb)->s_es->s_feature_incompat & cpu_to_le32(IJOURNAL_INCOMPAT))
		ext4_msg(sb, KERN_ERR, "ijournal: there may be i-transactions: recover them first");
}
