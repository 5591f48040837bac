// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ext4.h ext4_inode_info 1 i_fm_ordered
// place: fs/ext4/super.c ext4_alloc_inode 1 i_fm_ordered
// place: fs/ext4/inode.c __ext4_iget 1 fm_load
@@ @@
 struct ext4_inode_info {
 ...
+	bool i_fm_ordered;
+	bool i_fm_written;
 };

@@
identifier ei;
@@
 ext4_alloc_inode(...)
 {
 <...
 ei->i_datasync_tid = 0;
+ei->i_fm_ordered = false;
+ei->i_fm_written = false;
 ...>
 }

@@
statement S;
@@
 __ext4_iget(...)
 {
 <...
+fm_load(inode);
 if (S_ISREG(inode->i_mode)) {
 ...
 ext4_set_aops(inode);
 } else S
 ...>
 }
