// SPDX-License-Identifier: GPL-2.0
/*
 * What is said otherwise in Linux 6.12: see single_io_fs.c.
 *
 * A store through a mapping is journaled by its fault, and a commit protects the pages again before it reads them. What
 * is marked, and not in the journal, are pages that a device may change (pinned for direct I/O).
 */

#include <linux/pagemap.h>
#include "ext4_jbd2.h"
#include "series.h"
#include "single_io_fs.h"

/**
 * series_journal_mapped - bring pages that a device may have changed into the running transaction
 * @inode: a file whose data is journaled
 * @start: the first byte
 * @end: the last byte
 *
 * The stock way, which also writes home what is committed: such pages are rare, and nothing else journals them.
 *
 * Return: 0, or an error.
 */
int series_journal_mapped(struct inode *inode, loff_t start, loff_t end)
{
	atomic64_inc(&EXT4_SB(inode->i_sb)->s_journal->j_sio.mapped_pages);
	return filemap_write_and_wait_range(inode->i_mapping, start, end);
}
