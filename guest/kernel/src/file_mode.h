/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A journaling mode for each file: see file_mode.c.
 */
#ifndef _FILE_MODE_H
#define _FILE_MODE_H

#include <linux/types.h>
#include "journaling_ioctl.h"

struct file;
struct inode;

bool fm_ordered(struct inode *inode);
bool fm_journals_data(struct inode *inode);
bool fm_revokes(struct inode *inode, int is_metadata);
bool fm_refuses_swap(struct inode *inode);
void fm_load(struct inode *inode);
int fm_inherit_credits(struct inode *dir);
void fm_inherit(handle_t *handle, struct inode *dir, struct inode *inode);
void fm_written(struct inode *inode);
int fm_change_flag(struct inode *inode, int data);
bool fm_is_ioctl(unsigned int cmd);
long fm_ioctl(struct file *filp, unsigned int cmd, unsigned long arg);

#endif
