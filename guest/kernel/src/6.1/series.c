// SPDX-License-Identifier: GPL-2.0
/*
 * What is said otherwise in Linux 6.1: see single_io_fs.c.
 */

#include <linux/pagemap.h>
#include <linux/writeback.h>
#include "ext4_jbd2.h"
#include "series.h"
#include "single_io_fs.h"

/* A page that was not journaled counts as clean: it waits again, unless nothing is written any more. */
static void sio_keep_page(struct address_space *mapping, struct page *page)
{
	lock_page(page);
	if (page->mapping == mapping && page_has_buffers(page) &&
	    !ext4_forced_shutdown(EXT4_SB(mapping->host->i_sb)))
		set_page_dirty(page);
	unlock_page(page);
}

static int sio_journal_page(struct page *page, struct writeback_control *wbc, void *data)
{
	struct address_space *mapping = page->mapping;
	struct sio_journal *sio = data;
	int err;

	if (!PageChecked(page)) {
		/* It is committed, and goes home when the time comes. */
		redirty_page_for_writepage(wbc, page);
		unlock_page(page);
		return 0;
	}
	atomic64_inc(&sio->mapped_pages);
	err = ext4_writepage(page, wbc);
	if (err) {
		mapping_set_error(mapping, err);
		sio_keep_page(mapping, page);
	}
	return err;
}

/**
 * series_journal_mapped - bring what mappings have changed into the running transaction
 * @inode: a file whose data is journaled
 * @start: the first byte
 * @end: the last byte
 *
 * Return: 0, or an error.
 */
int series_journal_mapped(struct inode *inode, loff_t start, loff_t end)
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
