// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ext4.h ext4_inode_info 1 i_ij
// place: fs/ext4/ext4.h ext4_sb_info 1 s_ij
// place: fs/ext4/super.c ext4_alloc_inode 1 ij_init_inode
// place: fs/ext4/super.c ext4_free_in_core_inode 1 ij_destroy_inode
// place: fs/ext4/inode.c __ext4_iget 1 ij_loaded
@@ @@
 struct ext4_inode_info {
 ...
+	struct ij_inode i_ij;
 };

@@ @@
 struct ext4_sb_info {
 ...
+	struct ij_fs *s_ij;
 };

@@ @@
#include <linux/fiemap.h>
+#include "ijournal.h"

@@
identifier ei;
@@
 ext4_alloc_inode(...)
 {
 <...
 ei->i_datasync_tid = 0;
+ij_init_inode(&ei->i_ij);
 ...>
 }

@@
identifier inode;
@@
 ext4_free_in_core_inode(struct inode *inode)
 {
+ij_destroy_inode(&EXT4_I(inode)->i_ij);
 ...
 }

@@
statement S;
@@
 __ext4_iget(...)
 {
 <...
+ij_loaded(inode, iloc.bh);
 if (S_ISREG(inode->i_mode)) {
 ...
 ext4_set_aops(inode);
 } else S
 ...>
 }
