/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is said otherwise in Linux 6.1: see series.c.
 */
#ifndef _SERIES_H
#define _SERIES_H

#include <linux/fs.h>

struct writeback_control;

int ext4_writepage(struct page *page, struct writeback_control *wbc);
int series_journal_mapped(struct inode *inode, loff_t start, loff_t end);

static inline bool series_owner_or_capable(struct file *filp, struct inode *inode)
{
	return inode_owner_or_capable(file_mnt_user_ns(filp), inode);
}

static inline void series_touch(struct inode *inode)
{
	inode->i_ctime = current_time(inode);
}

#endif
