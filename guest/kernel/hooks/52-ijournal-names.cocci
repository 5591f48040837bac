// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/namei.c ext4_add_entry 1 ij_entry_added
// place: fs/ext4/namei.c ext4_delete_entry 1 ij_entry_removed
// place: fs/ext4/namei.c ext4_rename 1 ij_renamed
// place: fs/ext4/namei.c ext4_cross_rename 2 ij_renamed
@@
typedef handle_t;
identifier handle, dentry, inode, blocksize, sb;
@@
 ext4_add_entry(handle_t *handle, struct dentry *dentry, struct inode *inode)
 {
 <...
+ij_entry_added(handle, dentry, inode);
 blocksize = sb->s_blocksize;
 ...>
 }

@@
identifier handle, dir, de, bh;
statement S;
@@
 ext4_delete_entry(handle_t *handle, struct inode *dir, struct ext4_dir_entry_2 *de, struct buffer_head *bh)
 {
 <...
+ij_entry_removed(handle, dir, de);
 if (ext4_has_inline_data(dir)) S
 ...>
 }

@@
identifier handle, retval;
@@
 ext4_rename(...)
 {
 <...
+ij_renamed(handle, old.inode);
 retval = ext4_mark_inode_dirty(handle, old.inode);
 ...>
 }

@@
identifier handle, retval;
@@
 ext4_cross_rename(...)
 {
 <...
+ij_renamed(handle, old.inode);
+ij_renamed(handle, new.inode);
 retval = ext4_setent(handle, &new, ...);
 ...>
 }
