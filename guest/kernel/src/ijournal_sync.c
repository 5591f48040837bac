// SPDX-License-Identifier: GPL-2.0
/*
 * iJournaling: an fsync writes an i-transaction of its own file, and of the directories on the way to it that are not
 * committed, from the topmost down. It waits for no transaction of the journal and for nobody else's data, but for that
 * of small fsyncs beside it (ijournal_group.c).
 *
 *   data written (by the caller) -> way found -> directories captured -> file captured -> way checked -> one write,
 *                                                                                   shared with those who wait
 *
 * What is captured is what belongs together. An inode's block is copied together with its sub-transaction id under
 * i_raw_lock, so that of two captures the one with the larger id is the later; its extents stand still under
 * i_data_sem. A run's transaction is the last one that has changed any of it. Every later change belongs to that
 * transaction or to a later one: where replay finds the run valid, none of them is in the committed state below it.
 *
 * The way is looked at again last: as long as the file has the name that was captured, nobody else can have had it
 * logged under a larger id. A file that was renamed or unlinked since says so, and is committed.
 */

#include <linux/dcache.h>
#include <linux/faults.h>
#include <linux/pagemap.h>
#include "ext4_jbd2.h"
#include "ext4_extents.h"
#include "ijournal.h"
#include "ijournal_fs.h"

/* One name on the way: of the file, of its directory, and so on up. */
struct ij_step {
	struct inode *dir;
	struct inode *inode;
	unsigned char name_len;
	char name[EXT4_NAME_LEN];
};

struct ij_way {
	unsigned int count;
	struct ij_step step[IJ_RUNS_MAX - 1];
};

/* Where records go. */
struct ij_cursor {
	struct ijournal_header *header;
	u8 *at;
};

static void ij_record(struct ij_cursor *cursor, u16 kind, const void *tag, unsigned int tag_len, const void *body,
		      unsigned int len)
{
	struct ijournal_record *record = (struct ijournal_record *)cursor->at;

	record->kind = cpu_to_le16(kind);
	record->len = cpu_to_le32(tag_len + len);
	memcpy(cursor->at + sizeof(*record), tag, tag_len);
	memcpy(cursor->at + sizeof(*record) + tag_len, body, len);
	/* What is behind it is zero already. */
	cursor->at += sizeof(*record) + round_up(tag_len + len, 8);
	cursor->header->records_len = cpu_to_le32(cursor->at - (u8 *)(cursor->header + 1));
}

/* Room for a run at the end of the batch; its records come to that many bytes at most. */
static bool ij_run_begin(struct ij_batch *batch, struct ij_cursor *cursor, unsigned int records_len)
{
	unsigned int blocks = ijournal_run_blocks(records_len);
	u8 *bytes;

	bytes = kvzalloc((size_t)(batch->blocks + blocks) * IJOURNAL_BLOCK_BYTES, GFP_NOFS);
	if (!bytes)
		return false;
	if (batch->bytes)
		memcpy(bytes, batch->bytes, (size_t)batch->blocks * IJOURNAL_BLOCK_BYTES);
	kvfree(batch->bytes);
	batch->bytes = bytes;
	cursor->header = (struct ijournal_header *)(bytes + (size_t)batch->blocks * IJOURNAL_BLOCK_BYTES);
	cursor->at = (u8 *)(cursor->header + 1);
	return true;
}

static void ij_run_end(struct ij_batch *batch, struct ij_cursor *cursor)
{
	struct ij_run *run = &batch->runs[batch->count++];

	run->block = batch->blocks;
	run->blocks = ijournal_run_blocks(le32_to_cpu(cursor->header->records_len));
	run->tid = le32_to_cpu(cursor->header->tid);
	cursor->header->blocks = cpu_to_le32(run->blocks);
	batch->blocks += run->blocks;
}

static u32 ij_later(u32 tid, u32 other)
{
	return tid_gt(other, tid) ? other : tid;
}

/* The inode's block and its sub-transaction id, of one moment. */
static void ij_capture_raw(struct ij_cursor *cursor, struct inode *inode, struct ext4_iloc *iloc, struct ij_area *area,
			   u16 kind)
{
	struct ext4_inode_info *ei = EXT4_I(inode);
	struct ij_fs *ij = EXT4_SB(inode->i_sb)->s_ij;
	struct ijournal_header *header = cursor->header;
	u32 tid;

	spin_lock(&ei->i_raw_lock);
	ij_record(cursor, IJOURNAL_INODE, NULL, 0, ext4_raw_inode(iloc), EXT4_INODE_SIZE(inode->i_sb));
	tid = READ_ONCE(ei->i_sync_tid);
	if (ei->i_ij.raw.set)
		tid = ij_later(tid, ei->i_ij.raw.tid);
	header->sub_id = cpu_to_le64(atomic64_inc_return(vext4_without(VEXT4_PART_IJOURNAL_ORDER) ? &area->sub_id :
							 &ij->sub_id));
	ij_captured(inode, le64_to_cpu(header->sub_id));
	spin_unlock(&ei->i_raw_lock);
	memcpy(header->magic, IJOURNAL_RUN_MAGIC, sizeof(header->magic));
	header->version = cpu_to_le16(IJOURNAL_VERSION);
	header->kind = cpu_to_le16(kind);
	header->tid = cpu_to_le32(tid);
	header->ino = cpu_to_le32(inode->i_ino);
	header->generation = cpu_to_le32(inode->i_generation);
}

/* Bytes that a record of so many takes. */
static unsigned int ij_record_len(unsigned int len)
{
	return sizeof(struct ijournal_record) + round_up(len, 8);
}

/* To compare: whole blocks of a directory that are not committed; they would go with a header and a commit block. */
static void ij_count_dir(struct ij_fs *ij, struct inode *dir)
{
	ext4_lblk_t blocks = i_size_read(dir) >> dir->i_sb->s_blocksize_bits, at;
	struct ext4_map_blocks map = { };
	struct buffer_head *bh;

	atomic64_inc(&ij->dir_runs);
	for (at = 0; at < blocks; at++) {
		map.m_lblk = at;
		map.m_len = 1;
		bh = ext4_map_blocks(NULL, dir, &map, 0) > 0 ? sb_find_get_block(dir->i_sb, map.m_pblk) : NULL;
		if (bh && buffer_jbddirty(bh))
			atomic64_inc(&ij->dir_blocks);
		brelse(bh);
	}
}

/*
 * Recovery reads a directory of up to 4 GiB. It builds its tree anew, of one level of blocks, and its additions may
 * need more of these.
 */
static bool ij_tree_is_large(struct inode *dir)
{
	struct ext4_extent_header *root = ext_inode_hdr(dir);

	return i_size_read(dir) > U32_MAX || ext_depth(dir) > 1 ||
	       (ext_depth(dir) == 1 && root->eh_entries == root->eh_max);
}

static enum ij_outcome ij_capture_dir(struct ij_batch *batch, struct ij_step *step, struct ij_area *area)
{
	struct inode *dir = step->dir;
	struct ijournal_entry entry = {
		.ino = cpu_to_le32(step->inode->i_ino),
		.generation = cpu_to_le32(step->inode->i_generation),
		.file_type = S_ISDIR(step->inode->i_mode) ? EXT4_FT_DIR : EXT4_FT_REG_FILE,
		.name_len = step->name_len,
	};
	struct ij_cursor cursor;
	struct ext4_iloc iloc;

	if (!ext4_test_inode_flag(dir, EXT4_INODE_EXTENTS) || ext4_has_inline_data(dir) || IS_ENCRYPTED(dir) ||
	    ij_tree_is_large(dir))
		return IJ_LAYOUT;
	if (!ij_run_begin(batch, &cursor, ij_record_len(EXT4_INODE_SIZE(dir->i_sb)) +
					  ij_record_len(sizeof(entry) + step->name_len)))
		return IJ_NO_MEMORY;
	if (ext4_get_inode_loc(dir, &iloc))
		return IJ_ERROR;
	down_read(&EXT4_I(dir)->xattr_sem);
	ij_capture_raw(&cursor, dir, &iloc, area, IJOURNAL_DIRECTORY);
	up_read(&EXT4_I(dir)->xattr_sem);
	brelse(iloc.bh);
	ij_record(&cursor, IJOURNAL_ENTRY, &entry, sizeof(entry), step->name, step->name_len);
	ij_run_end(batch, &cursor);
	if (VEXT4_FAULTS)
		ij_count_dir(EXT4_SB(dir->i_sb)->s_ij, dir);
	return IJ_WRITTEN;
}

/* External extent blocks that are not committed. The tree stands still. */
static enum ij_outcome ij_capture_extents(struct ij_cursor *cursor, struct inode *inode, struct ij_extent *extents,
					  unsigned int count)
{
	u32 tid = le32_to_cpu(cursor->header->tid);
	struct ext4_extent_header *node;
	struct ijournal_extent_block tag;
	struct buffer_head *bh;
	unsigned int at;

	for (at = 0; at < count; at++) {
		bh = sb_find_get_block(inode->i_sb, extents[at].block);
		if (!bh)
			return IJ_ERROR;
		node = ext_block_hdr(bh);
		tag.home = cpu_to_le64(extents[at].block);
		if (node->eh_magic != EXT4_EXT_MAGIC ||
		    le16_to_cpu(node->eh_entries) > le16_to_cpu(node->eh_max)) {
			brelse(bh);
			return IJ_ERROR;
		}
		ij_record(cursor, IJOURNAL_EXTENT_BLOCK, &tag, sizeof(tag), node,
			  sizeof(struct ext4_extent) * (1 + le16_to_cpu(node->eh_entries)));
		brelse(bh);
		tid = ij_later(tid, extents[at].tid);
	}
	cursor->header->tid = cpu_to_le32(tid);
	return IJ_WRITTEN;
}

/* Those that are not committed, for as long as i_data_sem is held. */
static struct ij_extent *ij_open_extents(struct inode *inode, u32 committed, unsigned int *count)
{
	struct ij_inode *state = &EXT4_I(inode)->i_ij;
	unsigned int room = READ_ONCE(state->extents_count), at;
	struct ij_extent *extents;

	*count = 0;
	if (!room)
		return NULL;
	extents = kvmalloc_array(room, sizeof(*extents), GFP_NOFS);
	if (!extents)
		return ERR_PTR(-ENOMEM);
	spin_lock(&state->lock);
	for (at = 0; at < state->extents_count && *count < room; at++)
		if (tid_gt(state->extents[at].tid, committed))
			extents[(*count)++] = state->extents[at];
	spin_unlock(&state->lock);
	return extents;
}

/* The inode and its tree, both of which stand still. */
static enum ij_outcome ij_capture_tree(struct ij_batch *batch, struct inode *inode, struct ext4_iloc *iloc,
				       struct ij_area *area, u32 committed)
{
	unsigned int count, max = ij_record_len(sizeof(struct ijournal_extent_block) + IJOURNAL_BLOCK_BYTES);
	enum ij_outcome outcome = IJ_LARGE;
	struct ij_cursor cursor;
	struct ij_extent *extents;
	struct ext4_inode *raw;

	extents = ij_open_extents(inode, committed, &count);
	if (IS_ERR(extents))
		return IJ_NO_MEMORY;
	/* Blocks that are not full take less: what is too large is known in the end. */
	if (count > 4 * IJOURNAL_RUN_BLOCKS_MAX)
		goto out;
	outcome = IJ_NO_MEMORY;
	if (!ij_run_begin(batch, &cursor, ij_record_len(EXT4_INODE_SIZE(inode->i_sb)) + count * max))
		goto out;
	ij_capture_raw(&cursor, inode, iloc, area, IJOURNAL_FILE);
	outcome = ij_capture_extents(&cursor, inode, extents, count);
	if (outcome != IJ_WRITTEN)
		goto out;
	raw = (struct ext4_inode *)((u8 *)(cursor.header + 1) + sizeof(struct ijournal_record));
	if (!raw->i_links_count)
		outcome = IJ_UNLINKED;
	else if (raw->i_dtime)
		outcome = IJ_ORPHAN;
	else if (ijournal_run_blocks(le32_to_cpu(cursor.header->records_len)) > IJOURNAL_RUN_BLOCKS_MAX)
		outcome = IJ_LARGE;
	else
		ij_run_end(batch, &cursor);
out:
	kvfree(extents);
	return outcome;
}

static enum ij_outcome ij_capture_file(struct ij_batch *batch, struct inode *inode, struct ij_area *area, u32 committed)
{
	struct ext4_inode_info *ei = EXT4_I(inode);
	enum ij_outcome outcome;
	struct ext4_iloc iloc;

	if (ext4_get_inode_loc(inode, &iloc))
		return IJ_ERROR;
	down_read(&ei->xattr_sem);
	down_read(&ei->i_data_sem);
	outcome = ij_allows(inode, committed);
	if (outcome == IJ_WRITTEN)
		outcome = ij_capture_tree(batch, inode, &iloc, area, committed);
	up_read(&ei->i_data_sem);
	up_read(&ei->xattr_sem);
	brelse(iloc.bh);
	return outcome;
}

/* Is an inode's name neither committed nor logged? */
static bool ij_is_unnamed(struct inode *inode, u32 committed)
{
	struct ij_inode *state = &EXT4_I(inode)->i_ij;
	bool unnamed;

	spin_lock(&state->lock);
	unnamed = ij_open(state->entry, committed) && !state->logged;
	spin_unlock(&state->lock);
	return unnamed;
}

/* The names that have to be logged with a file, from its own up. */
static enum ij_outcome ij_find_way(struct ij_way *way, struct inode *inode, u32 committed)
{
	struct dentry *dentry = NULL, *parent;
	struct name_snapshot name;
	struct ij_step *step;

	while (ij_is_unnamed(inode, committed)) {
		if (!dentry)
			dentry = d_find_alias(inode);
		if (!dentry || IS_ROOT(dentry)) {
			dput(dentry);
			return IJ_NO_NAME;
		}
		if (way->count == ARRAY_SIZE(way->step)) {
			dput(dentry);
			return IJ_LARGE;
		}
		step = &way->step[way->count];
		parent = dget_parent(dentry);
		take_dentry_name_snapshot(&name, dentry);
		step->name_len = min_t(u32, name.name.len, EXT4_NAME_LEN);
		memcpy(step->name, name.name.name, step->name_len);
		release_dentry_name_snapshot(&name);
		step->inode = inode;
		ihold(inode);
		step->dir = d_inode(parent);
		ihold(step->dir);
		way->count++;
		dput(dentry);
		dentry = parent;
		inode = step->dir;
	}
	dput(dentry);
	return IJ_WRITTEN;
}

/*
 * Names that were captured are the names still. The topmost directory has a run, too, and may be topmost only because
 * it was read again: nobody knows any more that its name is not committed.
 */
static enum ij_outcome ij_check_way(struct ij_way *way, u32 committed)
{
	enum ij_outcome outcome = IJ_WRITTEN;
	unsigned int at;

	for (at = 0; at < way->count && outcome == IJ_WRITTEN; at++)
		outcome = ij_allows(way->step[at].inode, committed);
	if (way->count && outcome == IJ_WRITTEN)
		outcome = ij_allows(way->step[way->count - 1].dir, committed);
	return outcome;
}

static void ij_drop_way(struct ij_way *way, bool logged)
{
	struct ij_inode *state;
	unsigned int at;

	for (at = 0; at < way->count; at++) {
		state = &EXT4_I(way->step[at].inode)->i_ij;
		if (logged) {
			spin_lock(&state->lock);
			state->logged = true;
			spin_unlock(&state->lock);
		}
		iput(way->step[at].inode);
		iput(way->step[at].dir);
	}
}

/* Pages whose content a commit would wait for: truncation has zeroed their ends. */
static int ij_write_ordered(struct inode *inode)
{
	struct jbd2_inode *jinode = READ_ONCE(EXT4_I(inode)->jinode);

	if (!jinode || !(READ_ONCE(jinode->i_transaction) || READ_ONCE(jinode->i_next_transaction)))
		return 0;
	return filemap_write_and_wait(inode->i_mapping);
}

static enum ij_outcome ij_log(struct ij_fs *ij, struct inode *inode, bool datasync, struct ij_way *way,
			      struct ij_batch *batch)
{
	u32 committed = ij_committed(ij);
	struct ij_area *area = &ij->area[raw_smp_processor_id() % ij->areas];
	enum ij_outcome outcome;
	unsigned int at;

	outcome = ij_allows(inode, committed);
	if (outcome == IJ_WRITTEN)
		outcome = ij_find_way(way, inode, committed);
	if (outcome == IJ_WRITTEN && !way->count && ij_is_logged(inode, datasync))
		return ij_write_ordered(inode) ? IJ_ERROR : IJ_LOGGED;
	for (at = way->count; at && outcome == IJ_WRITTEN; at--)
		if (at != way->count || !vext4_without(VEXT4_PART_IJOURNAL_DIRECTORY))
			outcome = ij_capture_dir(batch, &way->step[at - 1], area);
	if (outcome == IJ_WRITTEN)
		outcome = ij_capture_file(batch, inode, area, committed);
	if (outcome == IJ_WRITTEN)
		outcome = ij_check_way(way, committed);
	if (outcome != IJ_WRITTEN)
		return outcome;
	if (ij_write_ordered(inode))
		return IJ_ERROR;
	if (!ij_has_space(ij))
		return IJ_NO_SPACE;
	vext4_fault(VEXT4_FAULT_IJOURNAL);
	outcome = ij_write(ij, area, batch);
	if (outcome != IJ_WRITTEN)
		return outcome;
	ij_logged(inode, batch);
	vext4_fault(VEXT4_FAULT_IJOURNAL_WRITTEN);
	return IJ_WRITTEN;
}

static enum ij_outcome ij_try(struct ij_fs *ij, struct inode *inode, bool datasync)
{
	struct ij_batch batch = { };
	enum ij_outcome outcome;
	struct ij_way *way;

	way = kmalloc(sizeof(*way), GFP_NOFS);
	if (!way)
		return IJ_NO_MEMORY;
	way->count = 0;
	outcome = ij_log(ij, inode, datasync, way, &batch);
	ij_drop_way(way, outcome == IJ_WRITTEN);
	kfree(way);
	kvfree(batch.bytes);
	return outcome;
}

/* What no state has to tell. */
static enum ij_outcome ij_kind(struct ij_fs *ij, struct inode *inode, u32 tid)
{
	if (!tid_gt(tid, ij_committed(ij)))
		return IJ_COMMITTED;
	if (!ext4_should_dioread_nolock(inode) || ext4_has_inline_data(inode) || IS_ENCRYPTED(inode) ||
	    IS_VERITY(inode) || IS_DAX(inode))
		return IJ_LAYOUT;
	return ij_epoch_is_over(ij, tid) ? IJ_EPOCH : IJ_WRITTEN;
}

static enum ij_outcome ij_serve(struct ij_fs *ij, struct inode *inode, bool datasync)
{
	enum ij_outcome outcome;

	percpu_down_read(&ij->epoch_lock);
	outcome = ij_kind(ij, inode, datasync ? EXT4_I(inode)->i_datasync_tid : EXT4_I(inode)->i_sync_tid);
	if (outcome == IJ_WRITTEN)
		outcome = ij_try(ij, inode, datasync);
	percpu_up_read(&ij->epoch_lock);
	return outcome;
}

/* Where fsyncs write runs, and the journal is whole. */
static struct ij_fs *ij_writes(struct super_block *sb)
{
	struct ij_fs *ij = EXT4_SB(sb)->s_ij;

	return ij && test_opt2(sb, IJOURNAL) && !is_journal_aborted(EXT4_SB(sb)->s_journal) ? ij : NULL;
}

/**
 * ij_counts - an fsync begins; some are a commit without further questions
 * @inode: of what
 */
void ij_counts(struct inode *inode)
{
	struct ij_fs *ij = EXT4_SB(inode->i_sb)->s_ij;

	if (ij && S_ISREG(inode->i_mode) && ext4_should_journal_data(inode))
		atomic64_inc(&ij->outcomes[IJ_JOURNALED_DATA]);
}

/**
 * ij_is_unchanged - has a directory nothing that is not committed?
 * @inode: what is synced
 *
 * Return: whether it is durable: its entries are in no other place than the journal, whose commit was. The stock kernel
 * commits whatever is running, which here is everything that fsyncs have left alone.
 */
bool ij_is_unchanged(struct inode *inode)
{
	struct ij_fs *ij = ij_writes(inode->i_sb);
	bool committed;

	if (!ij || S_ISREG(inode->i_mode))
		return false;
	committed = S_ISDIR(inode->i_mode) && !tid_gt(READ_ONCE(EXT4_I(inode)->i_sync_tid), ij_committed(ij));
	atomic64_inc(&ij->outcomes[committed ? IJ_COMMITTED : IJ_DIRECTORY]);
	return committed;
}

/**
 * ij_syncs - make a file durable by an i-transaction
 * @inode: the file, its data written and waited for
 * @datasync: only what its data needs
 * @needs_barrier: set where a flush is all that is missing
 *
 * Return: whether it is durable now, or behind that flush; else a normal commit is needed.
 */
bool ij_syncs(struct inode *inode, bool datasync, bool *needs_barrier)
{
	struct ij_fs *ij = ij_writes(inode->i_sb);
	journal_t *journal = EXT4_SB(inode->i_sb)->s_journal;
	enum ij_outcome outcome;

	if (!ij || !S_ISREG(inode->i_mode) || ext4_should_journal_data(inode))
		return false;
	outcome = ij_serve(ij, inode, datasync);
	if (outcome == IJ_EPOCH && ij_renew_epoch(ij))
		outcome = ij_serve(ij, inode, datasync);
	atomic64_inc(&ij->outcomes[outcome]);
	if (outcome == IJ_LOGGED && journal->j_flags & JBD2_BARRIER)
		*needs_barrier = true;
	/* A journal that was aborted meanwhile has an error to tell. */
	return (outcome == IJ_WRITTEN || outcome == IJ_LOGGED) && !is_journal_aborted(journal);
}

/**
 * ij_verdict - what a sync says
 * @inode: of what
 * @err: what became of the commit that it needed
 *
 * A transaction whose commit has failed is neither running nor being committed, and is taken for committed.
 *
 * Return: 0, or an error.
 */
int ij_verdict(struct inode *inode, int err)
{
	journal_t *journal = EXT4_SB(inode->i_sb)->s_journal;

	return !err && journal && is_journal_aborted(journal) ? -EIO : err;
}
