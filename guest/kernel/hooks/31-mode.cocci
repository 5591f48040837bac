// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ext4_jbd2.c ext4_inode_journal_mode 1 fm_ordered
// place: fs/ext4/ext4_jbd2.c ext4_inode_journal_mode 1 fm_journals_data
// place: fs/ext4/ext4_jbd2.c __ext4_forget 1 fm_revokes
// place: fs/ext4/ext4_jbd2.h ext4_free_data_revoke_credits 1 vext4_without
@@
statement S;
@@
 ext4_inode_journal_mode(...)
 {
 <...
-if (!S_ISREG(inode->i_mode) ||
-    ext4_test_inode_flag(inode, EXT4_INODE_EA_INODE) ||
-    test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_JOURNAL_DATA ||
-    (ext4_test_inode_flag(inode, EXT4_INODE_JOURNAL_DATA) &&
-    !test_opt(inode->i_sb, DELALLOC)))
+if (fm_journals_data(inode))
 S
 ...>
 }

@@ @@
 ext4_inode_journal_mode(...)
 {
 <...
-test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_ORDERED_DATA
+fm_ordered(inode) || test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_ORDERED_DATA
 ...>
 }

@@
identifier is_metadata;
@@
 __ext4_forget(...)
 {
 <...
-test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_JOURNAL_DATA ||
-    (!is_metadata && !ext4_should_journal_data(inode))
+!fm_revokes(inode, is_metadata)
 ...>
 }

@@ @@
 ext4_free_data_revoke_credits(...)
 {
 <...
-test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_JOURNAL_DATA
+vext4_without(VEXT4_PART_REVOKE) && test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_JOURNAL_DATA
 ...>
 }

@@ @@
#include "ext4.h"
+#include <linux/faults.h>
+#include "file_mode.h"
