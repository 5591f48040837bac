// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/journal.c jbd2_journal_write_metadata_buffer 1 sio_copies
// place: fs/jbd2/journal.c jbd2_journal_write_metadata_buffer 3 jbd2_data_needs_escaping
// place: fs/jbd2/journal.c jbd2_data_needs_escaping 1 jbd2_data_needs_escaping
@@
identifier escape;
@@
 jbd2_journal_write_metadata_buffer(...)
 {
 <...
-if (!escape)
+if (!escape && !sio_copies(journal))
	goto escape_done;
 ...>
 }

@@
identifier escape;
expression frozen;
@@
 jbd2_journal_write_metadata_buffer(...)
 {
 <...
 escape = jbd2_data_needs_escaping(...);
 ...
 copy_done:
 ...
-jbd2_data_do_escape(frozen);
+escape = jbd2_data_needs_escaping(frozen);
+if (escape)
+	jbd2_data_do_escape(frozen);
 ...>
 }
