// SPDX-License-Identifier: GPL-2.0
// place: include/linux/jbd2.h journal_s 1 j_sio
// place: include/linux/jbd2.h transaction_s 1 t_sio
@@ @@
 struct journal_s {
 ...
+	struct sio_journal	j_sio;
 };

@@ @@
 struct transaction_s {
 ...
+	bool			t_sio;
 };

@@ @@
#include <crypto/hash.h>
+#include <linux/single_io.h>
