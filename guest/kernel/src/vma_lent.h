/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Memory that is lent to the control disk, in which commits are published: see vma_lent.c.
 */
#ifndef _VMA_LENT_H
#define _VMA_LENT_H

#include <linux/jbd2.h>

struct buffer_head;
struct vmaj_control;
struct vmaj_lent;

struct vmaj_lent *vmaj_lent_alloc(const struct vmaj_control *control);
void vmaj_lent_offer(struct vmaj_lent *lent, const char *name);
bool vmaj_lent_publish(struct vmaj_lent *lent, tid_t tid, struct buffer_head **blocks, unsigned int count);
bool vmaj_lent_wait(struct vmaj_lent *lent);
bool vmaj_lent_committed(struct vmaj_lent *lent, tid_t tid);
void vmaj_lent_free(struct vmaj_lent *lent);

#endif
