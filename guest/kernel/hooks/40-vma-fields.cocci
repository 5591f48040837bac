// SPDX-License-Identifier: GPL-2.0
// place: include/linux/jbd2.h journal_s 1 j_vma
// place: include/linux/jbd2.h transaction_s 1 t_vma
@@ @@
 struct journal_s {
 ...
+	struct vma_journal	*j_vma;
 };

@@ @@
 struct transaction_s {
 ...
+	bool			t_vma;
 };
