// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/commit.c jbd2_journal_commit_transaction 1 vmaj_begin
// place: fs/jbd2/commit.c jbd2_journal_commit_transaction 1 vmaj_submit_bh
// place: fs/jbd2/commit.c jbd2_journal_commit_transaction 1 vmaj_commit
// place: fs/jbd2/commit.c journal_submit_commit_record 1 vmaj_submit_bh
@@ @@
 jbd2_journal_commit_transaction(...)
 {
 <...
+vmaj_begin(commit_transaction);
 jbd2_journal_write_revoke_records(...);
 ...>
 }

@@
expression opf, bh;
@@
 jbd2_journal_commit_transaction(...)
 {
 <...
-submit_bh(opf, bh);
+vmaj_submit_bh(commit_transaction, opf, bh);
 ...>
 }

@@ @@
 jbd2_journal_commit_transaction(...)
 {
 <...
 blk_finish_plug(...);
+vmaj_commit(commit_transaction);
 ...>
 }

@@
expression opf, bh;
@@
 journal_submit_commit_record(...)
 {
 <...
-submit_bh(opf, bh);
+vmaj_submit_bh(commit_transaction, opf, bh);
 ...>
 }

@@ @@
#include <linux/jbd2.h>
+#include <linux/vma_journal.h>
