// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/journal.c jbd2_journal_write_metadata_buffer 1 sio_copies
@@
identifier need, done;
statement S;
@@
 jbd2_journal_write_metadata_buffer(...)
 {
 <...
+need |= sio_copies(journal);
 if (need && !done) S
 ...>
 }
