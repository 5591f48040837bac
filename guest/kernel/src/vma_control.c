// SPDX-License-Identifier: GPL-2.0
/*
 * The way to a control disk (afterimage_control_disk.h): commands are writes that bring their blocks with them, and
 * what it has to say of them is read.
 *
 * A command without an answer is waited for, as the kernel waits for any disk: given up, it could still be carried out
 * when its place in the journal is another transaction's.
 */

#define pr_fmt(fmt) "JBD2: " fmt

#include <linux/bio.h>
#include <linux/blkdev.h>
#include <linux/buffer_head.h>
#include <linux/crc32.h>
#include <linux/faults.h>
#include <linux/jbd2.h>
#include <linux/module.h>
#include "vma_control.h"

/* Another file system of this guest may have had its answer in our slot: how often a question is asked. */
#define VMAJ_TRIES 16
#define VMAJ_NEEDED (BIT_ULL(AFTERIMAGE_INIT) | BIT_ULL(AFTERIMAGE_CLEANUP) | BIT_ULL(AFTERIMAGE_MPROTECT))

#if VEXT4_FAULTS
/* For tests: at most so many blocks a command, and so many commands until one names a guest that is not there. */
static unsigned int vma_blocks = AFTERIMAGE_BLOCKS_MAX;
module_param(vma_blocks, uint, 0644);
static unsigned int vma_refuse_after;
module_param(vma_refuse_after, uint, 0644);

static unsigned int vmaj_blocks(unsigned int max)
{
	return clamp(READ_ONCE(vma_blocks), 1U, max);
}

static bool vmaj_spoils(void)
{
	unsigned int left = READ_ONCE(vma_refuse_after);

	if (left)
		WRITE_ONCE(vma_refuse_after, left - 1);
	return left == 1;
}
#else
static unsigned int vmaj_blocks(unsigned int max)
{
	return max;
}

static bool vmaj_spoils(void)
{
	return false;
}
#endif

/**
 * vmaj_control_blocks - how many blocks of a journal one command brings
 * @control: the control disk
 */
unsigned int vmaj_control_blocks(struct vmaj_control *control)
{
	return vmaj_blocks(control->blocks_max);
}

static struct afterimage_command *vmaj_command(struct vmaj_control *control, unsigned int slot, int operation)
{
	struct afterimage_command *command = page_address(control->commands) + slot * AFTERIMAGE_SECTOR_BYTES;

	BUILD_BUG_ON(sizeof(*command) != AFTERIMAGE_SECTOR_BYTES || VMAJ_SLOTS * sizeof(*command) > PAGE_SIZE);
	memset(command, 0, sizeof(*command));
	memcpy(command->magic, AFTERIMAGE_COMMAND_MAGIC, sizeof(command->magic));
	command->version = cpu_to_le16(AFTERIMAGE_CONTROL_VERSION);
	command->operation = cpu_to_le16(operation);
	command->tag = cpu_to_le64(++control->tag);
	memcpy(command->file_system, control->file_system, sizeof(command->file_system));
	return command;
}

static u32 vmaj_crc(const void *sector)
{
	return ~__crc32c_le(~0, sector, AFTERIMAGE_SECTOR_BYTES);
}

static void vmaj_end_command(struct bio *bio)
{
	struct vmaj_sent *sent = bio->bi_private;
	struct vmaj_control *control = sent->control;

	sent->status = bio->bi_status;
	bio_put(bio);
	if (atomic_dec_and_test(&control->under_way))
		complete(&control->answered);
}

/* Sends the command in a slot, with so many blocks behind it. */
static void vmaj_send(struct vmaj_control *control, unsigned int slot, struct buffer_head **blocks, unsigned int count)
{
	struct afterimage_command *command = page_address(control->commands) + slot * AFTERIMAGE_SECTOR_BYTES;
	struct bio *bio = bio_alloc(control->disk.bdev, count + 1, REQ_OP_WRITE | JBD2_JOURNAL_REQ_FLAGS, GFP_NOFS);
	unsigned int i;

	command->crc = cpu_to_le32(vmaj_crc(command));
	bio->bi_iter.bi_sector = (VMAJ_FIRST_SLOT + slot) * VMAJ_SLOT_SECTORS;
	__bio_add_page(bio, control->commands, sizeof(*command), slot * sizeof(*command));
	for (i = 0; i < count; i++)
		__bio_add_page(bio, blocks[i]->b_page, blocks[i]->b_size, bh_offset(blocks[i]));
	control->sent[slot].control = control;
	bio->bi_private = &control->sent[slot];
	bio->bi_end_io = vmaj_end_command;
	atomic_inc(&control->under_way);
	submit_bio(bio);
}

static void vmaj_hold(struct vmaj_control *control)
{
	reinit_completion(&control->answered);
	atomic_set(&control->under_way, 1);
}

static void vmaj_wait(struct vmaj_control *control)
{
	if (!atomic_dec_and_test(&control->under_way))
		wait_for_completion_io(&control->answered);
}

/* Reads the answer in a slot of the control disk. */
static struct afterimage_answer *vmaj_read(struct vmaj_control *control, unsigned int slot)
{
	struct bio *bio = bio_alloc(control->disk.bdev, 1, REQ_OP_READ | REQ_SYNC | REQ_META, GFP_NOFS);
	struct afterimage_answer *answer = page_address(control->answer);
	int err;
	u32 crc;

	BUILD_BUG_ON(sizeof(*answer) != AFTERIMAGE_SECTOR_BYTES);
	bio->bi_iter.bi_sector = slot * VMAJ_SLOT_SECTORS;
	__bio_add_page(bio, control->answer, sizeof(*answer), 0);
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
static struct afterimage_answer *vmaj_ask(struct vmaj_control *control, int operation, __le64 block)
{
	struct afterimage_answer *answer;
	int try;

	for (try = 0; try < VMAJ_TRIES; try++) {
		vmaj_command(control, 0, operation)->block = block;
		vmaj_hold(control);
		vmaj_send(control, 0, NULL, 0);
		vmaj_wait(control);
		answer = vmaj_read(control, VMAJ_FIRST_SLOT);
		if (IS_ERR(answer) || le64_to_cpu(answer->tag) == control->tag)
			return answer;
	}
	return ERR_PTR(-EBUSY);
}

/* Blocks of these that one command can bring. */
static unsigned int vmaj_run(struct vmaj_control *control, struct buffer_head **blocks, unsigned int count)
{
	unsigned int max = min(count, vmaj_control_blocks(control));
	unsigned int run;

	for (run = 1; run < max; run++) {
		if (blocks[run]->b_blocknr != blocks[0]->b_blocknr + run)
			break;
	}
	return run;
}

/**
 * vmaj_control_hand_over - hand the blocks of a transaction over
 * @control: the control disk
 * @blocks: all of them, locked, with the commit block last
 * @count: how many
 *
 * Return: -1 when the last has been answered, or the slot of a command that was refused.
 */
int vmaj_control_hand_over(struct vmaj_control *control, struct buffer_head **blocks, unsigned int count)
{
	struct afterimage_command *command;
	unsigned int from = 0, run, sent, i;

	while (from < count) {
		vmaj_hold(control);
		for (sent = 0; from < count && sent < VMAJ_SLOTS; sent++) {
			run = vmaj_run(control, blocks + from, count - from);
			if (from + run == count) {
				/* The commit block: everything else has to be there. */
				if (sent)
					break;
				vext4_fault(VEXT4_FAULT_VMA_COMMIT);
			}
			command = vmaj_command(control, sent, AFTERIMAGE_MPROTECT);
			command->instance = cpu_to_le64(control->instance);
			command->sequence = cpu_to_le64(control->sequence + vmaj_spoils());
			command->blocks = cpu_to_le32(run);
			command->block = cpu_to_le64(blocks[from]->b_blocknr);
			vmaj_send(control, sent, blocks + from, run);
			from += run;
		}
		atomic64_add(sent, &control->commands_sent);
		vmaj_wait(control);
		for (i = 0; i < sent; i++) {
			if (control->sent[i].status)
				return i;
		}
	}
	return -1;
}

/**
 * vmaj_control_refusal - what the control disk says of a command that it refused
 * @control: the control disk
 * @slot: the command's
 * @err: where its error goes
 * @len: where the length of what is said goes: 0 where nothing is known of it
 *
 * Return: what is said, which is valid until the next question.
 */
const char *vmaj_control_refusal(struct vmaj_control *control, unsigned int slot, int *err, int *len)
{
	const struct afterimage_command *command = page_address(control->commands) + slot * AFTERIMAGE_SECTOR_BYTES;
	struct afterimage_answer *answer = vmaj_read(control, VMAJ_FIRST_SLOT + slot);

	*err = blk_status_to_errno(control->sent[slot].status);
	*len = 0;
	/* It may be another file system's by now. */
	if (IS_ERR(answer) || answer->tag != command->tag)
		return "";
	*len = vmaj_text_len(answer);
	return answer->text;
}

/**
 * vmaj_control_open - open a control disk that takes commits, and takes those of this file system
 * @control: zeroes
 * @path: where it is
 * @file_system: its UUID
 * @name: of the journal, for what is told
 * @exitless: it has to take what is published, too
 * @challenge: what was written to the journal's superblock, and the control disk has to see on its disk
 *
 * Return: 0, or an error, which has been told in a sentence; vmaj_control_close() is wanted after either.
 */
int vmaj_control_open(struct vmaj_control *control, const char *path, const u8 *file_system, const char *name,
		      bool exitless, __le64 challenge)
{
	struct afterimage_answer *answer;
	struct request_queue *queue;
	int err;

	init_completion(&control->answered);
	memcpy(control->file_system, file_system, sizeof(control->file_system));
	control->tag = ktime_get_real_ns();
	control->commands = alloc_page(GFP_KERNEL);
	control->answer = alloc_page(GFP_KERNEL);
	if (!control->commands || !control->answer)
		return -ENOMEM;
	err = vmaj_disk_open(&control->disk, path);
	if (err) {
		pr_err("%s: data=vma: there is no control disk at %s (error %d): name one by vma_disk=, or mount with data=journal\n",
		       name, path, err);
		return err;
	}
	answer = vmaj_read(control, 0);
	if (IS_ERR(answer) || (le64_to_cpu(answer->operations) & VMAJ_NEEDED) != VMAJ_NEEDED) {
		pr_err("%s: data=vma: %s is no control disk that takes commits\n", name, path);
		return -ENODEV;
	}
	if (!(le64_to_cpu(answer->operations) & BIT_ULL(AFTERIMAGE_CHALLENGE))) {
		pr_err("%s: data=vma: %s does not know this file system from a copy: its daemon is older than vext4\n",
		       name, path);
		return -EOPNOTSUPP;
	}
	if (exitless && !(le64_to_cpu(answer->operations) & BIT_ULL(AFTERIMAGE_LEND))) {
		pr_err("%s: vma_exitless: %s takes no commits that are published\n", name, path);
		return -EOPNOTSUPP;
	}
	/* A command and its blocks are one request. So is the read by which memory is lent. */
	queue = bdev_get_queue(control->disk.bdev);
	control->blocks_max = min3((unsigned int)AFTERIMAGE_BLOCKS_MAX, queue_max_segments(queue) - 1U,
				   (queue_max_sectors(queue) - 1) / (AFTERIMAGE_BLOCK_BYTES / AFTERIMAGE_SECTOR_BYTES));
	/* A descriptor and a commit block. */
	if (control->blocks_max < 2) {
		pr_err("%s: data=vma: %s takes requests of %u KiB in %u segments: a commit needs 12 in 3\n",
		       name, path, queue_max_sectors(queue) / 2, queue_max_segments(queue));
		return -EOPNOTSUPP;
	}
	answer = vmaj_ask(control, AFTERIMAGE_INIT, challenge);
	if (IS_ERR(answer)) {
		pr_err("%s: data=vma: %s does not answer (error %ld)\n", name, path, PTR_ERR(answer));
		return PTR_ERR(answer);
	}
	if (le16_to_cpu(answer->status) != AFTERIMAGE_DONE) {
		pr_err("%s: data=vma: the control disk does not take this journal's commits: %.*s\n",
		       name, vmaj_text_len(answer), answer->text);
		return -EOPNOTSUPP;
	}
	control->instance = le64_to_cpu(answer->instance);
	control->sequence = le64_to_cpu(answer->sequence);
	return 0;
}

/**
 * vmaj_control_clean_up - tell the control disk that no commits will come any more
 * @control: the control disk
 * @name: of the journal, for what is told
 *
 * Nothing depends on it: what is retained goes home by itself.
 */
void vmaj_control_clean_up(struct vmaj_control *control, const char *name)
{
	struct afterimage_answer *answer = vmaj_ask(control, AFTERIMAGE_CLEANUP, 0);

	if (IS_ERR(answer))
		pr_info("%s: the control disk does not answer (error %ld)\n", name, PTR_ERR(answer));
	else if (le16_to_cpu(answer->status) != AFTERIMAGE_DONE)
		pr_info("%s: %.*s\n", name, vmaj_text_len(answer), answer->text);
}

/**
 * vmaj_control_close - let a control disk go
 * @control: one that was opened, or was not
 */
void vmaj_control_close(struct vmaj_control *control)
{
	vmaj_disk_close(&control->disk);
	if (control->commands)
		__free_page(control->commands);
	if (control->answer)
		__free_page(control->answer);
}
