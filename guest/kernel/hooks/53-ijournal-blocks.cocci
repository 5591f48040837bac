// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ext4_jbd2.c __ext4_handle_dirty_metadata 1 ij_metadata_dirty
// place: fs/ext4/ext4_jbd2.c __ext4_forget 1 ij_block_freed
// place: fs/ext4/fast_commit.c ext4_fc_mark_ineligible 1 ij_exchanges
// place: fs/ext4/move_extent.c move_extent_per_page 1 ij_exchanges
@@
typedef handle_t;
typedef ext4_fsblk_t;
identifier where, line, handle, inode, bh, err;
@@
 __ext4_handle_dirty_metadata(const char *where, unsigned int line, handle_t *handle, struct inode *inode,
	struct buffer_head *bh)
 {
 <...
+if (inode)
+	ij_metadata_dirty(handle, inode, bh);
 err = jbd2_journal_dirty_metadata(handle, bh);
 ...>
 }

@@
identifier inode, bh, block;
@@
 __ext4_forget(..., struct inode *inode, struct buffer_head *bh, ext4_fsblk_t block)
 {
 <...
+ij_block_freed(inode, block);
 BUFFER_TRACE(bh, "enter");
 ...>
 }

@@
identifier sb, reason, handle;
@@
 ext4_fc_mark_ineligible(struct super_block *sb, int reason, handle_t *handle)
 {
 <...
+if (reason != EXT4_FC_REASON_XATTR && reason != EXT4_FC_REASON_RENAME_DIR &&
+    reason != EXT4_FC_REASON_CROSS_RENAME)
+	ij_exchanges(sb, handle);
 if (ext4_fc_disabled(sb))
	return;
 ...>
 }

@@
identifier handle, orig;
@@
 move_extent_per_page(...)
 {
 <...
 handle = ext4_journal_start(orig, EXT4_HT_MOVE_EXTENTS, ...);
 if (IS_ERR(handle)) { ... }
+ij_exchanges(orig->i_sb, handle);
 ...>
 }
