// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/fsync.c ext4_sync_file 1 sio_sync
@@
identifier ret, file, start, end;
@@
 ext4_sync_file(struct file *file, loff_t start, loff_t end, ...)
 {
 <...
+if (sio_sync(inode, start, end, &ret))
+	goto out;
 ret = file_write_and_wait_range(file, start, end);
 ...>
 }

@@ @@
#include "ext4_jbd2.h"
+#include "single_io_fs.h"
