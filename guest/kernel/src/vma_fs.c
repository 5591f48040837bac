// SPDX-License-Identifier: GPL-2.0
/*
 * VMA's mode, the file system's half: the mount options data=vma, vma_disk= and vma_exitless.
 *
 * For everything above the journal it is data=journal; what differs is where commits go (vma_journal.c).
 */

#include <linux/string.h>
#include "ext4_jbd2.h"
#include "vma_fs.h"

/* Where udev shows the disk with this serial. */
#define VMAJ_DISK "/dev/disk/by-id/virtio-afterimage-control"

/**
 * vmaj_parse_param - look at a mount option before the file system does
 * @options: what was asked for so far
 * @param: the option; data=vma is data=journal from now on
 *
 * Return: 0 where the file system has to look at it, 1 where it is ours alone, or an error.
 */
int vmaj_parse_param(struct vma_options *options, struct fs_parameter *param)
{
	char *mode;

	if (param->type == fs_value_is_flag && !strcmp(param->key, "vma_exitless")) {
		options->exitless = true;
		return 1;
	}
	if (param->type != fs_value_is_string)
		return 0;
	if (!strcmp(param->key, "vma_disk"))
		return strscpy(options->disk, param->string, sizeof(options->disk)) > 0 ? 1 : -EINVAL;
	if (strcmp(param->key, "data"))
		return 0;
	options->wanted = !strcmp(param->string, "vma");
	if (!options->wanted)
		return 0;
	mode = kstrdup("journal", GFP_KERNEL);
	if (!mode)
		return -ENOMEM;
	kfree(param->string);
	param->string = mode;
	param->size = strlen(mode);
	return 0;
}

static int vmaj_refused(struct super_block *sb, const char *why)
{
	ext4_msg(sb, KERN_ERR, "%s", why);
	return -EINVAL;
}

/**
 * vmaj_check_default - look at the options that a superblock brings along
 * @sb: the file system
 * @options: what it asks for
 *
 * A stock driver that meets one of ours there takes none of them.
 *
 * Return: 0, or an error, which has been told in a sentence.
 */
int vmaj_check_default(struct super_block *sb, const struct vma_options *options)
{
	if (!options->wanted && !*options->disk && !options->exitless)
		return 0;
	return vmaj_refused(sb, "data=vma, vma_disk= and vma_exitless are no options of a superblock");
}

/**
 * vmaj_check - look at what a mount asks for
 * @sb: the file system
 * @options: the options
 * @remount: it is mounted; what is not named stays
 *
 * Return: 0, or an error, which has been told in a sentence.
 */
int vmaj_check(struct super_block *sb, const struct vma_options *options, bool remount)
{
	journal_t *journal = EXT4_SB(sb)->s_journal;

	if (remount) {
		if (*options->disk && !(journal && vmaj_is_disk(journal, options->disk)))
			return vmaj_refused(sb, "a remount cannot change vma_disk=");
		if (options->exitless && !(journal && vmaj_publishes(journal)))
			return vmaj_refused(sb, "a remount cannot change vma_exitless");
		return 0;
	}
	if (!options->wanted && *options->disk)
		return vmaj_refused(sb, "vma_disk= is for data=vma");
	if (!options->wanted && options->exitless)
		return vmaj_refused(sb, "vma_exitless is for data=vma");
	if (options->wanted && !ext4_has_feature_journal(sb))
		return vmaj_refused(sb, "data=vma needs a journal");
	return 0;
}

/**
 * vmaj_mount - do what a mount asks for
 * @sb: a file system whose journal was loaded
 * @options: the options
 *
 * Return: 0, or an error, which has been told in a sentence.
 */
int vmaj_mount(struct super_block *sb, const struct vma_options *options)
{
	struct ext4_sb_info *sbi = EXT4_SB(sb);

	if (!options->wanted)
		return 0;
	if (test_opt(sb, JOURNAL_ASYNC_COMMIT))
		return vmaj_refused(sb, "data=vma has no use for journal_async_commit");
	return vmaj_start(sbi->s_journal, *options->disk ? options->disk : VMAJ_DISK, sbi->s_es->s_uuid,
			  options->exitless);
}
