/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * A journaling mode for each file, for programs: see file_mode.c. The mode is the result, or the argument itself.
 */
#ifndef _JOURNALING_IOCTL_H
#define _JOURNALING_IOCTL_H

#include <linux/ioctl.h>

#define VEXT4_IOC_GET_JOURNALING _IO('f', 0xe0)
#define VEXT4_IOC_SET_JOURNALING _IO('f', 0xe1)

/* What a file's data goes through: what the mount says, the journal, or home before its metadata is committed. */
enum {
	VEXT4_JOURNALING_DEFAULT,
	VEXT4_JOURNALING_DATA,
	VEXT4_JOURNALING_ORDERED,
	VEXT4_JOURNALING_MODES
};

#endif
