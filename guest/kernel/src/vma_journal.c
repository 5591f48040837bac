// SPDX-License-Identifier: GPL-2.0
/*
 * VMA's mode (VM Aware Journaling, § 3), the journal's half: at a commit no journal is written.
 *
 * jbd2 makes a transaction as ever: it takes blocks of the journal for it, fills descriptors, copies content, and
 * counts its room. But what it would write is gathered, and handed over to a control disk, behind which the host keeps
 * what the guest writes to its journal in memory: runs of blocks, each with the place where it would stand
 * (vma_control.c). The last command brings the commit block, when all the others have been answered.
 * Where the mount wants it, a transaction that is short enough is not sent, but published (vma_lent.c).
 * There is no flush: what had completed on the file system's disk is before the commit for that host, which is what a
 * flush in front of a commit block is for. Tails, checkpoints and the journal's superblock are jbd2's.
 *
 * A crash leaves the whole transaction, or nothing of it, and the former once its last command has been answered.
 *
 * A control disk that refuses a command, or fails, is asked no more. The transaction is whole in memory still, and is
 * written to its place in the classic way, as are all behind it: a replay that lacked it would end in front of them.
 *
 * What is handed over has to stay as its checksums say until it is answered, and again until it is written: every
 * block is copied (sio_copies()).
 */

#define pr_fmt(fmt) "JBD2: " fmt

#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/buffer_head.h>
#include <linux/faults.h>
#include <linux/fs.h>
#include <linux/jbd2.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/random.h>
#include <linux/seq_file.h>
#include <linux/vma_journal.h>
#include "vma_control.h"
#include "vma_lent.h"

/* Commits are counted by their size: the last takes 32768 blocks and more. */
#define VMAJ_BATCHES 16

/* Transactions of so many blocks, and fewer than twice as many. */
struct vmaj_batch {
	atomic64_t commits;
	atomic64_t blocks;
	atomic64_t ns;
};

/**
 * struct vma_journal - a journal whose commits are handed over
 * @control: to whom
 * @refused: commits go to the disk
 * @blocks: what the transaction that is being committed would have written, locked
 * @gathered: how many
 * @gathered_max: and how many there is room for
 * @fallbacks: transactions that it did not take
 * @too_long: transactions that were not handed over, because there was no room
 * @copied_max: blocks of the longest transaction, which were copied for it
 * @batches: those that the control disk took, by the binary logarithm of their blocks
 * @lent: memory in which transactions are published, or NULL
 * @published: transactions that the control disk took there, in the same way
 * @sent_again: transactions that were published, and it did not take
 */
struct vma_journal {
	struct vmaj_control control;
	bool refused;
	struct buffer_head **blocks;
	unsigned int gathered;
	unsigned int gathered_max;
	atomic64_t fallbacks;
	atomic64_t too_long;
	unsigned int copied_max;
	struct vmaj_batch batches[VMAJ_BATCHES];
	struct vmaj_lent *lent;
	struct vmaj_batch published[VMAJ_BATCHES];
	atomic64_t sent_again;
};

static void vmaj_end(struct buffer_head *bh, bool well)
{
	bh->b_end_io(bh, well);
}

/* The classic way: all but the commit block, and behind a flush this one. */
static void vmaj_rewrite(journal_t *journal)
{
	struct vma_journal *vma = journal->j_vma;
	unsigned int last = vma->gathered - 1, i;
	struct blk_plug plug;
	bool well;

	if (vext4_without(VEXT4_PART_VMA_REWRITE)) {
		for (i = 0; i <= last; i++)
			vmaj_end(vma->blocks[i], true);
		return;
	}
	well = !blkdev_issue_flush(journal->j_dev);
	blk_start_plug(&plug);
	for (i = 0; i < last; i++)
		submit_bh(REQ_OP_WRITE | JBD2_JOURNAL_REQ_FLAGS, vma->blocks[i]);
	blk_finish_plug(&plug);
	for (i = 0; i < last; i++) {
		wait_on_buffer(vma->blocks[i]);
		well = well && buffer_uptodate(vma->blocks[i]);
	}
	vext4_fault(VEXT4_FAULT_VMA_REWRITTEN);
	if (well)
		submit_bh(REQ_OP_WRITE | JBD2_JOURNAL_REQ_FLAGS | REQ_PREFLUSH | REQ_FUA, vma->blocks[last]);
	else
		vmaj_end(vma->blocks[last], false);
}

static void vmaj_fall_back(transaction_t *transaction, int slot)
{
	journal_t *journal = transaction->t_journal;
	struct vma_journal *vma = journal->j_vma;
	int err, len;
	const char *said = vmaj_control_refusal(&vma->control, slot, &err, &len);

	WRITE_ONCE(vma->refused, true);
	atomic64_inc(&vma->fallbacks);
	pr_err("%s: the control disk did not take transaction %u (error %d%s%.*s): from it on the journal is written to the disk\n",
	       journal->j_devname, transaction->t_tid, err, len ? ", " : "", len, said);
	vext4_fault(VEXT4_FAULT_VMA_REFUSED);
	vmaj_rewrite(journal);
}

/* Of commits of all sizes. */
struct vmaj_all {
	s64 commits;
	s64 blocks;
	s64 ns;
};

static struct vmaj_all vmaj_all(struct vmaj_batch *batches)
{
	struct vmaj_all all = {};
	unsigned int i;

	for (i = 0; i < VMAJ_BATCHES; i++) {
		all.commits += atomic64_read(&batches[i].commits);
		all.blocks += atomic64_read(&batches[i].blocks);
		all.ns += atomic64_read(&batches[i].ns);
	}
	return all;
}

/**
 * vmaj_hands_over - are commits handed over?
 * @journal: their journal
 */
bool vmaj_hands_over(journal_t *journal)
{
	return journal->j_vma && !READ_ONCE(journal->j_vma->refused);
}

/**
 * vmaj_begin - a transaction is about to be written
 * @transaction: the one that is being committed
 */
void vmaj_begin(transaction_t *transaction)
{
	journal_t *journal = transaction->t_journal;

	transaction->t_vma = vmaj_hands_over(journal);
	if (!transaction->t_vma)
		return;
	journal->j_vma->gathered = 0;
	if (journal->j_vma->lent)
		vmaj_lent_offer(journal->j_vma->lent, journal->j_devname);
}

/* No room: what there is goes the classic way, and the rest behind it. */
static void vmaj_give_up(transaction_t *transaction)
{
	struct vma_journal *vma = transaction->t_journal->j_vma;
	unsigned int i;

	transaction->t_vma = false;
	atomic64_inc(&vma->too_long);
	for (i = 0; i < vma->gathered; i++)
		submit_bh(REQ_OP_WRITE | JBD2_JOURNAL_REQ_FLAGS, vma->blocks[i]);
	vma->gathered = 0;
}

/**
 * vmaj_submit_bh - write a block of a transaction, or gather it
 * @transaction: the one that is being committed
 * @opf: how it is written
 * @bh: the block, locked
 */
void vmaj_submit_bh(transaction_t *transaction, blk_opf_t opf, struct buffer_head *bh)
{
	struct vma_journal *vma = transaction->t_journal->j_vma;

	/*
	 * The last place is the commit block's, before which it was decided that it need not wait for anything
	 * (sio_commit_at_once()): too late to give up.
	 */
	if (transaction->t_vma && !transaction->t_sio && vma->gathered == vma->gathered_max - 1)
		vmaj_give_up(transaction);
	if (transaction->t_vma)
		vma->blocks[vma->gathered++] = bh;
	else
		submit_bh(opf, bh);
}

/**
 * vmaj_write_revoke - write a revoke block, or gather it
 * @journal: whose transaction is being committed
 * @bh: the block
 * @flags: how it is written
 */
void vmaj_write_revoke(journal_t *journal, struct buffer_head *bh, blk_opf_t flags)
{
	transaction_t *transaction = journal->j_committing_transaction;

	if (!transaction->t_vma) {
		write_dirty_buffer(bh, flags);
		return;
	}
	lock_buffer(bh);
	clear_buffer_dirty(bh);
	get_bh(bh);
	bh->b_end_io = end_buffer_write_sync;
	vmaj_submit_bh(transaction, REQ_OP_WRITE | flags, bh);
}

static void vmaj_count(journal_t *journal, struct vmaj_batch *batches, u64 ns)
{
	struct vma_journal *vma = journal->j_vma;
	struct vmaj_batch *batch = &batches[min(ilog2(vma->gathered), VMAJ_BATCHES - 1)];

	WRITE_ONCE(vma->copied_max, max(vma->copied_max, vma->gathered));
	atomic64_inc(&batch->commits);
	atomic64_add(vma->gathered, &batch->blocks);
	atomic64_add(ns, &batch->ns);
	/* The file single_io is there for longer than this. */
	atomic64_add(vma->gathered, &journal->j_sio.handed_over);
}

/* Whether a transaction was published, and taken. */
static bool vmaj_publish(transaction_t *transaction, u64 begun)
{
	journal_t *journal = transaction->t_journal;
	struct vma_journal *vma = journal->j_vma;
	u64 ns;

	if (!vma->lent || !vmaj_lent_publish(vma->lent, transaction->t_tid, vma->blocks, vma->gathered))
		return false;
	ns = ktime_get_ns() - begun;
	wake_up(&journal->j_wait_done_commit);
	vext4_fault(VEXT4_FAULT_VMA_PUBLISHED);
	if (!vmaj_lent_wait(vma->lent)) {
		atomic64_inc(&vma->sent_again);
		return false;
	}
	vmaj_count(journal, vma->published, ns);
	return true;
}

static bool vmaj_is_committed(journal_t *journal, tid_t tid)
{
	/* In this order: what is not published any more is committed. */
	return vmaj_lent_committed(journal->j_vma->lent, tid) || tid_geq(READ_ONCE(journal->j_commit_sequence), tid) ||
	       is_journal_aborted(journal);
}

/**
 * vmaj_force_commit - commit what a sync needs
 * @journal: the journal
 *
 * A transaction that is published is enough; everybody else who waits for a commit waits until it is taken.
 *
 * Return: 0, or an error.
 */
int vmaj_force_commit(journal_t *journal)
{
	transaction_t *transaction;
	tid_t tid = 0;

	if (!journal->j_vma || !journal->j_vma->lent)
		return jbd2_journal_force_commit(journal);
	read_lock(&journal->j_state_lock);
	transaction = journal->j_running_transaction ?: journal->j_committing_transaction;
	if (transaction)
		tid = transaction->t_tid;
	read_unlock(&journal->j_state_lock);
	if (transaction) {
		jbd2_log_start_commit(journal, tid);
		wait_event(journal->j_wait_done_commit, vmaj_is_committed(journal, tid));
	}
	return is_journal_aborted(journal) ? -EIO : 0;
}
EXPORT_SYMBOL(vmaj_force_commit);

/**
 * vmaj_publishes - may commits be published?
 * @journal: their journal
 */
bool vmaj_publishes(journal_t *journal)
{
	return journal->j_vma && journal->j_vma->lent;
}
EXPORT_SYMBOL(vmaj_publishes);

/**
 * vmaj_is_disk - are commits handed over to this control disk?
 * @journal: their journal
 * @path: where the disk is
 */
bool vmaj_is_disk(journal_t *journal, const char *path)
{
	dev_t device;

	return journal->j_vma && !lookup_bdev(path, &device) &&
	       device == journal->j_vma->control.disk.bdev->bd_dev;
}
EXPORT_SYMBOL(vmaj_is_disk);

/**
 * vmaj_commit - hand a transaction over
 * @transaction: the one that is being committed, all of it gathered, with the commit block last
 *
 * When it returns the transaction is committed, or on its way to the disk.
 */
void vmaj_commit(transaction_t *transaction)
{
	journal_t *journal = transaction->t_journal;
	struct vma_journal *vma = journal->j_vma;
	u64 begun = ktime_get_ns();
	unsigned int i;
	int refused = -1;

	if (!transaction->t_vma || !vma->gathered)
		return;
	/* A journal that was aborted gets no commit block. */
	if (!is_journal_aborted(journal)) {
		vext4_fault(VEXT4_FAULT_VMA_GATHERED);
		if (!vmaj_publish(transaction, begun)) {
			refused = vmaj_control_hand_over(&vma->control, vma->blocks, vma->gathered);
			if (refused < 0) {
				vext4_fault(VEXT4_FAULT_VMA_ANSWERED);
				vmaj_count(journal, vma->batches, ktime_get_ns() - begun);
			}
		}
	}
	if (refused >= 0) {
		vmaj_fall_back(transaction, refused);
		return;
	}
	for (i = 0; i < vma->gathered; i++)
		vmaj_end(vma->blocks[i], true);
}

static void vmaj_show_batches(struct seq_file *seq, const char *name, struct vmaj_batch *batches)
{
	unsigned int i;

	for (i = 0; i < VMAJ_BATCHES; i++) {
		if (atomic64_read(&batches[i].commits))
			seq_printf(seq, "%s %u commits %lld blocks %lld ns %lld\n", name, 1U << i,
				   atomic64_read(&batches[i].commits), atomic64_read(&batches[i].blocks),
				   atomic64_read(&batches[i].ns));
	}
}

static int vmaj_show(struct seq_file *seq, void *v)
{
	struct vma_journal *vma = ((journal_t *)seq->private)->j_vma;
	struct vmaj_all sent = vmaj_all(vma->batches);
	struct vmaj_all published = vmaj_all(vma->published);

	seq_printf(seq, "handed_over %lld\n", sent.commits + published.commits);
	seq_printf(seq, "handed_over_blocks %lld\n", sent.blocks + published.blocks);
	seq_printf(seq, "handed_over_ns %lld\n", sent.ns);
	seq_printf(seq, "commands %lld\n", atomic64_read(&vma->control.commands_sent));
	seq_printf(seq, "fallbacks %lld\n", atomic64_read(&vma->fallbacks));
	seq_printf(seq, "too_long %lld\n", atomic64_read(&vma->too_long));
	seq_printf(seq, "blocks_a_command %u\n", vmaj_control_blocks(&vma->control));
	seq_printf(seq, "copied_blocks_max %u\n", READ_ONCE(vma->copied_max));
	if (vma->lent) {
		seq_printf(seq, "published %lld\n", published.commits);
		seq_printf(seq, "published_ns %lld\n", published.ns);
		seq_printf(seq, "sent_again %lld\n", atomic64_read(&vma->sent_again));
	}
	vmaj_show_batches(seq, "batch", vma->batches);
	vmaj_show_batches(seq, "published_batch", vma->published);
	return 0;
}

static void vmaj_free(struct vma_journal *vma)
{
	/* What is lent is the disk's until then. */
	if (vma->lent)
		vmaj_lent_free(vma->lent);
	vmaj_control_close(&vma->control);
	kvfree(vma->blocks);
	kfree(vma);
}

static int vmaj_put_challenge(journal_t *journal, __le64 challenge)
{
	BUILD_BUG_ON(offsetof(journal_superblock_t, s_padding) > AFTERIMAGE_CHALLENGE_AT ||
		     offsetof(journal_superblock_t, s_checksum) != AFTERIMAGE_CHALLENGE_AT + sizeof(challenge));
	lock_buffer(journal->j_sb_buffer);
	memcpy((u8 *)journal->j_superblock + AFTERIMAGE_CHALLENGE_AT, &challenge, sizeof(challenge));
	unlock_buffer(journal->j_sb_buffer);
	jbd2_journal_update_sb_errno(journal);
	return is_journal_aborted(journal) ? -EIO : 0;
}

/*
 * The control disk knows file systems by their UUIDs, and this one may be a copy of the one on its disk, elsewhere: its
 * commits would go into the other's journal. So a number that nobody knows is written to this journal's superblock, and
 * the control disk has to see it where it takes commits for.
 */
static int vmaj_open(journal_t *journal, struct vmaj_control *control, const char *path, const u8 *file_system,
		     bool exitless)
{
	__le64 challenge;
	int err;

	if (bdev_read_only(journal->j_dev)) {
		pr_err("%s: data=vma: the disk is read-only\n", journal->j_devname);
		return -EROFS;
	}
	do {
		get_random_bytes(&challenge, sizeof(challenge));
	} while (!challenge);
	err = vmaj_put_challenge(journal, challenge);
	if (err)
		return err;
	err = vmaj_control_open(control, path, file_system, journal->j_devname, exitless, challenge);
	/*
	 * Also after a refusal. The host has read the superblock, which could have been a recovery's beginning: a write
	 * says that none is under way.
	 */
	return vmaj_put_challenge(journal, 0) ?: err;
}

/**
 * vmaj_start - from now on commits are handed over
 * @journal: a journal that was loaded, and has no transaction yet
 * @path: the control disk
 * @file_system: its UUID
 * @exitless: those that are short enough are published
 *
 * Return: 0, or an error, which has been told in a sentence.
 */
int vmaj_start(journal_t *journal, const char *path, const u8 *file_system, bool exitless)
{
	struct vma_journal *vma;
	int err;

	if (journal->j_dev != journal->j_fs_dev || journal->j_blocksize != AFTERIMAGE_BLOCK_BYTES) {
		pr_err("%s: data=vma: the journal must lie on the file system's device, in blocks of %d bytes\n",
		       journal->j_devname, AFTERIMAGE_BLOCK_BYTES);
		return -EINVAL;
	}
	vma = kzalloc(sizeof(*vma), GFP_KERNEL);
	if (!vma)
		return -ENOMEM;
	vma->gathered_max = journal->j_max_transaction_buffers + 2;
	vma->blocks = kvcalloc(vma->gathered_max, sizeof(*vma->blocks), GFP_KERNEL);
	err = -ENOMEM;
	if (!vma->blocks)
		goto failed;
	err = vmaj_open(journal, &vma->control, path, file_system, exitless);
	if (err)
		goto failed;
	if (exitless) {
		err = -ENOMEM;
		vma->lent = vmaj_lent_alloc(&vma->control);
		if (!vma->lent)
			goto failed;
	}
	journal->j_vma = vma;
	if (journal->j_proc_entry)
		proc_create_single_data("vma", 0444, journal->j_proc_entry, vmaj_show, journal);
	return 0;
failed:
	vmaj_free(vma);
	return err;
}
EXPORT_SYMBOL(vmaj_start);

/**
 * vmaj_stop - a journal is over
 * @journal: the journal, closed
 */
void vmaj_stop(journal_t *journal)
{
	struct vma_journal *vma = journal->j_vma;

	if (!vma)
		return;
	if (journal->j_proc_entry)
		remove_proc_entry("vma", journal->j_proc_entry);
	if (!vma->refused)
		vmaj_control_clean_up(&vma->control, journal->j_devname);
	journal->j_vma = NULL;
	vmaj_free(vma);
}
