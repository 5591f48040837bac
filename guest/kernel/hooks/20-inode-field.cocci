// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ext4.h ext4_inode_info 1 i_sio_mapped
// place: fs/ext4/super.c ext4_alloc_inode 1 i_sio_mapped
@@ @@
 struct ext4_inode_info {
 ...
+	bool i_sio_mapped;
+	struct mutex i_sio_walk;
 };

@@
identifier ei;
@@
 ext4_alloc_inode(...)
 {
 <...
 ei->i_datasync_tid = 0;
+ei->i_sio_mapped = false;
+mutex_init(&ei->i_sio_walk);
 ...>
 }
