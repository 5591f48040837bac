/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory that is lent to the control disk, in which commits are published: see vma_lent.c.
 */
#ifndef _VMA_LENT_H
#define _VMA_LENT_H

#include <linux/blk_types.h>
#include <linux/jbd2.h>

struct vmaj_lent;
struct buffer_head;

struct vmaj_lent *vmaj_lent_alloc(struct block_device *bdev, sector_t sector, unsigned int pages);
void vmaj_lent_name(struct vmaj_lent *lent, const u8 *file_system, u64 instance, u64 sequence);
void vmaj_lent_offer(struct vmaj_lent *lent, const char *name);
bool vmaj_lent_publish(struct vmaj_lent *lent, tid_t tid, struct buffer_head **blocks, unsigned int count);
bool vmaj_lent_wait(struct vmaj_lent *lent);
bool vmaj_lent_committed(struct vmaj_lent *lent, tid_t tid);
void vmaj_lent_free(struct vmaj_lent *lent);

#endif
