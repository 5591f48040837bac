// SPDX-License-Identifier: GPL-2.0
// place: fs/jbd2/revoke.c flush_descriptor 1 sio_revoke_block
@@
identifier header, offset;
@@
 flush_descriptor(...)
 {
 <...
 header->r_count = cpu_to_be32(offset);
+sio_revoke_block(journal, offset);
 ...>
 }
