// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/commit.c jbd2_journal_commit_transaction 1 sio_flush_committed
@@ @@
 jbd2_journal_commit_transaction(...)
 {
 <...
-if (jbd2_has_feature_async_commit(journal) && journal->j_flags & JBD2_BARRIER) {
-	blkdev_issue_flush(journal->j_dev);
-}
+err = sio_flush_committed(journal, commit_transaction, err);
 ...>
 }
