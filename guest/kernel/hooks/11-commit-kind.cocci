// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/commit.c jbd2_journal_commit_transaction 1 sio_commit_at_once
// place: fs/jbd2/commit.c jbd2_journal_commit_transaction 1 t_sio
// place: fs/jbd2/commit.c journal_submit_commit_record 1 t_sio
@@
identifier err, cbh, crc;
@@
 jbd2_journal_commit_transaction(...)
 {
 <...
-if (jbd2_has_feature_async_commit(journal))
+if (sio_commit_at_once(journal, commit_transaction))
 {
	err = journal_submit_commit_record(journal, commit_transaction, &cbh, crc);
	...
 }
 ...>
 }

@@
identifier err, cbh, crc;
@@
 jbd2_journal_commit_transaction(...)
 {
 <...
-if (!jbd2_has_feature_async_commit(journal))
+if (!commit_transaction->t_sio)
 {
	err = journal_submit_commit_record(journal, commit_transaction, &cbh, crc);
	...
 }
 ...>
 }

@@ @@
 journal_submit_commit_record(...)
 {
 <...
 journal->j_flags & JBD2_BARRIER &&
-	!jbd2_has_feature_async_commit(journal)
+	!commit_transaction->t_sio
 ...>
 }
