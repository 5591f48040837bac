// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/journal.c jbd2_stats_proc_init 1 sio_proc_init
// place: fs/jbd2/journal.c jbd2_stats_proc_exit 1 sio_proc_exit
@@ @@
 jbd2_stats_proc_init(...)
 {
 <...
 proc_create_data(...);
+sio_proc_init(journal);
 ...>
 }

@@ @@
 jbd2_stats_proc_exit(...)
 {
+sio_proc_exit(journal);
 ...
 }
