// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/super.c ext4_fs_context 1 vma_options
// place: fs/ext4/super.c ext4_parse_param 1 vmaj_parse_param
// place: fs/ext4/super.c ext4_check_opt_consistency 1 vmaj_mounted
// place: fs/ext4/super.c ext4_check_opt_consistency 1 vmaj_check
// place: fs/ext4/super.c parse_apply_sb_mount_options 1 vmaj_check_default
// place: fs/ext4/super.c ext4_load_and_init_journal 1 vmaj_mount
// place: fs/ext4/super.c _ext4_show_options 1 vmaj_mounted
// place: fs/ext4/super.c _ext4_show_options 1 vmaj_shown
@@ @@
 struct ext4_fs_context {
 ...
+	struct vma_options s_vma;
 };

@@
identifier fc, param, token;
@@
 ext4_parse_param(struct fs_context *fc, struct fs_parameter *param)
 {
 <...
+token = vmaj_parse_param(&ctx->s_vma, param);
+if (token)
+	return token < 0 ? token : 0;
 token = fs_parse(...);
 ...>
 }

@@ @@
 ext4_check_opt_consistency(...)
 {
 <...
-ctx_test_mount_opt(ctx, EXT4_MOUNT_DATA_FLAGS) != test_opt(sb, DATA_FLAGS)
+ctx->s_vma.wanted != vmaj_mounted(sb) ||
+	ctx_test_mount_opt(ctx, EXT4_MOUNT_DATA_FLAGS) != test_opt(sb, DATA_FLAGS)
 ...>
 }

@@ @@
 ext4_check_opt_consistency(...)
 {
 <...
-ext4_check_quota_consistency(fc, sb)
+vmaj_check(sb, &ctx->s_vma, is_remount) ?: ext4_check_quota_consistency(fc, sb)
 ...>
 }

@@ @@
 parse_apply_sb_mount_options(...)
 {
 <...
-ext4_check_opt_consistency(fc, sb)
+vmaj_check_default(sb, &s_ctx->s_vma) ?: ext4_check_opt_consistency(fc, sb)
 ...>
 }

@@ @@
 ext4_load_and_init_journal(...)
 {
 <...
+if (vmaj_mount(sb, &ctx->s_vma))
+	goto out;
 set_task_ioprio(...);
 ...>
 }

@@
expression differs;
@@
 _ext4_show_options(...)
 {
 <...
-EXT4_MOUNT_DATA_FLAGS & differs
+vmaj_mounted(sb) || EXT4_MOUNT_DATA_FLAGS & differs
 ...>
 }

@@ @@
 _ext4_show_options(...)
 {
 <...
-SEQ_OPTS_PUTS("data=journal");
+SEQ_OPTS_PRINT("data=%s", vmaj_shown(sb));
 ...>
 }

@@ @@
#include "ext4_jbd2.h"
+#include "vma_fs.h"
