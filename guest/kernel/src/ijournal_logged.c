// SPDX-License-Identifier: GPL-2.0
/*
 * iJournaling: an fsync whose last run has all of it. SQLite writes a journal's header again and syncs that, behind
 * the journal itself: only data has changed, and data is durable by the flush.
 *
 * After a crash the newest run of an inode counts, as long as its transaction is not committed. A run stands for the
 * inode as it is now where
 *
 *  - it is durable, and no later one was captured, on whatever CPU: that could be durable, too, and would count. A
 *    capture takes the mark away, under i_raw_lock; only the write of the newest one that was captured puts it back
 *  - the inode's block is the run's, byte for byte: for fdatasync but for times, the version, and the checksum of these
 *  - no block of its tree outside the inode was changed or freed since: a count, because they could come to be the same
 *  - its transaction is running still when all that was looked at. So until it is committed the run counts, and its
 *    commit has the inode as it was looked at, or as it became later. Were it being committed, what it has of the inode
 *    could have been changed since, and changed back by the next one
 *  - it is of this epoch
 *
 * Names and links are the state's: who asks has found that the inode may be logged, and that its way is.
 */

#include <linux/faults.h>
#include "ext4_jbd2.h"
#include "ijournal.h"
#include "ijournal_fs.h"

/* What an fdatasync does without, of the inode's first half and of its second. */
static const struct ij_bytes {
	unsigned int from;
	unsigned int to;
} ij_times[] = {
	{ offsetof(struct ext4_inode, i_atime), offsetofend(struct ext4_inode, i_mtime) },
	{ offsetof(struct ext4_inode, osd1.linux1.l_i_version),
	  offsetofend(struct ext4_inode, osd1.linux1.l_i_version) },
	{ offsetof(struct ext4_inode, osd2.linux2.l_i_checksum_lo),
	  offsetofend(struct ext4_inode, osd2.linux2.l_i_checksum_lo) },
	{ offsetof(struct ext4_inode, i_checksum_hi), offsetofend(struct ext4_inode, i_atime_extra) },
	{ offsetof(struct ext4_inode, i_version_hi), offsetofend(struct ext4_inode, i_version_hi) },
};

static bool ij_same(const u8 *was, const u8 *is, unsigned int len, bool datasync)
{
	const struct ext4_inode *raw = (const struct ext4_inode *)is;
	unsigned int from = 0, at;

	/* Attributes may lie where other inodes have these fields. */
	if (datasync && (len == EXT4_GOOD_OLD_INODE_SIZE || EXT4_GOOD_OLD_INODE_SIZE +
			 le16_to_cpu(raw->i_extra_isize) >= offsetofend(struct ext4_inode, i_version_hi))) {
		for (at = 0; at < ARRAY_SIZE(ij_times) && ij_times[at].from < len; at++) {
			if (memcmp(was + from, is + from, ij_times[at].from - from))
				return false;
			from = ij_times[at].to;
		}
	}
	return !memcmp(was + from, is + from, len - from);
}

/**
 * ij_captured - a run of an inode was captured
 * @inode: the inode, its i_raw_lock held, its tree standing still
 * @sub_id: the run
 */
void ij_captured(struct inode *inode, u64 sub_id)
{
	struct ij_inode *state = &EXT4_I(inode)->i_ij;

	spin_lock(&state->lock);
	state->captured = sub_id;
	state->captured_tree = state->tree_changes;
	state->logged_run = 0;
	spin_unlock(&state->lock);
}

/**
 * ij_logged - the runs of an fsync are durable
 * @inode: the file
 * @batch: the runs, the file's the last
 */
void ij_logged(struct inode *inode, struct ij_batch *batch)
{
	u8 *bytes = batch->bytes + (size_t)batch->runs[batch->count - 1].block * IJOURNAL_BLOCK_BYTES;
	struct ijournal_header *header = (struct ijournal_header *)bytes;
	struct ij_inode *state = &EXT4_I(inode)->i_ij;
	unsigned int len = EXT4_INODE_SIZE(inode->i_sb);
	u8 *body = NULL;

	if (!READ_ONCE(state->body))
		body = kmalloc(len, GFP_NOFS);
	spin_lock(&state->lock);
	if (!state->body)
		swap(state->body, body);
	if (state->body && state->captured == le64_to_cpu(header->sub_id)) {
		memcpy(state->body, bytes + sizeof(*header) + sizeof(struct ijournal_record), len);
		state->logged_run = state->captured;
		state->logged_tid = le32_to_cpu(header->tid);
		state->logged_epoch = EXT4_SB(inode->i_sb)->s_ij->epochs;
	}
	spin_unlock(&state->lock);
	kfree(body);
}

/* Does the last run stand for the inode, if its transaction is running? */
static bool ij_stands(struct inode *inode, struct ext4_iloc *iloc, bool datasync, u32 *tid)
{
	struct ext4_inode_info *ei = EXT4_I(inode);
	struct ij_inode *state = &ei->i_ij;
	bool stands;

	spin_lock(&ei->i_raw_lock);
	spin_lock(&state->lock);
	*tid = state->logged_tid;
	stands = state->logged_run && state->logged_epoch == EXT4_SB(inode->i_sb)->s_ij->epochs;
	if (stands && !vext4_without(VEXT4_PART_IJOURNAL_LOGGED))
		stands = state->captured_tree == state->tree_changes &&
			 ij_same(state->body, (u8 *)ext4_raw_inode(iloc), EXT4_INODE_SIZE(inode->i_sb), datasync);
	spin_unlock(&state->lock);
	spin_unlock(&ei->i_raw_lock);
	return stands;
}

/**
 * ij_is_logged - is there nothing that the last run has not, but data?
 * @inode: a file whose way is logged or committed
 * @datasync: times do not matter
 */
bool ij_is_logged(struct inode *inode, bool datasync)
{
	journal_t *journal = EXT4_SB(inode->i_sb)->s_journal;
	struct ext4_inode_info *ei = EXT4_I(inode);
	struct ext4_iloc iloc;
	bool logged;
	u32 tid;

	if (!READ_ONCE(ei->i_ij.logged_run) || ext4_get_inode_loc(inode, &iloc))
		return false;
	down_read(&ei->xattr_sem);
	down_read(&ei->i_data_sem);
	logged = ij_stands(inode, &iloc, datasync, &tid);
	up_read(&ei->i_data_sem);
	up_read(&ei->xattr_sem);
	brelse(iloc.bh);
	read_lock(&journal->j_state_lock);
	logged = logged && journal->j_running_transaction && journal->j_running_transaction->t_tid == tid;
	read_unlock(&journal->j_state_lock);
	return logged;
}
