// SPDX-License-Identifier: GPL-2.0
/*
 * Single-I/O data journaling, the journal's half: when a transaction may be committed with one write and one flush.
 *
 * Descriptors, content and commit block are submitted together, without a flush between them; the commit block has a
 * checksum of all the others, and recovery ends before a transaction whose checksum is wrong. Nobody has been told that
 * such a transaction is durable, because the flush behind it had not ended.
 *
 * A crash leaves the whole transaction, or nothing of it, where
 *
 *  - the checksum covers everything that replay reads. That is the checksum of version 1, which sums descriptors and
 *    content in the commit block. Versions 2 and 3 sum every block for itself, and what finds a bad block under them is
 *    the replay itself, too late to end before its transaction. Version 1 leaves revoke blocks out: one whose records
 *    lie in its first sector is there whole or not at all, and a longer one is not committed in this way.
 *  - nothing outside the journal had to be durable before. The flush in front of a classic commit block also makes
 *    durable what was written home: ordered data, data whose unwritten extents are converted, zeroes in fresh blocks.
 *    After any of these, whatever transaction it concerns, the next commit is a classic one.
 *  - what is written is what was summed. Pages change without asking the journal: truncation and hole punching zero the
 *    ends in the page cache, a fault may be between its handle and the moment when its page counts as dirty, direct I/O
 *    may go on in a page whose mapping is gone, and the superblock is changed in place. So every block is copied.
 */

#include <linux/blkdev.h>
#include <linux/faults.h>
#include <linux/fs.h>
#include <linux/jbd2.h>
#include <linux/module.h>
#include <linux/part_stat.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/vma_journal.h>

/* A disk does not tear a sector, and has none that is smaller. */
#define SIO_SECTOR_BYTES 512

static enum sio_kind sio_kind(journal_t *journal, bool home_data)
{
	if (journal->j_dev != journal->j_fs_dev)
		return SIO_OTHER_DEVICE;
	if (!vext4_without(VEXT4_PART_CHECKSUM) && !jbd2_has_feature_checksum(journal))
		return SIO_NO_CHECKSUM;
	if (home_data && !vext4_without(VEXT4_PART_HOME_RULE))
		return SIO_HOME_DATA;
	if (journal->j_sio.long_revoke && !vext4_without(VEXT4_PART_REVOKE_RULE))
		return SIO_LONG_REVOKE;
	return SIO_SINGLE;
}

/**
 * sio_commit_at_once - decide how a transaction is committed
 * @journal: its journal
 * @transaction: all of it but the commit block has been submitted, and its ordered data is written
 *
 * Return: whether the commit block may be submitted now.
 */
bool sio_commit_at_once(journal_t *journal, transaction_t *transaction)
{
	struct sio_journal *sio = &journal->j_sio;
	enum sio_kind kind;
	bool home_data;

	vext4_fault(VEXT4_FAULT_CONTENT);
	atomic64_inc(&sio->transactions);
	/*
	 * Cleared before the flush that a classic commit begins with: what is written home after this
	 * is the next commit's affair.
	 */
	home_data = xchg(&sio->home_data, 0);
	transaction->t_sio = false;
	if (jbd2_has_feature_async_commit(journal)) {
		kind = sio_kind(journal, home_data);
		transaction->t_sio = kind == SIO_SINGLE;
		atomic64_inc(&sio->commits[kind]);
	}
	sio->long_revoke = false;
	/* One that is handed over is handed over as a whole. */
	if (transaction->t_vma)
		transaction->t_sio = true;
	return transaction->t_sio;
}

/**
 * sio_flush_committed - make a transaction durable that was committed at once
 * @journal: its journal
 * @transaction: all of it is written
 * @err: what has gone wrong so far
 *
 * Return: @err, or what the flush said. A flush that fails leaves nothing that may be acknowledged.
 */
int sio_flush_committed(journal_t *journal, transaction_t *transaction, int err)
{
	int flushed;

	vext4_fault(VEXT4_FAULT_COMMIT_BLOCK);
	if (vext4_without(VEXT4_PART_FLUSH) || !transaction->t_sio || transaction->t_vma ||
	    !(journal->j_flags & JBD2_BARRIER))
		return err;
	flushed = blkdev_issue_flush(journal->j_dev);
	vext4_fault(VEXT4_FAULT_FLUSHED);
	return err ? err : flushed;
}

/**
 * sio_revoke_block - a revoke block is about to be written
 * @journal: its journal
 * @used: how many of its bytes are header and records
 */
void sio_revoke_block(journal_t *journal, int used)
{
	vext4_fault(VEXT4_FAULT_REVOKE);
	if (used > SIO_SECTOR_BYTES)
		journal->j_sio.long_revoke = true;
}

/**
 * sio_copies - is a block copied for the journal?
 * @journal: the journal
 *
 * Return: whether it is, also where it need not be escaped.
 */
bool sio_copies(journal_t *journal)
{
	return jbd2_has_feature_async_commit(journal) || vmaj_hands_over(journal);
}

/**
 * sio_overwritten - a dirty buffer enters a transaction instead of going home
 * @journal: the journal
 * @jh: the buffer
 */
void sio_overwritten(journal_t *journal, struct journal_head *jh)
{
	if (jh->b_cp_transaction)
		atomic64_inc(&journal->j_sio.overwritten);
}

/**
 * sio_freed - a buffer is dropped, and will not go home
 * @journal: the journal
 * @jh: the buffer
 */
void sio_freed(journal_t *journal, struct journal_head *jh)
{
	if (jh->b_cp_transaction && buffer_dirty(jh2bh(jh)))
		atomic64_inc(&journal->j_sio.freed);
}

/**
 * sio_journal_block - a block of the journal is about to be written
 * @journal: the journal
 */
void sio_journal_block(journal_t *journal)
{
	atomic64_inc(&journal->j_sio.blocks);
}

static u64 sio_sectors_written(journal_t *journal)
{
	return part_stat_read(journal->j_fs_dev, sectors[STAT_WRITE]);
}

/* What was written beside the journal: everything that the device has written, but for its blocks. */
static void sio_show_bytes(struct seq_file *seq, journal_t *journal)
{
	struct sio_journal *sio = &journal->j_sio;
	s64 log = (atomic64_read(&sio->blocks) - atomic64_read(&sio->handed_over)) * journal->j_blocksize;
	s64 home = (sio_sectors_written(journal) - sio->sectors_before) << SECTOR_SHIFT;
	s64 transactions = atomic64_read(&sio->transactions);

	if (journal->j_dev == journal->j_fs_dev)
		home -= log;
	/* Blocks are counted before they are written. */
	home = max_t(s64, home, 0);
	seq_printf(seq, "transactions %lld\n", transactions);
	seq_printf(seq, "journal_bytes %lld\n", log);
	seq_printf(seq, "home_bytes %lld\n", home);
	transactions = max_t(s64, transactions, 1);
	seq_printf(seq, "journal_bytes_per_transaction %lld\n", div64_s64(log, transactions));
	seq_printf(seq, "home_bytes_per_transaction %lld\n", div64_s64(home, transactions));
}

static int sio_show(struct seq_file *seq, void *v)
{
	static const char * const kinds[SIO_KINDS] = {
		[SIO_SINGLE] = "single",
		[SIO_HOME_DATA] = "classic_home_data",
		[SIO_LONG_REVOKE] = "classic_long_revoke",
		[SIO_OTHER_DEVICE] = "classic_other_device",
		[SIO_NO_CHECKSUM] = "classic_no_checksum",
	};
	journal_t *journal = seq->private;
	struct sio_journal *sio = &journal->j_sio;
	int kind;

	for (kind = 0; kind < SIO_KINDS; kind++)
		seq_printf(seq, "%s %lld\n", kinds[kind], atomic64_read(&sio->commits[kind]));
	seq_printf(seq, "syncs %lld\n", atomic64_read(&sio->syncs));
	seq_printf(seq, "mapped_pages %lld\n", atomic64_read(&sio->mapped_pages));
	seq_printf(seq, "cancelled_overwritten %lld\n", atomic64_read(&sio->overwritten));
	seq_printf(seq, "cancelled_freed %lld\n", atomic64_read(&sio->freed));
	seq_printf(seq, "switches %lld\n", atomic64_read(&sio->switches));
	seq_printf(seq, "switches_flushed %lld\n", atomic64_read(&sio->switches_flushed));
	sio_show_bytes(seq, journal);
	return 0;
}

/**
 * sio_proc_init - show a journal's counters
 * @journal: a journal whose folder in procfs has been made
 */
void sio_proc_init(journal_t *journal)
{
	journal->j_sio.sectors_before = sio_sectors_written(journal);
	proc_create_single_data("single_io", 0444, journal->j_proc_entry, sio_show, journal);
}

/**
 * sio_proc_exit - hide them
 * @journal: a journal whose folder in procfs is still there
 */
void sio_proc_exit(journal_t *journal)
{
	remove_proc_entry("single_io", journal->j_proc_entry);
}
