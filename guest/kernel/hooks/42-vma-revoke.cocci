// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/revoke.c flush_descriptor 1 vmaj_write_revoke
@@
expression bh, flags;
@@
 flush_descriptor(...)
 {
 <...
-write_dirty_buffer(bh, flags);
+vmaj_write_revoke(journal, bh, flags);
 ...>
 }

@@ @@
#include <linux/jbd2.h>
+#include <linux/vma_journal.h>
