// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/journal.c jbd2_journal_next_log_block 1 sio_journal_block
@@ @@
 jbd2_journal_next_log_block(...)
 {
 <...
 journal->j_free--;
+sio_journal_block(journal);
 ...>
 }
