// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/inode.c ext4_journalled_dirty_folio 1 sio_dirty_mapped
// place: fs/ext4/inode.c ext4_writepage 1 extern
@@
identifier mapping, folio;
@@
 ext4_journalled_dirty_folio(struct address_space *mapping, struct folio *folio)
 {
 <...
-return filemap_dirty_folio(mapping, folio);
+return sio_dirty_mapped(mapping, folio);
 ...>
 }

@@
identifier page, wbc;
@@
-static
+extern
 int ext4_writepage(struct page *page, struct writeback_control *wbc)
 { ... }

@@ @@
#include "ext4_jbd2.h"
+#include "single_io_fs.h"
