// SPDX-License-Identifier: GPL-2.0
/*
 * Single-I/O data journaling, the file system's half: a sync of journaled data is a commit, and no write of its home.
 *
 * What write(2) changed in a file whose data is journaled is in the running transaction or in an older one. So a sync
 * has to commit, and nothing else; the stock kernel also writes home what older transactions have committed. Only what
 * was changed through a mapping is not in the journal yet: its pages are marked (PG_checked) when they become dirty,
 * and enter the running transaction before the commit.
 *
 * It is switched on by the mount option journal_async_commit, and by data=vma.
 */

#include <linux/faults.h>
#include <linux/pagemap.h>
#include <linux/writeback.h>
#include "ext4_jbd2.h"
#include "series.h"
#include "single_io_fs.h"
#include "vma_fs.h"

/**
 * sio_syncs_by_commit - is a commit all that a sync of this file needs?
 * @inode: the file
 */
bool sio_syncs_by_commit(struct inode *inode)
{
	return EXT4_SB(inode->i_sb)->s_journal && ext4_should_journal_data(inode) &&
	       (test_opt(inode->i_sb, JOURNAL_ASYNC_COMMIT) || vmaj_mounted(inode->i_sb));
}

/**
 * sio_sync - sync a file by a commit
 * @inode: a file for which sio_syncs_by_commit() holds
 * @start: the first byte
 * @end: the last byte
 *
 * Return: 0, or an error; then what mappings have changed may not be durable, and the next sync tries again.
 */
int sio_sync(struct inode *inode, loff_t start, loff_t end)
{
	bool *mapped = &EXT4_I(inode)->i_sio_mapped;
	int ret;

	atomic64_inc(&EXT4_SB(inode->i_sb)->s_journal->j_sio.syncs);
	if (READ_ONCE(*mapped)) {
		/* Cleared first: a page that becomes dirty from now on sets it again. */
		if (start == 0 && end == LLONG_MAX)
			WRITE_ONCE(*mapped, false);
		/* Pairs with the release in sio_dirty_mapped(). */
		smp_mb();
		ret = series_journal_mapped(inode, start, end);
		if (ret) {
			WRITE_ONCE(*mapped, true);
			return ret;
		}
		vext4_fault(VEXT4_FAULT_MAPPED);
	}
	if (vmaj_mounted(inode->i_sb) && !sb_rdonly(inode->i_sb))
		return vmaj_force_commit(EXT4_SB(inode->i_sb)->s_journal);
	return ext4_force_commit(inode->i_sb);
}

/**
 * sio_dirty_mapped - a page of journaled data becomes dirty in another way than by write(2)
 * @mapping: the file's
 * @folio: the page, marked where it is not in the journal
 *
 * Return: whether it was clean.
 */
bool sio_dirty_mapped(struct address_space *mapping, struct folio *folio)
{
	bool marked = folio_test_checked(folio);
	bool newly = filemap_dirty_folio(mapping, folio);

	if (marked)
		/* Set last: a sync that clears it before this has seen the page dirty, or leaves it to the next. */
		smp_store_release(&EXT4_I(mapping->host)->i_sio_mapped, true);
	return newly;
}
