// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/page-io.c ext4_end_bio 1 sio_home_data
// place: fs/ext4/file.c ext4_dio_write_end_io 1 sio_home_data
// place: fs/ext4/inode.c ext4_issue_zeroout 1 sio_issue_zeroout
// place: fs/ext4/inode.c ext4_issue_zeroout 1 sio_encrypted_zeroout
// place: fs/ext4/ialloc.c ext4_init_inode_table 1 sio_issue_zeroout
// place: fs/ext4/resize.c setup_new_flex_group_blocks 2 sio_issue_zeroout
@@
identifier bio;
@@
 ext4_end_bio(...)
 {
 <...
 bio->bi_end_io = NULL;
+sio_home_data(io_end->inode);
 ...>
 }

@@
identifier iocb;
@@
 ext4_dio_write_end_io(...)
 {
 ...
 struct inode *inode = file_inode(iocb->ki_filp);
+sio_home_data(inode);
 ...
 }

@@
expression list E;
@@
-sb_issue_zeroout(E)
+sio_issue_zeroout(E)

@@
expression list E;
@@
-fscrypt_zeroout_range(E)
+sio_encrypted_zeroout(E)

@@ @@
#include "ext4_jbd2.h"
+#include "single_io_fs.h"
