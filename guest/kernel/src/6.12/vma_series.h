/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is said otherwise in Linux 6.12: see vma_control.c.
 */
#ifndef _VMA_SERIES_H
#define _VMA_SERIES_H

#include <linux/blkdev.h>

struct vmaj_disk {
	struct block_device *bdev;
	struct file *file;
};

static inline int vmaj_disk_open(struct vmaj_disk *disk, const char *path)
{
	struct file *file = bdev_file_open_by_path(path, BLK_OPEN_READ | BLK_OPEN_WRITE, NULL, NULL);

	if (IS_ERR(file))
		return PTR_ERR(file);
	disk->file = file;
	disk->bdev = file_bdev(file);
	return 0;
}

static inline void vmaj_disk_close(struct vmaj_disk *disk)
{
	if (disk->file)
		bdev_fput(disk->file);
}

#endif
