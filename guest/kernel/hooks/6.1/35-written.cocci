// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/inode.c ext4_writepages 1 fm_written
@@
identifier mapping, wbc, inode;
@@
 ext4_writepages(struct address_space *mapping, struct writeback_control *wbc)
 {
 ...
 struct inode *inode = mapping->host;
+fm_written(inode);
 ...
 }
