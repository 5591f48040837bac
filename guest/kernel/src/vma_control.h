/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A control disk, as a journal that hands its commits over to it sees it: see vma_control.c.
 */
#ifndef _VMA_CONTROL_H
#define _VMA_CONTROL_H

#include <linux/atomic.h>
#include <linux/blk_types.h>
#include <linux/completion.h>
#include "afterimage_control_disk.h"
#include "vma_series.h"

#define VMAJ_SLOTS AFTERIMAGE_FILE_SYSTEM_SLOTS
#define VMAJ_SLOT_SECTORS (AFTERIMAGE_SLOT_BYTES / AFTERIMAGE_SECTOR_BYTES)
#define VMAJ_FIRST_SLOT (AFTERIMAGE_SLOTS - VMAJ_SLOTS)

struct buffer_head;
struct vmaj_control;

/* A command that is on its way. */
struct vmaj_sent {
	struct vmaj_control *control;
	blk_status_t status;
};

/**
 * struct vmaj_control - a control disk that takes the commits of one file system
 * @disk: the disk
 * @commands: a sector for each slot
 * @answer: a sector
 * @sent: what is on its way, slot by slot
 * @under_way: how many, and one while more may come
 * @answered: there is none any more
 * @file_system: whose journal it is
 * @instance: with @sequence, by which right
 * @sequence: see @instance
 * @tag: of the newest command
 * @blocks_max: blocks of one command
 * @commands_sent: for transactions
 */
struct vmaj_control {
	struct vmaj_disk disk;
	struct page *commands;
	struct page *answer;
	struct vmaj_sent sent[VMAJ_SLOTS];
	atomic_t under_way;
	struct completion answered;
	u8 file_system[16];
	u64 instance;
	u64 sequence;
	u64 tag;
	unsigned int blocks_max;
	atomic64_t commands_sent;
};

int vmaj_control_open(struct vmaj_control *control, const char *path, const u8 *file_system, const char *name,
		      bool exitless, __le64 challenge);
void vmaj_control_clean_up(struct vmaj_control *control, const char *name);
void vmaj_control_close(struct vmaj_control *control);
unsigned int vmaj_control_blocks(struct vmaj_control *control);
int vmaj_control_hand_over(struct vmaj_control *control, struct buffer_head **blocks, unsigned int count);
const char *vmaj_control_refusal(struct vmaj_control *control, unsigned int slot, int *err, int *len);

#endif
