// SPDX-License-Identifier: GPL-2.0
/*
 * iJournaling: what of an inode is not committed, and what replay could not reproduce.
 *
 * All of it is stamped with the transaction that did it, and counts until that one is committed: nothing has to be
 * cleared by a commit. Names and inode numbers that are given up have a place by transaction, and make room for the
 * one after the next. Replay adds to the last committed state what an i-transaction says. So whatever takes a name, an
 * inode number or a link away, or shares what is not in the inode, is a reason for a normal commit as long as it is not
 * committed itself. What one and the same transaction has made and taken away never was in a committed state.
 *
 * An inode that leaves memory takes its state along. When it is read again it may be uncommitted only where the block
 * that it is read from belongs to a transaction: names, links and extents do not change without their inode.
 */

#include <linux/bitmap.h>
#include <linux/hash.h>
#include <linux/stringhash.h>
#include "ext4_jbd2.h"
#include "ext4_extents.h"
#include "ijournal.h"
#include "ijournal_fs.h"

static struct ij_inode *ij_of(struct inode *inode)
{
	return &EXT4_I(inode)->i_ij;
}

/* What handle works for; without one, the transaction that would be meant now. */
static u32 ij_tid(struct super_block *sb, handle_t *handle)
{
	journal_t *journal = EXT4_SB(sb)->s_journal;
	u32 tid;

	if (!IS_ERR_OR_NULL(handle) && ext4_handle_valid(handle) && handle->h_transaction)
		return handle->h_transaction->t_tid;
	read_lock(&journal->j_state_lock);
	tid = journal->j_running_transaction ? journal->j_running_transaction->t_tid : journal->j_transaction_sequence;
	read_unlock(&journal->j_state_lock);
	return tid;
}

/* Whether it is one's business at all: without a mount option, or a journal, nothing is noted. */
static struct ij_fs *ij_notes(struct inode *inode)
{
	struct ij_fs *ij = EXT4_SB(inode->i_sb)->s_ij;

	return ij && (S_ISREG(inode->i_mode) || S_ISDIR(inode->i_mode)) ? ij : NULL;
}

static void ij_set(struct ij_stamp *stamp, u32 tid)
{
	if (!stamp->set || tid_gt(tid, stamp->tid))
		stamp->tid = tid;
	stamp->set = true;
}

/* An inode's next fsyncs commit, until this transaction is committed. */
static void ij_normal(struct inode *inode, u32 tid, enum ij_outcome why)
{
	struct ij_inode *state = ij_of(inode);

	spin_lock(&state->lock);
	ij_set(&state->normal, tid);
	state->why = why;
	spin_unlock(&state->lock);
}

/**
 * ij_exchanges - blocks change their owners, or move within them: nothing is logged until that is committed
 * @sb: the file system
 * @handle: what does it, or NULL
 */
void ij_exchanges(struct super_block *sb, handle_t *handle)
{
	struct ij_fs *ij = EXT4_SB(sb)->s_ij;
	u32 tid;

	if (!ij)
		return;
	tid = ij_tid(sb, handle);
	spin_lock(&ij->gone_lock);
	ij_set(&ij->exchanged, tid);
	spin_unlock(&ij->gone_lock);
}

static u64 ij_name_key(struct inode *dir, const char *name, unsigned int len)
{
	return (u64)dir->i_ino << 32 | full_name_hash(NULL, name, len);
}

/**
 * ij_forget - what a transaction has given up is committed, or nobody asks any more
 * @ij: the file system
 * @gone: what it was, to which nobody adds
 *
 * Whoever looked at the journal long ago may still be searching it.
 */
void ij_forget(struct ij_fs *ij, struct ij_gone *gone)
{
	struct hlist_node *next;
	struct hlist_head names;
	struct ij_name *name;
	unsigned long group;
	void *bits;
	int bucket;

	for (bucket = 0; bucket < HASH_SIZE(gone->names); bucket++) {
		spin_lock(&ij->gone_lock);
		hlist_move_list(&gone->names[bucket], &names);
		spin_unlock(&ij->gone_lock);
		hlist_for_each_entry_safe(name, next, &names, node)
			kfree(name);
		cond_resched();
	}
	xa_for_each(&gone->numbers, group, bits) {
		spin_lock(&ij->gone_lock);
		xa_erase(&gone->numbers, group);
		spin_unlock(&ij->gone_lock);
		bitmap_free(bits);
	}
	gone->names_count = 0;
}

/*
 * Where a running transaction's are. What the one before the last has given up is in the same place, and committed; or
 * the journal was aborted, and there is no place.
 */
static struct ij_gone *ij_gone_by(struct ij_fs *ij, u32 tid)
{
	struct ij_gone *gone = &ij->gone[tid % IJ_GONE];
	bool free = true;

	/* Pairs with the release below: it is empty by then. */
	if (smp_load_acquire(&gone->tid) == tid)
		return gone;
	mutex_lock(&ij->gone_mutex);
	if (gone->tid != tid) {
		free = !tid_gt(gone->tid, ij_committed(ij)) || (!gone->names_count && xa_empty(&gone->numbers));
		if (free) {
			ij_forget(ij, gone);
			/* Whoever sees it finds nothing else's there. */
			smp_store_release(&gone->tid, tid);
		}
	}
	mutex_unlock(&ij->gone_mutex);
	return free ? gone : NULL;
}

static void ij_name_add(struct ij_fs *ij, u64 key, u32 tid)
{
	struct ij_name *name = kmalloc(sizeof(*name), GFP_NOFS);
	struct ij_gone *gone = ij_gone_by(ij, tid);

	spin_lock(&ij->gone_lock);
	if (name && gone && gone->names_count < IJ_NAMES_MAX) {
		name->key = key;
		hash_add(gone->names, &name->node, key);
		gone->names_count++;
		name = NULL;
	} else {
		/* Nobody can tell what it was. */
		ij_set(&ij->exchanged, tid);
	}
	spin_unlock(&ij->gone_lock);
	kfree(name);
}

/* Was it given up by a transaction that is not committed? */
static bool ij_name_is_gone(struct ij_fs *ij, u64 key)
{
	u32 committed = ij_committed(ij);
	struct ij_gone *gone;
	struct ij_name *name;
	bool found = false;

	spin_lock(&ij->gone_lock);
	for (gone = ij->gone; gone < ij->gone + IJ_GONE; gone++) {
		if (!tid_gt(READ_ONCE(gone->tid), committed))
			continue;
		hash_for_each_possible(gone->names, name, node, key)
			found |= name->key == key;
	}
	spin_unlock(&ij->gone_lock);
	return found;
}

/* A group's bitmap of numbers; NULL where there is no memory. */
static unsigned long *ij_number_bits(struct ij_fs *ij, struct ij_gone *gone, unsigned long group)
{
	unsigned long *bits = xa_load(&gone->numbers, group), *fresh;

	if (bits)
		return bits;
	fresh = bitmap_zalloc(EXT4_INODES_PER_GROUP(ij->sb), GFP_NOFS);
	if (!fresh)
		return NULL;
	bits = xa_cmpxchg(&gone->numbers, group, NULL, fresh, GFP_NOFS);
	if (!bits)
		return fresh;
	bitmap_free(fresh);
	return xa_is_err(bits) ? NULL : bits;
}

static void ij_number_add(struct ij_fs *ij, unsigned long ino, u32 tid)
{
	struct ij_gone *gone = ij_gone_by(ij, tid);
	unsigned long *bits = NULL;

	if (gone)
		bits = ij_number_bits(ij, gone, (ino - 1) / EXT4_INODES_PER_GROUP(ij->sb));
	if (bits) {
		set_bit((ino - 1) % EXT4_INODES_PER_GROUP(ij->sb), bits);
		return;
	}
	spin_lock(&ij->gone_lock);
	ij_set(&ij->exchanged, tid);
	spin_unlock(&ij->gone_lock);
}

/* The next number of a group, from that one on, that no transaction which is not committed has given up. */
static unsigned long ij_number_from(struct ij_fs *ij, unsigned long group, unsigned long bit)
{
	unsigned long end = EXT4_INODES_PER_GROUP(ij->sb), from, *bits;
	u32 committed = ij_committed(ij);
	struct ij_gone *gone;

	spin_lock(&ij->gone_lock);
	do {
		from = bit;
		for (gone = ij->gone; gone < ij->gone + IJ_GONE; gone++) {
			bits = tid_gt(READ_ONCE(gone->tid), committed) ? xa_load(&gone->numbers, group) : NULL;
			if (bits)
				bit = find_next_zero_bit(bits, end, bit);
		}
	} while (bit != from);
	spin_unlock(&ij->gone_lock);
	return bit;
}

/**
 * ij_init_inode - an inode in memory that nothing is known of
 * @state: what will be
 */
void ij_init_inode(struct ij_inode *state)
{
	memset(state, 0, sizeof(*state));
	spin_lock_init(&state->lock);
}

/**
 * ij_destroy_inode - an inode leaves memory
 * @state: what was known of it
 */
void ij_destroy_inode(struct ij_inode *state)
{
	kfree(state->extents);
	kfree(state->body);
}

/**
 * ij_loaded - an inode was read
 * @inode: the inode
 * @bh: the block that it is in
 */
void ij_loaded(struct inode *inode, struct buffer_head *bh)
{
	struct journal_head *jh;

	if (!ij_notes(inode))
		return;
	jh = jbd2_journal_grab_journal_head(bh);
	if (!jh)
		return;
	if (READ_ONCE(jh->b_transaction) || READ_ONCE(jh->b_next_transaction))
		ij_normal(inode, EXT4_I(inode)->i_sync_tid, IJ_READ_BACK);
	jbd2_journal_put_journal_head(jh);
}

/**
 * ij_born - a new inode has its number
 * @handle: what makes it
 * @inode: the inode
 */
void ij_born(handle_t *handle, struct inode *inode)
{
	struct ij_fs *ij = ij_notes(inode);
	u32 tid;

	if (!ij)
		return;
	tid = ij_tid(inode->i_sb, handle);
	ij_set(&ij_of(inode)->born, tid);
	if (ij_number_is_gone(inode->i_sb, (inode->i_ino - 1) / EXT4_INODES_PER_GROUP(inode->i_sb),
			      (inode->i_ino - 1) % EXT4_INODES_PER_GROUP(inode->i_sb)))
		ij_normal(inode, tid, IJ_INODE_REUSE);
}

/**
 * ij_number_is_gone - was an inode's number given up by a transaction that is not committed?
 * @sb: the file system
 * @group: its group
 * @bit: which of the group's
 *
 * Whoever got it could not be logged: so it is given out last.
 */
bool ij_number_is_gone(struct super_block *sb, u32 group, unsigned long bit)
{
	struct ij_fs *ij = EXT4_SB(sb)->s_ij;

	return ij && ij_number_from(ij, group, bit) != bit;
}

/**
 * ij_next_number - where to look for a number behind one that is not to be given out
 * @sb: the file system
 * @group: its group
 * @bit: which of the group's
 */
unsigned long ij_next_number(struct super_block *sb, u32 group, unsigned long bit)
{
	struct ij_fs *ij = EXT4_SB(sb)->s_ij;

	return ij ? ij_number_from(ij, group, bit + 1) : bit + 1;
}

/**
 * ij_inode_freed - an inode's number is given up
 * @handle: what does it
 * @inode: the inode
 */
void ij_inode_freed(handle_t *handle, struct inode *inode)
{
	struct ij_fs *ij = EXT4_SB(inode->i_sb)->s_ij;
	struct ij_stamp born = ij_of(inode)->born;
	u32 tid;

	if (!ij)
		return;
	tid = ij_tid(inode->i_sb, handle);
	/* What the same transaction has made was free before. A directory's run may be what a file is found by. */
	if (!born.set || born.tid != tid || (S_ISDIR(inode->i_mode) && ij_of(inode)->captured))
		ij_number_add(ij, inode->i_ino, tid);
}

/**
 * ij_changes - an inode's block is about to be changed
 * @handle: what does it
 * @inode: the inode, its i_raw_lock held
 * @raw: as it was before; zeroes if it is new
 */
void ij_changes(handle_t *handle, struct inode *inode, struct ext4_inode *raw)
{
	const u32 layout = EXT4_EXTENTS_FL | EXT4_INLINE_DATA_FL | EXT4_EA_INODE_FL | EXT4_JOURNAL_DATA_FL |
			   EXT4_ENCRYPT_FL | EXT4_VERITY_FL;
	struct ij_inode *state = ij_of(inode);
	u64 acl;
	u32 tid;
	u16 links;

	if (!ij_notes(inode))
		return;
	tid = ij_tid(inode->i_sb, handle);
	ij_set(&state->raw, tid);
	acl = le32_to_cpu(raw->i_file_acl_lo) | (u64)le16_to_cpu(raw->i_file_acl_high) << 32;
	if (acl != EXT4_I(inode)->i_file_acl)
		ij_normal(inode, tid, IJ_XATTR_BLOCK);
	if (ext4_test_inode_state(inode, EXT4_STATE_NEW))
		return;
	if ((le32_to_cpu(raw->i_flags) ^ EXT4_I(inode)->i_flags) & layout ||
	    le32_to_cpu(raw->i_generation) != inode->i_generation)
		ij_normal(inode, tid, IJ_LAYOUT);
	links = le16_to_cpu(raw->i_links_count);
	if (S_ISREG(inode->i_mode) && links != inode->i_nlink && inode->i_nlink &&
	    !(links == 0 && state->born.set && state->born.tid == tid))
		ij_normal(inode, tid, IJ_HARD_LINK);
}

/**
 * ij_entry_added - a name is about to be entered into its directory
 * @handle: what does it
 * @dentry: the name
 * @inode: what it names
 */
void ij_entry_added(handle_t *handle, struct dentry *dentry, struct inode *inode)
{
	struct ij_fs *ij = ij_notes(inode);
	struct ij_inode *state = ij_of(inode);
	bool first;
	u32 tid;

	if (!ij)
		return;
	tid = ij_tid(inode->i_sb, handle);
	spin_lock(&state->lock);
	first = state->born.set && state->born.tid == tid && !state->entry.set;
	if (first)
		ij_set(&state->entry, tid);
	spin_unlock(&state->lock);
	if (!first)
		ij_normal(inode, tid, IJ_HARD_LINK);
	else if (ij_name_is_gone(ij, ij_name_key(d_inode(dentry->d_parent), dentry->d_name.name, dentry->d_name.len)))
		ij_normal(inode, tid, IJ_NAME_REUSE);
}

/**
 * ij_entry_removed - a name is about to be taken out of its directory
 * @handle: what does it
 * @dir: the directory
 * @entry: the name
 */
void ij_entry_removed(handle_t *handle, struct inode *dir, struct ext4_dir_entry_2 *entry)
{
	struct ij_fs *ij = ij_notes(dir);
	struct ij_inode *state;
	struct inode *inode;
	bool passing = false;
	u32 tid;

	if (!ij)
		return;
	tid = ij_tid(dir->i_sb, handle);
	/*
	 * The same transaction has entered it, as the only name of what it has made, which is gone for good with it. A
	 * directory with a run is not: a file that has left it since is found under it until that is committed.
	 */
	rcu_read_lock();
	inode = find_inode_by_ino_rcu(dir->i_sb, le32_to_cpu(entry->inode));
	if (inode && ij_notes(inode)) {
		state = ij_of(inode);
		spin_lock(&state->lock);
		passing = state->entry.set && state->entry.tid == tid &&
			  !(state->normal.set && state->normal.tid == tid) &&
			  !(S_ISDIR(inode->i_mode) && state->captured);
		spin_unlock(&state->lock);
	}
	rcu_read_unlock();
	if (!passing)
		ij_name_add(ij, ij_name_key(dir, entry->name, entry->name_len), tid);
}

/**
 * ij_renamed - an inode has got another name
 * @handle: what does it
 * @inode: the inode; its old name is still in its directory, or was replaced
 */
void ij_renamed(handle_t *handle, struct inode *inode)
{
	if (ij_notes(inode))
		ij_normal(inode, ij_tid(inode->i_sb, handle), IJ_RENAME);
}

/**
 * ij_xattr_changes - an inode's attributes are about to change
 * @handle: what does it
 * @inode: the inode; those in its body are in its i-transactions
 */
void ij_xattr_changes(handle_t *handle, struct inode *inode)
{
	if (ij_notes(inode) && EXT4_I(inode)->i_file_acl)
		ij_normal(inode, ij_tid(inode->i_sb, handle), IJ_XATTR_BLOCK);
}

/**
 * ij_orphan_added - an inode is about to go onto the orphan list
 * @handle: what does it
 * @inode: the inode
 */
void ij_orphan_added(handle_t *handle, struct inode *inode)
{
	if (ij_notes(inode) && !ext4_inode_orphan_tracked(inode))
		ij_set(&ij_of(inode)->orphan, ij_tid(inode->i_sb, handle));
}

/**
 * ij_orphan_removed - an inode is about to leave the orphan list
 * @handle: what does it, or NULL
 * @inode: the inode
 *
 * One that is on the committed list would have to be taken off by the replay.
 */
void ij_orphan_removed(handle_t *handle, struct inode *inode)
{
	struct ij_stamp added;
	u32 tid;

	if (!ij_notes(inode) || !ext4_inode_orphan_tracked(inode))
		return;
	tid = ij_tid(inode->i_sb, handle);
	added = ij_of(inode)->orphan;
	if (!added.set || added.tid != tid)
		ij_normal(inode, tid, IJ_ORPHAN);
}

/* Room for one more extent block, without those that are committed by now; false where no memory is to be had. */
static bool ij_extents_room(struct ij_inode *state, u32 committed)
{
	unsigned int room = max(4U, state->extents_room * 2), kept = 0, at;
	struct ij_extent *extents;

	for (at = 0; at < state->extents_count; at++)
		if (tid_gt(state->extents[at].tid, committed))
			state->extents[kept++] = state->extents[at];
	state->extents_count = kept;
	if (kept < state->extents_room)
		return true;
	extents = krealloc(state->extents, room * sizeof(*extents), GFP_ATOMIC | __GFP_NOWARN);
	if (!extents)
		return false;
	state->extents = extents;
	state->extents_room = room;
	return true;
}

/**
 * ij_metadata_dirty - a block of an inode's metadata is changed
 * @handle: what does it
 * @inode: whose
 * @bh: the block; only those of an extent tree are of interest
 */
void ij_metadata_dirty(handle_t *handle, struct inode *inode, struct buffer_head *bh)
{
	struct ij_inode *state = ij_of(inode);
	unsigned int at;
	u32 tid;

	if (!ij_notes(inode) || !S_ISREG(inode->i_mode) || ext_block_hdr(bh)->eh_magic != EXT4_EXT_MAGIC)
		return;
	tid = ij_tid(inode->i_sb, handle);
	spin_lock(&state->lock);
	for (at = 0; at < state->extents_count; at++)
		if (state->extents[at].block == bh->b_blocknr)
			break;
	if (at == state->extents_count) {
		if (at == state->extents_room && !ij_extents_room(state, ij_committed(EXT4_SB(inode->i_sb)->s_ij))) {
			ij_set(&state->normal, tid);
			state->why = IJ_NO_MEMORY;
			goto out;
		}
		at = state->extents_count++;
		state->extents[at].block = bh->b_blocknr;
	}
	state->extents[at].tid = tid;
	state->tree_changes++;
out:
	spin_unlock(&state->lock);
}

/**
 * ij_block_freed - a block is given up
 * @inode: whose it was
 * @block: which
 */
void ij_block_freed(struct inode *inode, u64 block)
{
	struct ij_inode *state = ij_of(inode);
	unsigned int at;

	if (!READ_ONCE(state->extents_count))
		return;
	spin_lock(&state->lock);
	state->tree_changes++;
	for (at = 0; at < state->extents_count; at++)
		if (state->extents[at].block == block)
			state->extents[at--] = state->extents[--state->extents_count];
	spin_unlock(&state->lock);
}

/**
 * ij_allows - may an inode be logged, as far as it is known in memory?
 * @inode: the inode
 * @committed: the last transaction that is
 *
 * Return: IJ_WRITTEN, or why not.
 */
enum ij_outcome ij_allows(struct inode *inode, u32 committed)
{
	struct ij_fs *ij = EXT4_SB(inode->i_sb)->s_ij;
	struct ij_inode *state = ij_of(inode);
	enum ij_outcome outcome = IJ_WRITTEN;

	spin_lock(&state->lock);
	if (ij_open(state->normal, committed))
		outcome = state->why;
	spin_unlock(&state->lock);
	if (outcome != IJ_WRITTEN)
		return outcome;
	/* Seldom set, and then by a handle that ended before anybody could ask for what it did. */
	if (READ_ONCE(ij->exchanged.set)) {
		spin_lock(&ij->gone_lock);
		if (ij_open(ij->exchanged, committed))
			outcome = IJ_EXCHANGED;
		spin_unlock(&ij->gone_lock);
	}
	if (outcome == IJ_WRITTEN && S_ISREG(inode->i_mode) && ext4_inode_orphan_tracked(inode))
		outcome = IJ_ORPHAN;
	return outcome;
}
