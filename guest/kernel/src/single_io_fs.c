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

static bool sio_syncs_by_commit(struct inode *inode)
{
	return EXT4_SB(inode->i_sb)->s_journal && ext4_should_journal_data(inode) &&
	       (test_opt(inode->i_sb, JOURNAL_ASYNC_COMMIT) || vmaj_mounted(inode->i_sb));
}

/* Brings what mappings have changed into the running transaction, where anything has been. */
static int sio_walk(struct inode *inode, loff_t start, loff_t end)
{
	bool *mapped = &EXT4_I(inode)->i_sio_mapped;
	int err;

	lockdep_assert_held(&EXT4_I(inode)->i_sio_walk);
	if (!READ_ONCE(*mapped))
		return 0;
	/* Cleared first: a page that becomes dirty from now on sets it again. */
	if (start == 0 && end == LLONG_MAX)
		WRITE_ONCE(*mapped, false);
	/* Pairs with the release in sio_dirty_mapped(). */
	smp_mb();
	err = series_journal_mapped(inode, start, end);
	if (err)
		WRITE_ONCE(*mapped, true);
	else
		vext4_fault(VEXT4_FAULT_MAPPED);
	return err;
}

/**
 * sio_sync - sync a file by a commit, where that is all that it needs
 * @inode: any file
 * @start: the first byte
 * @end: the last byte
 * @ret: where 0 goes, or an error; then what mappings have changed may not be durable, and the next sync tries again
 *
 * Return: whether it was synced; false where it has to be in the stock way.
 */
bool sio_sync(struct inode *inode, loff_t start, loff_t end, int *ret)
{
	struct mutex *walk = &EXT4_I(inode)->i_sio_walk;
	journal_t *journal;

	if (!sio_syncs_by_commit(inode))
		return false;
	/*
	 * Who finds the flag cleared relies on the walk of the one who has cleared it, and waits for its end; and for
	 * that of a switch, behind which the file may have to be written home.
	 */
	mutex_lock(walk);
	if (!sio_syncs_by_commit(inode)) {
		mutex_unlock(walk);
		return false;
	}
	*ret = sio_walk(inode, start, end);
	mutex_unlock(walk);
	journal = EXT4_SB(inode->i_sb)->s_journal;
	atomic64_inc(&journal->j_sio.syncs);
	if (*ret)
		return true;
	if (vmaj_mounted(inode->i_sb) && !sb_rdonly(inode->i_sb))
		*ret = vmaj_force_commit(journal);
	else
		*ret = ext4_force_commit(inode->i_sb);
	return true;
}

/* A page waits for the journal that its file has left: its buffers say that it is dirty, as those of other files do. */
static void sio_unmark_folio(struct address_space *mapping, struct folio *folio)
{
	folio_clear_checked(folio);
	if (folio_test_dirty(folio))
		block_dirty_folio(mapping, folio);
}

/**
 * sio_unmark - let no page wait for the journal any more
 * @inode: a file that was switched away from it, with nobody writing back
 *
 * A device, which no lock holds off, may have changed a page since the others were journaled (direct I/O into a
 * mapping). Its buffers are clean, and whoever writes it home from now on would find nothing to write.
 */
void sio_unmark(struct inode *inode)
{
	struct address_space *mapping = inode->i_mapping;
	struct page *page;
	unsigned long index;
	void *entry;

	/* Pairs with the barrier in sio_dirty_mapped(): it sees the switch, or we see its page. */
	smp_mb();
	if (!READ_ONCE(EXT4_I(inode)->i_sio_mapped))
		return;
	xa_for_each_marked(&mapping->i_pages, index, entry, PAGECACHE_TAG_DIRTY) {
		page = find_lock_page(mapping, index);
		if (!page)
			continue;
		if (folio_test_checked(page_folio(page)))
			sio_unmark_folio(mapping, page_folio(page));
		unlock_page(page);
		put_page(page);
	}
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

	if (!marked)
		return newly;
	/* Set last: a sync that clears it before this has seen the page dirty, or leaves it to the next. */
	smp_store_release(&EXT4_I(mapping->host)->i_sio_mapped, true);
	/* Pairs with the barrier in sio_unmark(). */
	smp_mb();
	if (!ext4_should_journal_data(mapping->host))
		sio_unmark_folio(mapping, folio);
	return newly;
}
