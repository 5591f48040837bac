/* SPDX-License-Identifier: GPL-2.0 */
/*
 * iJournaling (docs/ijournaling.md): what the file system's structures hold of it, and what the hooks call.
 *
 *   ijournal_state.c   what of an inode is not committed, and what replay could not reproduce
 *   ijournal_sync.c    an fsync: what is captured of an inode and of the way to it, in which order
 *   ijournal_logged.c  an fsync whose last run has all of it
 *   ijournal_group.c   runs of several fsyncs in one request
 *   ijournal_area.c    the areas: where a run is written, and epochs
 *   ijournal_mount.c   what a mount needs, the bit in the journal's superblock, counters
 */
#ifndef _IJOURNAL_H
#define _IJOURNAL_H

#include <linux/spinlock.h>
#include <linux/types.h>

struct buffer_head;
struct dentry;
struct ext4_dir_entry_2;
struct ext4_inode;
struct file;
struct ij_fs;
struct inode;
struct jbd2_journal_handle;
struct super_block;

/* In s_mount_opt2. */
#define EXT4_MOUNT2_IJOURNAL 0x10000000

/*
 * How an fsync was served: by an i-transaction; with nothing there to commit; with nothing that the last i-transaction
 * has not; else by a normal commit, and why.
 */
enum ij_outcome {
	IJ_WRITTEN,
	IJ_COMMITTED,
	IJ_LOGGED,
	IJ_DIRECTORY,
	IJ_HARD_LINK,
	IJ_RENAME,
	IJ_NAME_REUSE,
	IJ_INODE_REUSE,
	IJ_UNLINKED,
	IJ_XATTR_BLOCK,
	IJ_JOURNALED_DATA,
	IJ_LAYOUT,
	IJ_ORPHAN,
	IJ_EXCHANGED,
	IJ_READ_BACK,
	IJ_NO_NAME,
	IJ_LARGE,
	IJ_AREA_FULL,
	IJ_NO_SPACE,
	IJ_EPOCH,
	IJ_NO_MEMORY,
	IJ_ERROR,
	IJ_OUTCOMES
};

/* A transaction of the journal in which something was done, if it was. */
struct ij_stamp {
	u32 tid;
	bool set;
};

/* An external extent block, and the last transaction that has changed it. */
struct ij_extent {
	u64 block;
	u32 tid;
};

/**
 * struct ij_inode - what iJournaling knows of an inode in memory
 * @lock: protects all of it
 * @normal: until this transaction is committed, only a normal commit makes the inode durable
 * @why: for what reason
 * @born: the inode was made
 * @entry: its only name was entered into its directory
 * @logged: an i-transaction of this mount has that entry, and of the way to it
 * @raw: the inode's block was changed last
 * @orphan: the inode went onto the orphan list
 * @extents: external extent blocks that may not be committed
 * @extents_count: how many
 * @extents_room: for how many there is room
 * @tree_changes: how often one of them was changed or freed
 * @captured: the newest run of the inode that was captured: its sub-transaction id
 * @captured_tree: tree_changes then
 * @logged_run: the newest one that was captured, if it is durable and @body is known
 * @logged_tid: its transaction
 * @logged_epoch: its epoch: ij_fs.epochs
 * @body: the inode as it has it, or NULL
 */
struct ij_inode {
	spinlock_t lock; /* all of it */
	struct ij_stamp normal;
	enum ij_outcome why;
	struct ij_stamp born;
	struct ij_stamp entry;
	bool logged;
	struct ij_stamp raw;
	struct ij_stamp orphan;
	struct ij_extent *extents;
	unsigned int extents_count;
	unsigned int extents_room;
	u64 tree_changes;
	u64 captured;
	u64 captured_tree;
	u64 logged_run;
	u32 logged_tid;
	u64 logged_epoch;
	u8 *body;
};

/* Called by hooks: ijournal_state.c */
void ij_init_inode(struct ij_inode *state);
void ij_destroy_inode(struct ij_inode *state);
void ij_loaded(struct inode *inode, struct buffer_head *bh);
void ij_born(struct jbd2_journal_handle *handle, struct inode *inode);
void ij_changes(struct jbd2_journal_handle *handle, struct inode *inode, struct ext4_inode *raw);
void ij_entry_added(struct jbd2_journal_handle *handle, struct dentry *dentry, struct inode *inode);
void ij_entry_removed(struct jbd2_journal_handle *handle, struct inode *dir, struct ext4_dir_entry_2 *entry);
void ij_renamed(struct jbd2_journal_handle *handle, struct inode *inode);
void ij_metadata_dirty(struct jbd2_journal_handle *handle, struct inode *inode, struct buffer_head *bh);
void ij_block_freed(struct inode *inode, u64 block);
bool ij_number_is_gone(struct super_block *sb, u32 group, unsigned long bit);
unsigned long ij_next_number(struct super_block *sb, u32 group, unsigned long bit);
void ij_inode_freed(struct jbd2_journal_handle *handle, struct inode *inode);
void ij_orphan_added(struct jbd2_journal_handle *handle, struct inode *inode);
void ij_orphan_removed(struct jbd2_journal_handle *handle, struct inode *inode);
void ij_xattr_changes(struct jbd2_journal_handle *handle, struct inode *inode);
void ij_exchanges(struct super_block *sb, struct jbd2_journal_handle *handle);

/* ijournal_sync.c */
void ij_counts(struct inode *inode);
bool ij_is_unchanged(struct inode *inode);
bool ij_syncs(struct inode *inode, bool datasync, bool *needs_barrier);
int ij_verdict(struct inode *inode, int err);

/* ijournal_group.c */
int ij_write_data(struct file *file, loff_t start, loff_t end);

/* ijournal_mount.c */
bool ij_is_option(const char *key);
int ij_start(struct super_block *sb);
void ij_stop(struct super_block *sb);
void ij_clear_bit(struct super_block *sb);
int ij_set_bit(struct super_block *sb);
bool ij_may_remount(struct super_block *sb);
bool ij_bit_is_left(struct super_block *sb);
void ij_explain(struct super_block *sb, struct journal_s *journal);
bool ij_refuses_open(struct inode *inode);

#endif
