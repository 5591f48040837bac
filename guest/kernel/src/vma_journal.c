// SPDX-License-Identifier: GPL-2.0
/*
 * VMA's mode (VM Aware Journaling, § 3), the journal's half: at a commit no journal is written.
 *
 * jbd2 makes a transaction as ever: it takes blocks of the journal for it, fills descriptors, copies content, and
 * counts its room. But what it would write is gathered, and handed over to a control disk, behind which the host keeps
 * what the guest writes to its journal in memory: runs of blocks, each with the place where it would stand
 * (afterimage_control_disk.h). The last command brings the commit block, when all the others have been answered.
 * Where the mount wants it, a transaction that is short enough is not sent, but published (vma_lent.c).
 * There is no flush: what had completed on the file system's disk is before the commit for that host, which is what a
 * flush in front of a commit block is for. Tails, checkpoints and the journal's superblock are jbd2's.
 *
 * A crash leaves the whole transaction, or nothing of it, and the former once its last command has been answered.
 *
 * A control disk that refuses a command, or fails, is asked no more. The transaction is whole in memory still, and is
 * written to its place in the classic way, as are all behind it: a replay that lacked it would end in front of them.
 * A command without an answer is waited for, as the kernel waits for any disk: given up, it could still be carried out
 * when its place in the journal is another transaction's.
 *
 * What is handed over has to stay as its checksums say until it is answered, and again until it is written: every
 * block is copied (sio_copies()).
 */

#define pr_fmt(fmt) "JBD2: " fmt

#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/buffer_head.h>
#include <linux/crc32.h>
#include <linux/fs.h>
#include <linux/jbd2.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/vma_journal.h>
#include "afterimage_control_disk.h"
#include "vma_lent.h"
#include "vma_series.h"

#define VMAJ_SLOTS AFTERIMAGE_FILE_SYSTEM_SLOTS
#define VMAJ_FIRST_SLOT (AFTERIMAGE_SLOTS - VMAJ_SLOTS)
#define VMAJ_SLOT_SECTORS (AFTERIMAGE_SLOT_BYTES / AFTERIMAGE_SECTOR_BYTES)
/* Another file system of this guest may have had its answer in our slot: how often a question is asked. */
#define VMAJ_TRIES 16
/* Commits are counted by their size: the last takes 32768 blocks and more. */
#define VMAJ_BATCHES 16
#define VMAJ_NEEDED (BIT_ULL(AFTERIMAGE_INIT) | BIT_ULL(AFTERIMAGE_CLEANUP) | BIT_ULL(AFTERIMAGE_MPROTECT))

/* A command that is on its way. */
struct vmaj_sent {
	struct vma_journal *vma;
	blk_status_t status;
};

/* Transactions of so many blocks, and fewer than twice as many. */
struct vmaj_batch {
	atomic64_t commits;
	atomic64_t blocks;
	atomic64_t ns;
};

/**
 * struct vma_journal - a journal whose commits are handed over
 * @disk: the control disk
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
 * @refused: commits go to the disk
 * @blocks: what the transaction that is being committed would have written, locked
 * @gathered: how many
 * @gathered_max: and how many there is room for
 * @commands_sent: for transactions
 * @fallbacks: transactions that it did not take
 * @too_long: transactions that were not handed over, because there was no room
 * @copied_max: blocks of the longest transaction, which were copied for it
 * @batches: those that the control disk took, by the binary logarithm of their blocks
 * @lent: memory in which transactions are published, or NULL
 * @published: transactions that the control disk took there, in the same way
 * @sent_again: transactions that were published, and it did not take
 */
struct vma_journal {
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
	bool refused;
	struct buffer_head **blocks;
	unsigned int gathered;
	unsigned int gathered_max;
	atomic64_t commands_sent;
	atomic64_t fallbacks;
	atomic64_t too_long;
	unsigned int copied_max;
	struct vmaj_batch batches[VMAJ_BATCHES];
	struct vmaj_lent *lent;
	struct vmaj_batch published[VMAJ_BATCHES];
	atomic64_t sent_again;
};

#if SIO_FAULTS
/* For tests: at most so many blocks a command, and so many commands until one names a guest that is not there. */
static unsigned int vma_blocks = AFTERIMAGE_BLOCKS_MAX;
module_param(vma_blocks, uint, 0644);
static unsigned int vma_refuse_after;
module_param(vma_refuse_after, uint, 0644);

static unsigned int vmaj_blocks(struct vma_journal *vma)
{
	return clamp(READ_ONCE(vma_blocks), 1U, vma->blocks_max);
}

static bool vmaj_spoils(void)
{
	unsigned int left = READ_ONCE(vma_refuse_after);

	if (left)
		WRITE_ONCE(vma_refuse_after, left - 1);
	return left == 1;
}
#else
static unsigned int vmaj_blocks(struct vma_journal *vma)
{
	return vma->blocks_max;
}

static bool vmaj_spoils(void)
{
	return false;
}
#endif

static struct afterimage_command *vmaj_command(struct vma_journal *vma, unsigned int slot, int operation)
{
	struct afterimage_command *command = page_address(vma->commands) + slot * AFTERIMAGE_SECTOR_BYTES;

	BUILD_BUG_ON(sizeof(*command) != AFTERIMAGE_SECTOR_BYTES || VMAJ_SLOTS * sizeof(*command) > PAGE_SIZE);
	memset(command, 0, sizeof(*command));
	memcpy(command->magic, AFTERIMAGE_COMMAND_MAGIC, sizeof(command->magic));
	command->version = cpu_to_le16(AFTERIMAGE_CONTROL_VERSION);
	command->operation = cpu_to_le16(operation);
	command->tag = cpu_to_le64(++vma->tag);
	memcpy(command->file_system, vma->file_system, sizeof(command->file_system));
	return command;
}

static u32 vmaj_crc(const void *sector)
{
	return ~__crc32c_le(~0, sector, AFTERIMAGE_SECTOR_BYTES);
}

static void vmaj_end_command(struct bio *bio)
{
	struct vmaj_sent *sent = bio->bi_private;
	struct vma_journal *vma = sent->vma;

	sent->status = bio->bi_status;
	bio_put(bio);
	if (atomic_dec_and_test(&vma->under_way))
		complete(&vma->answered);
}

/* Sends the command in a slot, with so many blocks behind it. */
static void vmaj_send(struct vma_journal *vma, unsigned int slot, struct buffer_head **blocks, unsigned int count)
{
	struct afterimage_command *command = page_address(vma->commands) + slot * AFTERIMAGE_SECTOR_BYTES;
	struct bio *bio = bio_alloc(vma->disk.bdev, count + 1, REQ_OP_WRITE | REQ_SYNC | REQ_META, GFP_NOFS);
	unsigned int i;

	command->crc = cpu_to_le32(vmaj_crc(command));
	bio->bi_iter.bi_sector = (VMAJ_FIRST_SLOT + slot) * VMAJ_SLOT_SECTORS;
	__bio_add_page(bio, vma->commands, sizeof(*command), slot * sizeof(*command));
	for (i = 0; i < count; i++)
		__bio_add_page(bio, blocks[i]->b_page, blocks[i]->b_size, bh_offset(blocks[i]));
	vma->sent[slot].vma = vma;
	bio->bi_private = &vma->sent[slot];
	bio->bi_end_io = vmaj_end_command;
	atomic_inc(&vma->under_way);
	submit_bio(bio);
}

static void vmaj_hold(struct vma_journal *vma)
{
	reinit_completion(&vma->answered);
	atomic_set(&vma->under_way, 1);
}

static void vmaj_wait(struct vma_journal *vma)
{
	if (!atomic_dec_and_test(&vma->under_way))
		wait_for_completion_io(&vma->answered);
}

/* Reads the answer in a slot of the control disk. */
static struct afterimage_answer *vmaj_read(struct vma_journal *vma, unsigned int slot)
{
	struct bio *bio = bio_alloc(vma->disk.bdev, 1, REQ_OP_READ | REQ_SYNC | REQ_META, GFP_NOFS);
	struct afterimage_answer *answer = page_address(vma->answer);
	int err;
	u32 crc;

	BUILD_BUG_ON(sizeof(*answer) != AFTERIMAGE_SECTOR_BYTES);
	bio->bi_iter.bi_sector = slot * VMAJ_SLOT_SECTORS;
	__bio_add_page(bio, vma->answer, sizeof(*answer), 0);
	err = submit_bio_wait(bio);
	bio_put(bio);
	if (err)
		return ERR_PTR(err);
	crc = le32_to_cpu(answer->crc);
	answer->crc = 0;
	if (memcmp(answer->magic, AFTERIMAGE_ANSWER_MAGIC, sizeof(answer->magic)) ||
	    le16_to_cpu(answer->version) != AFTERIMAGE_CONTROL_VERSION || vmaj_crc(answer) != crc)
		return ERR_PTR(-EPROTO);
	return answer;
}

static int vmaj_text_len(const struct afterimage_answer *answer)
{
	return min_t(int, le16_to_cpu(answer->text_len), AFTERIMAGE_TEXT_BYTES_MAX);
}

/* A question about the file system, and its answer. */
static struct afterimage_answer *vmaj_ask(struct vma_journal *vma, int operation)
{
	struct afterimage_answer *answer;
	int try;

	for (try = 0; try < VMAJ_TRIES; try++) {
		vmaj_command(vma, 0, operation);
		vmaj_hold(vma);
		vmaj_send(vma, 0, NULL, 0);
		vmaj_wait(vma);
		answer = vmaj_read(vma, VMAJ_FIRST_SLOT);
		if (IS_ERR(answer) || le64_to_cpu(answer->tag) == vma->tag)
			return answer;
	}
	return ERR_PTR(-EBUSY);
}

/* Blocks from this one on that one command can bring. */
static unsigned int vmaj_run(struct vma_journal *vma, unsigned int from)
{
	struct buffer_head **blocks = vma->blocks + from;
	unsigned int max = min(vma->gathered - from, vmaj_blocks(vma));
	unsigned int count;

	for (count = 1; count < max; count++) {
		if (blocks[count]->b_blocknr != blocks[0]->b_blocknr + count)
			break;
	}
	return count;
}

/* All that was gathered. Returns the slot of a command that was refused, or -1. */
static int vmaj_hand_over(struct vma_journal *vma)
{
	struct afterimage_command *command;
	unsigned int from = 0, count, sent, i;

	while (from < vma->gathered) {
		vmaj_hold(vma);
		for (sent = 0; from < vma->gathered && sent < VMAJ_SLOTS; sent++) {
			count = vmaj_run(vma, from);
			if (from + count == vma->gathered) {
				/* The commit block: everything else has to be there. */
				if (sent)
					break;
				sio_fault(SIO_FAULT_VMA_COMMIT);
			}
			command = vmaj_command(vma, sent, AFTERIMAGE_MPROTECT);
			command->instance = cpu_to_le64(vma->instance);
			command->sequence = cpu_to_le64(vma->sequence + vmaj_spoils());
			command->blocks = cpu_to_le32(count);
			command->block = cpu_to_le64(vma->blocks[from]->b_blocknr);
			vmaj_send(vma, sent, vma->blocks + from, count);
			from += count;
		}
		atomic64_add(sent, &vma->commands_sent);
		vmaj_wait(vma);
		for (i = 0; i < sent; i++) {
			if (vma->sent[i].status)
				return i;
		}
	}
	return -1;
}

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

	if (sio_without(SIO_PART_VMA_REWRITE)) {
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
	sio_fault(SIO_FAULT_VMA_REWRITTEN);
	if (well)
		submit_bh(REQ_OP_WRITE | JBD2_JOURNAL_REQ_FLAGS | REQ_PREFLUSH | REQ_FUA, vma->blocks[last]);
	else
		vmaj_end(vma->blocks[last], false);
}

static void vmaj_fall_back(transaction_t *transaction, int slot)
{
	journal_t *journal = transaction->t_journal;
	struct vma_journal *vma = journal->j_vma;
	int err = blk_status_to_errno(vma->sent[slot].status);
	const struct afterimage_command *command = page_address(vma->commands) + slot * AFTERIMAGE_SECTOR_BYTES;
	struct afterimage_answer *answer = vmaj_read(vma, VMAJ_FIRST_SLOT + slot);
	/* It may be another file system's by now. */
	bool said = !IS_ERR(answer) && answer->tag == command->tag;

	WRITE_ONCE(vma->refused, true);
	atomic64_inc(&vma->fallbacks);
	pr_err("%s: the control disk did not take transaction %u (error %d%s%.*s): from it on the journal is written to the disk\n",
	       journal->j_devname, transaction->t_tid, err, said ? ", " : "",
	       said ? vmaj_text_len(answer) : 0, said ? (char *)answer->text : "");
	sio_fault(SIO_FAULT_VMA_REFUSED);
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
 * vmaj_handed_over_blocks - how many blocks of the journal were not written
 * @journal: the journal
 */
s64 vmaj_handed_over_blocks(journal_t *journal)
{
	struct vma_journal *vma = journal->j_vma;

	return vma ? vmaj_all(vma->batches).blocks + vmaj_all(vma->published).blocks : 0;
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

	if (transaction->t_vma && vma->gathered == vma->gathered_max)
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

static void vmaj_count(struct vma_journal *vma, struct vmaj_batch *batches, u64 ns)
{
	struct vmaj_batch *batch = &batches[min(ilog2(vma->gathered), VMAJ_BATCHES - 1)];

	WRITE_ONCE(vma->copied_max, max(vma->copied_max, vma->gathered));
	atomic64_inc(&batch->commits);
	atomic64_add(vma->gathered, &batch->blocks);
	atomic64_add(ns, &batch->ns);
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
	sio_fault(SIO_FAULT_VMA_PUBLISHED);
	if (!vmaj_lent_wait(vma->lent)) {
		atomic64_inc(&vma->sent_again);
		return false;
	}
	vmaj_count(vma, vma->published, ns);
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
		sio_fault(SIO_FAULT_VMA_GATHERED);
		if (!vmaj_publish(transaction, begun)) {
			refused = vmaj_hand_over(vma);
			if (refused < 0) {
				sio_fault(SIO_FAULT_VMA_ANSWERED);
				vmaj_count(vma, vma->batches, ktime_get_ns() - begun);
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
	seq_printf(seq, "commands %lld\n", atomic64_read(&vma->commands_sent));
	seq_printf(seq, "fallbacks %lld\n", atomic64_read(&vma->fallbacks));
	seq_printf(seq, "too_long %lld\n", atomic64_read(&vma->too_long));
	seq_printf(seq, "blocks_a_command %u\n", vmaj_blocks(vma));
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
	vmaj_disk_close(&vma->disk);
	if (vma->commands)
		__free_page(vma->commands);
	if (vma->answer)
		__free_page(vma->answer);
	kvfree(vma->blocks);
	kfree(vma);
}

/* Whether what was opened is a control disk that takes commits, and takes those of this journal. */
static int vmaj_introduce(journal_t *journal, struct vma_journal *vma, const char *path, bool exitless)
{
	struct request_queue *queue = bdev_get_queue(vma->disk.bdev);
	struct afterimage_answer *answer = vmaj_read(vma, 0);

	if (IS_ERR(answer) || (le64_to_cpu(answer->operations) & VMAJ_NEEDED) != VMAJ_NEEDED) {
		pr_err("%s: data=vma: %s is no control disk that takes commits\n", journal->j_devname, path);
		return -ENODEV;
	}
	if (exitless && !(le64_to_cpu(answer->operations) & BIT_ULL(AFTERIMAGE_LEND))) {
		pr_err("%s: vma_exitless: %s takes no commits that are published\n", journal->j_devname, path);
		return -EOPNOTSUPP;
	}
	/* A command and its blocks are one request. */
	vma->blocks_max = min3((unsigned int)AFTERIMAGE_BLOCKS_MAX, queue_max_segments(queue) - 1U,
			       (queue_max_sectors(queue) - 1) / (AFTERIMAGE_BLOCK_BYTES / AFTERIMAGE_SECTOR_BYTES));
	answer = vmaj_ask(vma, AFTERIMAGE_INIT);
	if (IS_ERR(answer)) {
		pr_err("%s: data=vma: %s does not answer (error %ld)\n", journal->j_devname, path, PTR_ERR(answer));
		return PTR_ERR(answer);
	}
	if (le16_to_cpu(answer->status) != AFTERIMAGE_DONE) {
		pr_err("%s: data=vma: the control disk does not take this journal's commits: %.*s\n",
		       journal->j_devname, vmaj_text_len(answer), answer->text);
		return -EOPNOTSUPP;
	}
	vma->instance = le64_to_cpu(answer->instance);
	vma->sequence = le64_to_cpu(answer->sequence);
	if (!exitless)
		return 0;
	/* So is the read by which memory is lent. */
	vma->lent = vmaj_lent_alloc(vma->disk.bdev, VMAJ_FIRST_SLOT * VMAJ_SLOT_SECTORS, vma->blocks_max);
	if (!vma->lent)
		return -ENOMEM;
	vmaj_lent_name(vma->lent, vma->file_system, vma->instance, vma->sequence);
	return 0;
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
	init_completion(&vma->answered);
	memcpy(vma->file_system, file_system, sizeof(vma->file_system));
	vma->tag = ktime_get_real_ns();
	vma->commands = alloc_page(GFP_KERNEL);
	vma->answer = alloc_page(GFP_KERNEL);
	vma->gathered_max = journal->j_max_transaction_buffers + 1;
	vma->blocks = kvcalloc(vma->gathered_max, sizeof(*vma->blocks), GFP_KERNEL);
	err = -ENOMEM;
	if (!vma->commands || !vma->answer || !vma->blocks)
		goto failed;
	err = vmaj_disk_open(&vma->disk, path);
	if (err) {
		pr_err("%s: data=vma: there is no control disk at %s (error %d): name one by vma_disk=, or mount with data=journal\n",
		       journal->j_devname, path, err);
		goto failed;
	}
	err = vmaj_introduce(journal, vma, path, exitless);
	if (err)
		goto failed;
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
	struct afterimage_answer *answer;

	if (!vma)
		return;
	if (journal->j_proc_entry)
		remove_proc_entry("vma", journal->j_proc_entry);
	/* Nothing depends on it: what is retained goes home by itself. */
	if (!vma->refused) {
		answer = vmaj_ask(vma, AFTERIMAGE_CLEANUP);
		if (IS_ERR(answer))
			pr_info("%s: the control disk does not answer (error %ld)\n", journal->j_devname,
				PTR_ERR(answer));
		else if (le16_to_cpu(answer->status) != AFTERIMAGE_DONE)
			pr_info("%s: %.*s\n", journal->j_devname, vmaj_text_len(answer), answer->text);
	}
	journal->j_vma = NULL;
	vmaj_free(vma);
}
