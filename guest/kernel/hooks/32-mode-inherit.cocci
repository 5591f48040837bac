// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ialloc.c __ext4_new_inode 1 fm_inherit_credits
// place: fs/ext4/ialloc.c __ext4_new_inode 1 fm_inherit
@@
identifier nblocks, r;
@@
 __ext4_new_inode(...)
 {
 <...
 nblocks += r;
+nblocks += fm_inherit_credits(dir);
 ...>
 }

@@
identifier err;
statement S;
@@
 __ext4_new_inode(...)
 {
 <...
 err = ext4_init_security(...);
 if (err) S
+fm_inherit(handle, dir, inode);
 ...>
 }
