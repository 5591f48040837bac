// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/super.c ext4_parse_param 1 ij_is_option
// place: fs/ext4/super.c _ext4_show_options 1 IJOURNAL
// place: fs/ext4/super.c ext4_setup_super 1 ij_start
// place: fs/ext4/super.c ext4_setup_super 1 ij_set_bit
// place: fs/ext4/super.c __ext4_fill_super 1 ij_stop
// place: fs/ext4/super.c ext4_put_super 1 ij_stop
// place: fs/ext4/super.c ext4_mark_recovery_complete 1 ij_clear_bit
// place: fs/ext4/super.c ext4_freeze 1 ij_clear_bit
// place: fs/ext4/super.c ext4_unfreeze 1 ij_set_bit
// place: fs/ext4/super.c __ext4_remount 1 ij_may_remount
// place: fs/ext4/super.c __ext4_remount 1 ij_bit_is_left
// place: fs/ext4/super.c ext4_feature_set_ok 1 ij_explain
// place: fs/ext4/super.c ext4_load_journal 1 ij_explain
// place: fs/ext4/file.c ext4_file_open 1 ij_refuses_open
// place: fs/ext4/resize.c ext4_resize_begin 1 IJOURNAL
@@
identifier fc, param, token, result;
@@
 ext4_parse_param(struct fs_context *fc, struct fs_parameter *param)
 {
 <...
+if (ij_is_option(param->key)) {
+	ctx_set_mount_opt2(ctx, EXT4_MOUNT2_IJOURNAL);
+	return 0;
+}
 token = fs_parse(fc, ext4_param_specs, param, &result);
 ...>
 }

@@
identifier seq, sb, sbi;
statement S;
@@
 _ext4_show_options(struct seq_file *seq, struct super_block *sb, ...)
 {
 <...
+if (test_opt2(sb, IJOURNAL))
+	seq_printf(seq, "%cijournal", sep);
 if (sbi->s_sb_block != 1) S
 ...>
 }

@@
identifier sb, es, err;
@@
 ext4_setup_super(struct super_block *sb, struct ext4_super_block *es, ...)
 {
 <...
+err = ij_start(sb);
+if (err)
+	return err;
 err = ext4_commit_super(sb);
+if (!err)
+	err = ij_set_bit(sb);
 ...>
 }

@@
identifier sb;
@@
 __ext4_fill_super(..., struct super_block *sb)
 {
 <...
+ij_stop(sb);
 dput(sb->s_root);
 ...>
 }

@@
identifier sb;
@@
 ext4_put_super(struct super_block *sb)
 {
 <...
 ext4_unregister_sysfs(sb);
+ij_stop(sb);
 ...>
 }

@@
identifier sb;
@@
(
 ext4_mark_recovery_complete
|
 ext4_freeze
)
 (struct super_block *sb, ...)
 {
 <...
 ext4_clear_feature_journal_needs_recovery(sb);
+ij_clear_bit(sb);
 ...>
 }

@@
identifier sb;
@@
 ext4_unfreeze(struct super_block *sb)
 {
 <...
 ext4_commit_super(sb);
+ij_set_bit(sb);
 ...>
 }

@@
identifier sb, sbi, old_opts;
@@
 __ext4_remount(..., struct super_block *sb)
 {
 <...
+if (!ij_may_remount(sb)) {
+	err = -EINVAL;
+	goto restore_opts;
+}
 if ((sbi->s_mount_opt ^ old_opts.s_mount_opt) & EXT4_MOUNT_NO_MBCACHE) {
 ...
 }
 ...>
 }

@@
identifier sb, sbi, err;
@@
 __ext4_remount(..., struct super_block *sb)
 {
 <...
 if (!ext4_has_feature_mmp(sb) || sb_rdonly(sb))
	ext4_stop_mmpd(sbi);
+if (ij_bit_is_left(sb))
+	ext4_mark_recovery_complete(sb, sbi->s_es);
 return err;
 ...>
 }

@@
identifier sb, readonly;
statement S;
@@
 ext4_feature_set_ok(struct super_block *sb, int readonly)
 {
 <...
+ij_explain(sb, NULL);
 if (ext4_has_unknown_ext4_incompat_features(sb)) S
 ...>
 }

@@
identifier sb;
@@
 ext4_load_journal(struct super_block *sb, ...)
 {
 <...
+ij_explain(sb, journal);
 ext4_msg(..., "error loading journal");
 ...>
 }

@@
identifier sb;
@@
 ext4_resize_begin(struct super_block *sb)
 {
 <...
+if (test_opt2(sb, IJOURNAL))
+	return -EOPNOTSUPP;
 if (!capable(CAP_SYS_RESOURCE))
	return -EPERM;
 ...>
 }

@@
identifier inode, filp, ret;
@@
 ext4_file_open(struct inode *inode, struct file *filp)
 {
 <...
+if (ij_refuses_open(inode))
+	return -EPERM;
 ret = ext4_sample_last_mounted(inode->i_sb, filp->f_path.mnt);
 ...>
 }
