/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Single-I/O data journaling, the file system's half: see single_io_fs.c.
 */
#ifndef _SINGLE_IO_FS_H
#define _SINGLE_IO_FS_H

#include <linux/blkdev.h>
#include <linux/faults.h>
#include <linux/fscrypt.h>
#include "ext4_jbd2.h"

bool sio_sync(struct inode *inode, loff_t start, loff_t end, int *ret);
void sio_unmark(struct inode *inode);
bool sio_dirty_mapped(struct address_space *mapping, struct folio *folio);

/*
 * Something was written past the journal. Said when the write has ended, before any handle can rely on it.
 */
static inline void sio_home_write(struct super_block *sb)
{
	journal_t *journal = EXT4_SB(sb)->s_journal;

	if (journal)
		WRITE_ONCE(journal->j_sio.home_data, 1);
}

/*
 * A file's data was written to its home. Data that went through the journal first is no reason to wait: a crash
 * that loses it finds it in the journal.
 */
static inline void sio_home_data(struct inode *inode)
{
	if (!ext4_should_journal_data(inode))
		sio_home_write(inode->i_sb);
}

static inline int sio_issue_zeroout(struct super_block *sb, sector_t block, sector_t count, gfp_t gfp)
{
	int ret = sb_issue_zeroout(sb, block, count, gfp);

	sio_home_write(sb);
	return ret;
}

static inline int sio_encrypted_zeroout(const struct inode *inode, pgoff_t lblk, sector_t pblk,
					unsigned int len)
{
	int ret = fscrypt_zeroout_range(inode, lblk, pblk, len);

	sio_home_write(inode->i_sb);
	return ret;
}

/*
 * The kernel refuses journal_async_commit with data=ordered, because a commit could be durable before its data.
 * Here such a commit is a classic one (sio_commit_at_once()).
 */
static inline bool sio_refuses(struct super_block *sb)
{
	return false;
}

/*
 * Whether the journal is to have one checksum for each transaction (version 1) where it would have one for each
 * block (version 3): a transaction that is committed at once needs the former.
 */
static inline bool sio_checks_transactions(struct super_block *sb)
{
	return !vext4_without(VEXT4_PART_CHECKSUM) && test_opt(sb, JOURNAL_ASYNC_COMMIT);
}

/*
 * A journal that was loaded with checksums of blocks has their algorithm, and then counts as one of version 2 or 3
 * whatever its features are now: a checksum of the commit block would be put in the place of the transaction's.
 */
static inline void sio_forget_blocks_checksum(struct super_block *sb)
{
	journal_t *journal = EXT4_SB(sb)->s_journal;

	if (!sio_checks_transactions(sb) || !journal->j_chksum_driver)
		return;
	crypto_free_shash(journal->j_chksum_driver);
	journal->j_chksum_driver = NULL;
}

#endif
