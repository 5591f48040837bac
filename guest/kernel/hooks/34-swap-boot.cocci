// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ioctl.c swap_inode_boot_loader 1 fm_refuses_swap
@@
identifier inode;
@@
 swap_inode_boot_loader(...)
 {
 <...
-(EXT4_I(inode)->i_flags & EXT4_JOURNAL_DATA_FL)
+fm_refuses_swap(inode)
 ...>
 }
