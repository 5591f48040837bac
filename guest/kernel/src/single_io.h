/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Single-I/O data journaling, the journal's half: see single_io.c.
 */
#ifndef _LINUX_SINGLE_IO_H
#define _LINUX_SINGLE_IO_H

#include <linux/atomic.h>
#include <linux/types.h>

struct journal_head;
struct journal_s;
struct transaction_s;

/* How a transaction was committed: the first is one write and one flush, the others say why not. */
enum sio_kind {
	SIO_SINGLE,
	SIO_HOME_DATA,
	SIO_LONG_REVOKE,
	SIO_OTHER_DEVICE,
	SIO_NO_CHECKSUM,
	SIO_KINDS
};

/**
 * struct sio_journal - what a journal knows of single-I/O commits
 * @home_data: data was written to its home since the last flush of the device
 * @long_revoke: the transaction that is being committed has revoke records past a sector
 * @commits: commits by kind
 * @syncs: fsync, fdatasync, msync and O_SYNC writes that were served by a commit alone
 * @mapped_pages: pages that such a sync had to journal first, because a mapping had dirtied them
 * @overwritten: home writes that never happened: a later transaction had the block first
 * @freed: home writes that never happened: the block was truncated or deleted first
 * @transactions: all commits, also where none may be in one write
 * @blocks: blocks of the journal: descriptors, revoke records, content and commit blocks
 * @handed_over: those of them that were not written, but handed over
 * @sectors_before: what the file system's device had written when the journal was loaded
 * @switches: files whose data goes another way since
 * @switches_flushed: those for which the journal was emptied
 */
struct sio_journal {
	unsigned long home_data;
	bool long_revoke;
	atomic64_t commits[SIO_KINDS];
	atomic64_t syncs;
	atomic64_t mapped_pages;
	atomic64_t overwritten;
	atomic64_t freed;
	atomic64_t transactions;
	atomic64_t blocks;
	atomic64_t handed_over;
	u64 sectors_before;
	atomic64_t switches;
	atomic64_t switches_flushed;
};

bool sio_commit_at_once(struct journal_s *journal, struct transaction_s *transaction);
int sio_flush_committed(struct journal_s *journal, struct transaction_s *transaction, int err);
void sio_revoke_block(struct journal_s *journal, int used);
bool sio_copies(struct journal_s *journal);
void sio_overwritten(struct journal_s *journal, struct journal_head *jh);
void sio_freed(struct journal_s *journal, struct journal_head *jh);
void sio_journal_block(struct journal_s *journal);
void sio_proc_init(struct journal_s *journal);
void sio_proc_exit(struct journal_s *journal);

#endif
