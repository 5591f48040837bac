/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Commits that are handed over to a control disk, the file system's half: see vma_fs.c.
 */
#ifndef _VMA_FS_H
#define _VMA_FS_H

#include <linux/fs_parser.h>
#include <linux/vma_journal.h>
#include "ext4.h"

/**
 * struct vma_options - what a mount asks for
 * @wanted: data=vma
 * @disk: the control disk, by vma_disk=
 * @exitless: vma_exitless
 */
struct vma_options {
	bool wanted;
	char disk[128];
	bool exitless;
};

int vmaj_parse_param(struct vma_options *options, struct fs_parameter *param);
int vmaj_check_default(struct super_block *sb, const struct vma_options *options);
int vmaj_check(struct super_block *sb, const struct vma_options *options, bool remount);
int vmaj_mount(struct super_block *sb, const struct vma_options *options);

static inline bool vmaj_mounted(struct super_block *sb)
{
	return EXT4_SB(sb)->s_journal && EXT4_SB(sb)->s_journal->j_vma;
}

/* What data=journal is shown as. */
static inline const char *vmaj_shown(struct super_block *sb)
{
	if (!vmaj_mounted(sb))
		return "journal";
	return vmaj_publishes(EXT4_SB(sb)->s_journal) ? "vma,vma_exitless" : "vma";
}

#endif
