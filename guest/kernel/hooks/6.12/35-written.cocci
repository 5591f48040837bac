// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/inode.c ext4_do_writepages 1 fm_written
@@
identifier mpd, inode, wbc;
@@
 ext4_do_writepages(struct mpage_da_data *mpd)
 {
 <...
+fm_written(inode);
 trace_ext4_writepages(inode, wbc);
 ...>
 }
