// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/fsync.c ext4_sync_file 1 ij_counts
// place: fs/ext4/fsync.c ext4_sync_file 1 ij_is_unchanged
// place: fs/ext4/fsync.c ext4_sync_file 1 ij_write_data
// place: fs/ext4/fsync.c ext4_fsync_journal 1 ij_syncs
// place: fs/ext4/fsync.c ext4_sync_file 1 ij_verdict
@@
identifier err, file, inode;
symbol ret;
@@
 ext4_sync_file(...)
 {
 <...
 struct inode *inode = file->f_mapping->host;
 ...
+ret = ij_verdict(inode, ret);
 err = file_check_and_advance_wb_err(file);
 ...>
 }

@@
identifier inode, datasync, needs_barrier, journal, tid;
@@
 ext4_fsync_journal(struct inode *inode, bool datasync, bool *needs_barrier)
 {
 ...
+if (ij_syncs(inode, datasync, needs_barrier))
+	return 0;
 if (journal->j_flags & JBD2_BARRIER &&
	!jbd2_trans_will_send_data_barrier(journal, tid))
	*needs_barrier = true;
 ...
 }

@@
identifier file, start, end, datasync;
@@
 ext4_sync_file(struct file *file, loff_t start, loff_t end, int datasync)
 {
 <...
 trace_ext4_sync_file_enter(file, datasync);
+ij_counts(inode);
 ...>
 }

@@
identifier ret, file, start, end;
@@
 ext4_sync_file(struct file *file, loff_t start, loff_t end, ...)
 {
 <...
+if (ij_is_unchanged(inode))
+	goto out;
-ret = file_write_and_wait_range(file, start, end);
+ret = ij_write_data(file, start, end);
 ...>
 }
