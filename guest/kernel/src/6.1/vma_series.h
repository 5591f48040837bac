/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What is said otherwise in Linux 6.1: see vma_control.c.
 */
#ifndef _VMA_SERIES_H
#define _VMA_SERIES_H

#include <linux/blkdev.h>

struct vmaj_disk {
	struct block_device *bdev;
};

static inline int vmaj_disk_open(struct vmaj_disk *disk, const char *path)
{
	struct block_device *bdev = blkdev_get_by_path(path, FMODE_READ | FMODE_WRITE, NULL);

	if (IS_ERR(bdev))
		return PTR_ERR(bdev);
	disk->bdev = bdev;
	return 0;
}

static inline void vmaj_disk_close(struct vmaj_disk *disk)
{
	if (disk->bdev)
		blkdev_put(disk->bdev, FMODE_READ | FMODE_WRITE);
}

#endif
