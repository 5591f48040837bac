/* SPDX-License-Identifier: GPL-2.0 */
/*
 * iJournaling: what its own parts share. See ijournal.h.
 */
#ifndef _IJOURNAL_FS_H
#define _IJOURNAL_FS_H

#include <linux/completion.h>
#include <linux/faults.h>
#include <linux/hashtable.h>
#include <linux/mutex.h>
#include <linux/percpu-rwsem.h>
#include <linux/xarray.h>
#include "ext4_jbd2.h"
#include "ijournal_format.h"

/* Runs of one fsync: directories from the topmost down, and the file. */
#define IJ_RUNS_MAX 17
/* Writes of one area whose blocks are not told apart any more when there are more. */
#define IJ_MARKS 32
/* Names that one transaction gives up and that are remembered. */
#define IJ_NAMES_MAX 65536
/* At most two transactions are not committed: the running one, and the one before it. Each has its place. */
#define IJ_GONE 2

/* One run of an fsync, as it will be written. */
struct ij_run {
	unsigned int block;
	unsigned int blocks;
	u32 tid;
};

/**
 * struct ij_batch - all runs of an fsync, one behind the other
 * @bytes: what is written
 * @blocks: its length
 * @count: how many runs
 * @runs: each
 * @first: their first block in the area, when they have blocks
 * @mark: the area's mark that these are counted in
 * @link: with the others of their group
 * @turn: the group was written, or the fsync is to write the next one
 * @ended: the former
 * @outcome: what came of it
 */
struct ij_batch {
	u8 *bytes;
	unsigned int blocks;
	unsigned int count;
	struct ij_run runs[IJ_RUNS_MAX];
	unsigned int first;
	unsigned int mark;
	struct list_head link;
	struct completion turn;
	bool ended;
	enum ij_outcome outcome;
};

/* Blocks of an area that are free again when a transaction is committed and their write has ended. */
struct ij_mark {
	u32 tid;
	unsigned int blocks;
	unsigned int writing;
};

/**
 * struct ij_area - a circular area, of every so many CPUs
 * @lock: protects all of it
 * @head: the next block
 * @used: blocks before it that may be needed
 * @oldest: the first mark
 * @marks_count: how many there are
 * @marks: what the used blocks are, in order
 * @waiting: batches that no group has taken yet
 * @groups: how many are being written, or have a leader who is on the way
 * @sub_id: for tests: a sub-transaction id of its own
 */
struct ij_area {
	spinlock_t lock; /* all of it */
	unsigned int head;
	unsigned int used;
	unsigned int oldest;
	unsigned int marks_count;
	struct ij_mark marks[IJ_MARKS];
	struct list_head waiting;
	unsigned int groups;
	atomic64_t sub_id;
} ____cacheline_aligned_in_smp;

/* A name that was given up: whoever gets it next is not replayed. */
struct ij_name {
	struct hlist_node node;
	u64 key;
};

/**
 * struct ij_gone - what one transaction has given up
 * @tid: the transaction
 * @names_count: how many names
 * @names: each
 * @numbers: by group, a bitmap of inode numbers
 */
struct ij_gone {
	u32 tid;
	unsigned int names_count;
	DECLARE_HASHTABLE(names, 12);
	struct xarray numbers;
};

/**
 * struct ij_fs - a mounted file system with iJournaling
 * @sb: the file system
 * @file: the areas' file
 * @blocks: where its blocks are
 * @areas: how many
 * @area_blocks: blocks of each
 * @area: each
 * @header: the areas' header
 * @epoch_lock: held by whoever writes runs of an epoch, and alone to begin another one
 * @epoch: whose runs are valid
 * @epochs: how many there were in this mount
 * @first_tid: the first transaction that was not committed when it began
 * @sub_id: the last sub-transaction id
 * @coming_lock: protects what follows
 * @coming: fsyncs that write data, the oldest first
 * @coming_number: how many there were
 * @came: the oldest has ended
 * @exchanged: blocks were exchanged between files
 * @gone_mutex: held to make room for a transaction
 * @gone_lock: protects what follows
 * @gone: names and inode numbers that are not free yet, by transaction
 * @outcomes: fsyncs by how they were served
 * @grouped: fsyncs whose runs went out in another's request
 * @runs: runs that were written
 * @run_blocks: their blocks
 * @dir_runs: for tests: those of directories
 * @dir_blocks: for tests: blocks of directories that were not committed then
 */
struct ij_fs {
	struct super_block *sb;
	struct inode *file;
	u64 *blocks;
	unsigned int areas;
	unsigned int area_blocks;
	struct ij_area *area;
	struct ijournal_areas *header;
	struct percpu_rw_semaphore epoch_lock;
	u8 epoch[16];
	u64 epochs;
	u32 first_tid;
	atomic64_t sub_id ____cacheline_aligned_in_smp;
	spinlock_t coming_lock; /* what follows */
	struct list_head coming;
	u64 coming_number;
	wait_queue_head_t came;
	struct ij_stamp exchanged;
	struct mutex gone_mutex; /* makes room for a transaction */
	spinlock_t gone_lock; /* names, numbers, and what was exchanged */
	struct ij_gone gone[IJ_GONE];
	atomic64_t outcomes[IJ_OUTCOMES];
	atomic64_t grouped;
	atomic64_t runs;
	atomic64_t run_blocks;
	atomic64_t dir_runs;
	atomic64_t dir_blocks;
};

/*
 * The last transaction that is known to be committed. The journal counts one on whose commit it was aborted, too, and
 * aborts before it counts: so it is asked afterwards. Of an aborted one nothing is known but what the epoch began with.
 */
static inline u32 ij_committed(struct ij_fs *ij)
{
	journal_t *journal = EXT4_SB(ij->sb)->s_journal;
	u32 tid = READ_ONCE(journal->j_commit_sequence);

	/* Pairs with j_state_lock, which is taken to abort and again to count. */
	smp_rmb();
	if (is_journal_aborted(journal) && !vext4_without(VEXT4_PART_IJOURNAL_ABORTED))
		return READ_ONCE(ij->first_tid) - 1;
	return tid;
}

/* Is something not durable by commits up to that one? */
static inline bool ij_open(struct ij_stamp stamp, u32 committed)
{
	return stamp.set && tid_gt(stamp.tid, committed);
}

/* ijournal_state.c */
void ij_forget(struct ij_fs *ij, struct ij_gone *gone);
enum ij_outcome ij_allows(struct inode *inode, u32 committed);

/* ijournal_logged.c */
void ij_captured(struct inode *inode, u64 sub_id);
void ij_logged(struct inode *inode, struct ij_batch *batch);
bool ij_is_logged(struct inode *inode, bool datasync);

/* ijournal_area.c */
const char *ij_read_areas(struct ij_fs *ij);
const char *ij_begin_epoch(struct ij_fs *ij);
bool ij_epoch_is_over(struct ij_fs *ij, u32 tid);
bool ij_renew_epoch(struct ij_fs *ij);
bool ij_has_space(struct ij_fs *ij);
void ij_place(struct ij_fs *ij, struct ij_area *area, struct list_head *group, struct list_head *without_room);
void ij_placed(struct ij_area *area, struct ij_batch *batch);

/* ijournal_group.c */
enum ij_outcome ij_write(struct ij_fs *ij, struct ij_area *area, struct ij_batch *batch);

#endif
