// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/journal.c jbd2_journal_destroy 1 vmaj_stop
@@
statement S;
@@
 jbd2_journal_destroy(...)
 {
 <...
+vmaj_stop(journal);
 if (journal->j_proc_entry) S
 ...>
 }

@@ @@
#include <linux/jbd2.h>
+#include <linux/vma_journal.h>
