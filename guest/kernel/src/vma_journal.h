/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Commits that are handed over to a control disk, the journal's half: see vma_journal.c.
 */
#ifndef _LINUX_VMA_JOURNAL_H
#define _LINUX_VMA_JOURNAL_H

#include <linux/blk_types.h>
#include <linux/types.h>

struct buffer_head;
struct journal_s;
struct transaction_s;

int vmaj_start(struct journal_s *journal, const char *path, const u8 *file_system, bool exitless);
void vmaj_stop(struct journal_s *journal);
bool vmaj_hands_over(struct journal_s *journal);
bool vmaj_publishes(struct journal_s *journal);
bool vmaj_is_disk(struct journal_s *journal, const char *path);
int vmaj_force_commit(struct journal_s *journal);
void vmaj_begin(struct transaction_s *transaction);
void vmaj_submit_bh(struct transaction_s *transaction, blk_opf_t opf, struct buffer_head *bh);
void vmaj_write_revoke(struct journal_s *journal, struct buffer_head *bh, blk_opf_t flags);
void vmaj_commit(struct transaction_s *transaction);

#endif
