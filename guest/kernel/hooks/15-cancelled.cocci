// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/transaction.c do_get_write_access 1 sio_overwritten
// place: fs/jbd2/transaction.c __dispose_buffer 1 sio_freed
// place: fs/jbd2/transaction.c jbd2_journal_forget 1 sio_freed
@@
identifier bh;
@@
 do_get_write_access(...)
 {
 <...
 if (test_clear_buffer_dirty(bh)) {
+	sio_overwritten(journal, jh);
 ...
 }
 ...>
 }

@@
identifier jh, transaction, bh;
@@
 __dispose_buffer(struct journal_head *jh, transaction_t *transaction)
 {
 <...
+sio_freed(transaction->t_journal, jh);
 clear_buffer_dirty(bh);
 ...>
 }

@@
identifier bh, wait;
@@
 jbd2_journal_forget(...)
 {
 <...
+sio_freed(journal, jh);
 clear_buffer_dirty(bh);
 wait = 1;
 ...>
 }
