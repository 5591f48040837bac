// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/inode.c ext4_do_update_inode 1 ij_changes
// place: fs/ext4/ialloc.c __ext4_new_inode 1 ij_born
// place: fs/ext4/ialloc.c find_inode_bit 1 ij_number_is_gone
// place: fs/ext4/ialloc.c find_inode_bit 1 ij_next_number
// place: fs/ext4/ialloc.c ext4_free_inode 1 ij_inode_freed
// place: fs/ext4/orphan.c ext4_orphan_add 1 ij_orphan_added
// place: fs/ext4/orphan.c ext4_orphan_del 1 ij_orphan_removed
// place: fs/ext4/xattr.c ext4_xattr_set_handle 1 ij_xattr_changes
@@
typedef handle_t;
identifier handle, inode, iloc, raw, err;
@@
 ext4_do_update_inode(handle_t *handle, struct inode *inode, struct ext4_iloc *iloc)
 {
 <...
+ij_changes(handle, inode, raw);
 err = ext4_fill_raw_inode(inode, raw);
 ...>
 }

@@
identifier inode;
@@
 __ext4_new_inode(...)
 {
 <...
 ext4_set_inode_state(inode, EXT4_STATE_NEW);
+ij_born(handle, inode);
 ...>
 }

@@
typedef ext4_group_t;
identifier sb, group, ino, check;
@@
 find_inode_bit(struct super_block *sb, ext4_group_t group, ..., unsigned long *ino)
 {
 <...
-check && recently_deleted(sb, group, *ino)
+(check && recently_deleted(sb, group, *ino)) || ij_number_is_gone(sb, group, *ino)
 ...>
 }

@@
identifier sb, group, ino;
@@
 find_inode_bit(struct super_block *sb, ext4_group_t group, ..., unsigned long *ino)
 {
 <...
- *ino = *ino + 1;
+ *ino = ij_next_number(sb, group, *ino);
 ...>
 }

@@
identifier handle, inode, fatal;
@@
 ext4_free_inode(handle_t *handle, struct inode *inode)
 {
 <...
+ij_inode_freed(handle, inode);
 dquot_initialize(inode);
 ...>
 }

@@
identifier handle, inode;
expression sbi;
@@
 ext4_orphan_add(handle_t *handle, struct inode *inode)
 {
 <...
+ij_orphan_added(handle, inode);
 if (!sbi->s_journal || is_bad_inode(inode))
	return 0;
 ...>
 }

@@
identifier handle, inode, sbi;
@@
 ext4_orphan_del(handle_t *handle, struct inode *inode)
 {
 <...
+ij_orphan_removed(handle, inode);
 if (!sbi->s_journal && !(sbi->s_mount_state & EXT4_ORPHAN_FS))
	return 0;
 ...>
 }

@@
identifier handle, inode, no_expand;
@@
 ext4_xattr_set_handle(handle_t *handle, struct inode *inode, ...)
 {
 <...
 ext4_write_lock_xattr(inode, &no_expand);
+ij_xattr_changes(handle, inode);
 ...>
 }
