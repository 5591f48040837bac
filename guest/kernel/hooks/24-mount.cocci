// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/super.c ext4_load_and_init_journal 1 sio_refuses
// place: fs/ext4/super.c __ext4_remount 1 sio_refuses
// place: fs/ext4/super.c set_journal_csum_feature_set 1 sio_checks_transactions
// place: fs/ext4/super.c set_journal_csum_feature_set 1 sio_forget_blocks_checksum
@@ @@
 ext4_load_and_init_journal(...)
 {
 <...
 test_opt(sb, DATA_FLAGS) == EXT4_MOUNT_ORDERED_DATA &&
-	test_opt(sb, JOURNAL_ASYNC_COMMIT)
+	sio_refuses(sb)
 ...>
 }

@@
statement S;
@@
 __ext4_remount(...)
 {
 <...
 if (test_opt(sb, DATA_FLAGS) == EXT4_MOUNT_ORDERED_DATA) {
-	if (test_opt(sb, JOURNAL_ASYNC_COMMIT))
+	if (sio_refuses(sb))
	S
 }
 ...>
 }

@@ @@
 set_journal_csum_feature_set(...)
 {
 <...
-if (ext4_has_metadata_csum(sb))
+if (ext4_has_metadata_csum(sb) && !sio_checks_transactions(sb))
 { ... } else { ... }
 ...>
 }

@@
statement S1, S2;
@@
 set_journal_csum_feature_set(...)
 {
 <...
+sio_forget_blocks_checksum(sb);
 if (test_opt(sb, JOURNAL_ASYNC_COMMIT)) S1 else S2
 ...>
 }

@@ @@
#include "ext4_jbd2.h"
+#include "single_io_fs.h"
