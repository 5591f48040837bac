// SPDX-License-Identifier: GPL-2.0
/*
 * Single-I/O data journaling, the file system's half: a sync of journaled data is a commit, and no write of its home.
 *
 * What write(2) changed in a file whose data is journaled is in the running transaction or in an older one. So a sync
 * has to commit, and nothing else; the stock kernel also writes home what older transactions have committed. Only what
 * was changed through a mapping is not in the journal yet: its pages are marked (PG_checked) when they become dirty,
 * and enter the running transaction before the commit.
 *
 * It is switched on by the mount option journal_async_commit.
 */

#include <linux/pagemap.h>
#include <linux/writeback.h>
#include "ext4_jbd2.h"
#include "single_io_fs.h"

/**
 * sio_syncs_by_commit - is a commit all that a sync of this file needs?
 * @inode: the file
 */
bool sio_syncs_by_commit(struct inode *inode)
{
	return EXT4_SB(inode->i_sb)->s_journal && test_opt(inode->i_sb, JOURNAL_ASYNC_COMMIT) &&
	       ext4_should_journal_data(inode);
}

static int sio_journal_page(struct page *page, struct writeback_control *wbc, void *data)
{
	struct sio_journal *sio = data;

	if (!PageChecked(page)) {
		/* It is committed, and goes home when the time comes. */
		redirty_page_for_writepage(wbc, page);
		unlock_page(page);
		return 0;
	}
	atomic64_inc(&sio->mapped_pages);
	return ext4_writepage(page, wbc);
}

/* Brings what mappings have changed into the running transaction. */
static int sio_journal_mapped(struct inode *inode, loff_t start, loff_t end)
{
	struct writeback_control wbc = {
		.sync_mode = WB_SYNC_ALL,
		.nr_to_write = LONG_MAX,
		.range_start = start,
		.range_end = end,
	};
	int ctx, ret;

	ctx = ext4_writepages_down_read(inode->i_sb);
	ret = write_cache_pages(inode->i_mapping, &wbc, sio_journal_page,
				&EXT4_SB(inode->i_sb)->s_journal->j_sio);
	ext4_writepages_up_read(inode->i_sb, ctx);
	return ret;
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
		ret = sio_journal_mapped(inode, start, end);
		if (ret) {
			WRITE_ONCE(*mapped, true);
			return ret;
		}
		sio_fault(SIO_FAULT_MAPPED);
	}
	return ext4_force_commit(inode->i_sb);
}

/**
 * sio_dirty_mapped - a page of journaled data becomes dirty in another way than by write(2)
 * @mapping: the file's
 * @folio: the page, marked already
 *
 * Return: whether it was clean.
 */
bool sio_dirty_mapped(struct address_space *mapping, struct folio *folio)
{
	bool newly = filemap_dirty_folio(mapping, folio);

	/* Set last: a sync that clears it before this has seen the page dirty, or leaves it to the next. */
	smp_store_release(&EXT4_I(mapping->host)->i_sio_mapped, true);
	return newly;
}
