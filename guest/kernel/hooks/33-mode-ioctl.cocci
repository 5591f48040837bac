// SPDX-License-Identifier: GPL-2.0
// place: fs/ext4/ioctl.c ext4_ioctl_setflags 1 fm_change_flag
// place: fs/ext4/ioctl.c ext4_ioctl 1 fm_ioctl
// place: fs/ext4/ioctl.c ext4_compat_ioctl 1 fm_ioctl
@@
expression inode, flag;
@@
 ext4_ioctl_setflags(...)
 {
 <...
-ext4_change_inode_journal_flag(inode, flag)
+fm_change_flag(inode, flag)
 ...>
 }

@@
identifier filp, cmd, arg;
@@
 ext4_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
 {
+if (fm_is_ioctl(cmd))
+	return fm_ioctl(filp, cmd, arg);
 ...
 }

@@
identifier file, cmd, arg;
@@
 ext4_compat_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
 {
+if (fm_is_ioctl(cmd))
+	return fm_ioctl(file, cmd, arg);
 ...
 }
