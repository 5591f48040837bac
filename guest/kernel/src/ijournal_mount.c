// SPDX-License-Identifier: GPL-2.0
/*
 * iJournaling at mounts and remounts: what it needs of a file system, the areas' file, the bit in the journal's
 * superblock, and the counters in procfs.
 *
 * The bit is durable before the first run is written, and goes when the journal is empty. It is set behind the file
 * system's needs_recovery and cleared before it. Runs are written only where the mount option is on: a remount that
 * fails late gives that back, and the bit.
 */

#include <linux/faults.h>
#include <linux/namei.h>
#include <linux/proc_fs.h>
#include <linux/quotaops.h>
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

static int ij_show(struct seq_file *seq, void *v)
{
	static const char * const names[IJ_OUTCOMES] = {
		[IJ_WRITTEN] = "written",
		[IJ_COMMITTED] = "committed",
		[IJ_LOGGED] = "logged",
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
		[IJ_NO_SPACE] = "no_space",
		[IJ_EPOCH] = "epoch",
		[IJ_NO_MEMORY] = "no_memory",
		[IJ_ERROR] = "error",
	};
	struct ij_fs *ij = seq->private;
	int outcome;

	for (outcome = 0; outcome < IJ_OUTCOMES; outcome++)
		seq_printf(seq, "%s %lld\n", names[outcome], atomic64_read(&ij->outcomes[outcome]));
	seq_printf(seq, "epochs %llu\n", READ_ONCE(ij->epochs));
	seq_printf(seq, "grouped %lld\n", atomic64_read(&ij->grouped));
	seq_printf(seq, "runs %lld\n", atomic64_read(&ij->runs));
	seq_printf(seq, "bytes %lld\n", atomic64_read(&ij->run_blocks) * IJOURNAL_BLOCK_BYTES);
	if (VEXT4_FAULTS)
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
	if (sbi->s_journal->j_superblock->s_header.h_blocktype == cpu_to_be32(JBD2_SUPERBLOCK_V1))
		return "its journal's superblock is of version 1, which has no features";
	if (sb->s_blocksize != IJOURNAL_BLOCK_BYTES || PAGE_SIZE != IJOURNAL_BLOCK_BYTES)
		return "its blocks, or this machine's pages, are not of 4 KiB";
	if (EXT4_INODE_SIZE(sb) < IJOURNAL_INODE_BYTES_MIN || EXT4_INODE_SIZE(sb) > IJOURNAL_INODE_BYTES_MAX)
		return "its inodes are of more than 256 bytes";
	if (ext4_has_feature_bigalloc(sb) || ext4_has_feature_meta_bg(sb) || ext4_has_feature_inline_data(sb) ||
	    ext4_has_feature_quota(sb) || ext4_has_feature_project(sb) || ext4_has_feature_casefold(sb) ||
	    ext4_has_feature_encrypt(sb) || ext4_has_feature_ea_inode(sb) ||
	    ext4_has_feature_fast_commit(sb))
		return "it has a feature that recovery does not know (docs/ijournaling.md)";
	if (!sbi->s_journal->j_inode || !ext4_test_inode_flag(sbi->s_journal->j_inode, EXT4_INODE_EXTENTS) ||
	    !ext4_test_inode_flag(d_inode(sb->s_root), EXT4_INODE_EXTENTS))
		return "its journal or root directory is not mapped by extents, as where it was made as ext3";
	if (test_opt(sb, DATA_FLAGS) != EXT4_MOUNT_ORDERED_DATA || !test_opt(sb, DELALLOC) ||
	    !test_opt(sb, DIOREAD_NOLOCK) || test_opt(sb, JOURNAL_ASYNC_COMMIT) || test_opt(sb, DAX_ALWAYS) ||
	    sb_any_quota_loaded(sb) || ij_has_quota_files(sb))
		return "it needs data=ordered,delalloc,dioread_nolock, and no quotas, DAX or journal_async_commit";
	return NULL;
}

/* The superblock's buffer is gone where its journal cannot be one. */
static bool ij_bit_is_set(journal_t *journal)
{
	return journal && journal->j_sb_buffer &&
	       journal->j_superblock->s_feature_incompat & cpu_to_be32(IJOURNAL_INCOMPAT);
}

/* Durably, as the journal's superblock is always written; a write that fails aborts the journal. */
static int ij_write_bit(journal_t *journal, __be32 bit)
{
	journal_superblock_t *jsb = journal->j_superblock;

	lock_buffer(journal->j_sb_buffer);
	jsb->s_feature_incompat = (jsb->s_feature_incompat & cpu_to_be32(~IJOURNAL_INCOMPAT)) | bit;
	unlock_buffer(journal->j_sb_buffer);
	jbd2_journal_update_sb_errno(journal);
	return is_journal_aborted(journal) ? -EIO : 0;
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
	if (!why && !ij_bit_is_set(EXT4_SB(sb)->s_journal) && !sb_rdonly(sb))
		why = "it cannot be switched on while the file system is writable";
	if (why)
		ext4_msg(sb, KERN_ERR, "ijournal: %s", why);
	return !why;
}

static const char ij_no_areas[] = "it has no areas: there is no file " IJOURNAL_FILE_NAME;

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
		return ij_no_areas;
	if (!ext4_test_inode_flag(ij->file, EXT4_INODE_EXTENTS) || ext4_should_journal_data(ij->file))
		return "the areas' file is not mapped by extents, or its data is journaled";
	/* Nobody writes, moves or removes it as long as this is mounted; see also ij_refuses_open(). */
	inode_lock(ij->file);
	ij->file->i_flags |= S_SWAPFILE;
	inode_unlock(ij->file);
	return NULL;
}

static void ij_free(struct ij_fs *ij)
{
	unsigned int at;

	if (ij->file) {
		inode_lock(ij->file);
		ij->file->i_flags &= ~S_SWAPFILE;
		inode_unlock(ij->file);
		iput(ij->file);
	}
	for (at = 0; at < IJ_GONE; at++)
		ij_forget(ij, &ij->gone[at]);
	percpu_free_rwsem(&ij->epoch_lock);
	free_page((unsigned long)ij->header);
	kvfree(ij->blocks);
	kvfree(ij->area);
	kvfree(ij);
}

static const char *ij_open_areas(struct ij_fs *ij)
{
	const char *why;
	unsigned int at;

	ij->header = (void *)__get_free_page(GFP_KERNEL);
	if (!ij->header || percpu_init_rwsem(&ij->epoch_lock))
		return "there is no memory";
	why = ij_find_file(ij);
	if (!why)
		why = ij_read_areas(ij);
	if (why)
		return why;
	ij->area = kvcalloc(ij->areas, sizeof(*ij->area), GFP_KERNEL);
	if (!ij->area)
		return "there is no memory for the areas";
	for (at = 0; at < ij->areas; at++) {
		spin_lock_init(&ij->area[at].lock);
		INIT_LIST_HEAD(&ij->area[at].waiting);
		atomic64_set(&ij->area[at].sub_id, (s64)at << 32);
	}
	return ij_begin_epoch(ij);
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
	unsigned int at;
	struct ij_fs *ij;

	if (!test_opt2(sb, IJOURNAL))
		return 0;
	why = ij_refuses(sb);
	if (why) {
		ext4_msg(sb, KERN_ERR, "ijournal: %s", why);
		return -EINVAL;
	}
	if (!sbi->s_ij) {
		ij = kvzalloc(sizeof(*ij), GFP_KERNEL);
		if (!ij)
			return -ENOMEM;
		ij->sb = sb;
		spin_lock_init(&ij->coming_lock);
		INIT_LIST_HEAD(&ij->coming);
		init_waitqueue_head(&ij->came);
		spin_lock_init(&ij->gone_lock);
		mutex_init(&ij->gone_mutex);
		for (at = 0; at < IJ_GONE; at++)
			xa_init(&ij->gone[at].numbers);
		why = ij_open_areas(ij);
		if (why == ij_no_areas) {
			/* A commit is all that an fsync needs, and a root file system has to be mounted. */
			ext4_msg(sb, KERN_WARNING, "ijournal: %s; fsyncs commit", why);
			ij_free(ij);
			clear_opt2(sb, IJOURNAL);
			return 0;
		}
		if (why) {
			ext4_msg(sb, KERN_ERR, "ijournal: %s", why);
			ij_free(ij);
			return -EINVAL;
		}
		proc_create_single_data("ijournal", 0444, sbi->s_journal->j_proc_entry, ij_show, ij);
		sbi->s_ij = ij;
	}
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
	if (!is_journal_aborted(sbi->s_journal)) {
		jbd2_journal_lock_updates(sbi->s_journal);
		if (!jbd2_journal_flush(sbi->s_journal, 0))
			ij_clear_bit(sb);
		jbd2_journal_unlock_updates(sbi->s_journal);
	}
	ij_free(ij);
}

/**
 * ij_set_bit - there may be valid i-transactions from now on
 * @sb: the file system, which says durably that its journal is in use
 *
 * Return: 0, or an error.
 */
int ij_set_bit(struct super_block *sb)
{
	if (!EXT4_SB(sb)->s_ij || !test_opt2(sb, IJOURNAL))
		return 0;
	return ij_write_bit(EXT4_SB(sb)->s_journal, cpu_to_be32(IJOURNAL_INCOMPAT));
}

/**
 * ij_clear_bit - there are none: all is committed, and written home
 * @sb: the file system; that its journal is empty is what its superblock says next
 */
void ij_clear_bit(struct super_block *sb)
{
	if (ij_bit_is_set(EXT4_SB(sb)->s_journal))
		ij_write_bit(EXT4_SB(sb)->s_journal, 0);
}

/**
 * ij_bit_is_left - has a remount set the bit, and then failed?
 * @sb: the file system
 *
 * Return: whether the journal has to be emptied, and the bit cleared, as where it becomes read-only.
 */
bool ij_bit_is_left(struct super_block *sb)
{
	return sb_rdonly(sb) && ij_bit_is_set(EXT4_SB(sb)->s_journal);
}

/**
 * ij_explain - say what is wrong with a file system that has to be recovered
 * @sb: the file system, whose superblock had the bit before its journal's did
 * @journal: its journal, if it is known
 */
void ij_explain(struct super_block *sb, journal_t *journal)
{
	if (ij_bit_is_set(journal) || EXT4_SB(sb)->s_es->s_feature_incompat & cpu_to_le32(IJOURNAL_INCOMPAT))
		ext4_msg(sb, KERN_ERR, "ijournal: there may be i-transactions: recover them first");
}

/**
 * ij_refuses_open - is a file none to be read?
 * @inode: a file that is opened
 *
 * The areas are written beside the page cache, which would have any old content of them.
 */
bool ij_refuses_open(struct inode *inode)
{
	struct ij_fs *ij = EXT4_SB(inode->i_sb)->s_ij;

	return ij && inode == ij->file;
}
