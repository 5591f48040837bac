// SPDX-License-Identifier: GPL-2.0
/*
 * A journaling mode for each file (Journaling of Journal Is (Almost) Free, FAST 2014, § 2.2).
 *
 *   default   what the mount says
 *   data      data goes through the journal: the attribute that chattr +j sets, here also under delayed allocation
 *   ordered   data goes home before what refers to it is committed, also where the mount journals all data
 *
 * A folder's mode is that of the files and folders that are made in it from then on.
 *
 * A file's data is in the journal or it is not, by one rule at any time. Replay would otherwise put what transaction T1
 * journaled over what T2 had written home:
 *
 *  - of one file. A switch away from the journal empties it, with nobody writing: the pages that mappings have changed
 *    are journaled, all is committed and written home. A file without data that was never written back has nothing in
 *    the journal that a replay could bring, and is switched at once; so is one that is switched towards the journal,
 *    whose data is written home first.
 *  - of two files, one after the other in the same block. A block whose content was journaled is revoked when it is
 *    freed. The stock kernel does so where the mount does not journal all data; here it is done there, too. Its room in
 *    the handle is asked for in each case.
 *
 * On disk data is the file system's own attribute. Ordered is an attribute in the inode's body, in the name space that
 * programs cannot write: it changes only by a switch, and no copy of a file brings it along. A stock kernel and e2fsck
 * see an attribute that means nothing to them; the journal is empty when they mount.
 */

#include <linux/faults.h>
#include <linux/mount.h>
#include "ext4_jbd2.h"
#include "xattr.h"
#include "file_mode.h"
#include "series.h"
#include "single_io_fs.h"

#define FM_XATTR_INDEX EXT4_XATTR_INDEX_SYSTEM
#define FM_XATTR_NAME "journaling"
#define FM_XATTR_VALUE "ordered"
#define FM_XATTR_BYTES (sizeof(FM_XATTR_VALUE) - 1)

/**
 * fm_ordered - was this file excepted from the journal?
 * @inode: the file
 */
bool fm_ordered(struct inode *inode)
{
	return S_ISREG(inode->i_mode) && READ_ONCE(EXT4_I(inode)->i_fm_ordered);
}

/* Whether a file's data is journaled if its flags are these. */
static bool fm_would_journal(struct inode *inode, bool data, bool ordered)
{
	if (!S_ISREG(inode->i_mode) || ext4_test_inode_flag(inode, EXT4_INODE_EA_INODE))
		return true;
	return !ordered && (data || test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_JOURNAL_DATA);
}

/**
 * fm_journals_data - is what this inode holds journaled, unless it is encrypted?
 * @inode: any inode
 */
bool fm_journals_data(struct inode *inode)
{
	return fm_would_journal(inode, ext4_test_inode_flag(inode, EXT4_INODE_JOURNAL_DATA),
				READ_ONCE(EXT4_I(inode)->i_fm_ordered));
}

/**
 * fm_revokes - must replay not bring back what a block holds that is being freed?
 * @inode: whose block it is
 * @is_metadata: it holds metadata
 */
bool fm_revokes(struct inode *inode, int is_metadata)
{
	if (vext4_without(VEXT4_PART_REVOKE) && test_opt(inode->i_sb, DATA_FLAGS) == EXT4_MOUNT_JOURNAL_DATA)
		return false;
	return is_metadata || ext4_should_journal_data(inode);
}

static int fm_mode(struct inode *inode)
{
	if (READ_ONCE(EXT4_I(inode)->i_fm_ordered))
		return VEXT4_JOURNALING_ORDERED;
	return ext4_test_inode_flag(inode, EXT4_INODE_JOURNAL_DATA) ? VEXT4_JOURNALING_DATA : VEXT4_JOURNALING_DEFAULT;
}

static bool fm_stored(struct inode *inode)
{
	return ext4_xattr_ibody_get(inode, FM_XATTR_INDEX, FM_XATTR_NAME, NULL, 0) >= 0;
}

/**
 * fm_refuses_swap - must a file keep its blocks?
 * @inode: a file that is to exchange them with the boot loader's inode, locked
 *
 * The stock kernel asks for the attribute alone. An ordered file would get blocks whose content a mount with
 * data=journal has in the journal, and replay would put it over what the file writes there.
 */
bool fm_refuses_swap(struct inode *inode)
{
	return ext4_test_inode_flag(inode, EXT4_INODE_JOURNAL_DATA) ||
	       (READ_ONCE(EXT4_I(inode)->i_fm_ordered) && !vext4_without(VEXT4_PART_SWAP_RULE));
}

/**
 * fm_load - take over what an inode says that has been read
 * @inode: the inode, with all of its body known
 */
void fm_load(struct inode *inode)
{
	/* A stock kernel may have been told to journal its data since. */
	if ((S_ISREG(inode->i_mode) || S_ISDIR(inode->i_mode)) &&
	    !ext4_test_inode_flag(inode, EXT4_INODE_JOURNAL_DATA))
		EXT4_I(inode)->i_fm_ordered = fm_stored(inode);
}

/**
 * fm_inherit_credits - what a handle needs for a new inode's mode
 * @dir: where it is made
 */
int fm_inherit_credits(struct inode *dir)
{
	if (!READ_ONCE(EXT4_I(dir)->i_fm_ordered))
		return 0;
	return __ext4_xattr_set_credits(dir->i_sb, NULL, NULL, FM_XATTR_BYTES, true);
}

/**
 * fm_inherit - give a new inode its folder's mode
 * @handle: what it is made in
 * @dir: where
 * @inode: the inode; the attribute of data=journal it has already
 *
 * Where its body has no room left it has the mode as long as it stays in memory: losing it leads to the journal.
 */
void fm_inherit(handle_t *handle, struct inode *dir, struct inode *inode)
{
	if (!READ_ONCE(EXT4_I(dir)->i_fm_ordered) || !(S_ISREG(inode->i_mode) || S_ISDIR(inode->i_mode)))
		return;
	EXT4_I(inode)->i_fm_ordered = true;
	ext4_xattr_set_handle(handle, inode, FM_XATTR_INDEX, FM_XATTR_NAME, FM_XATTR_VALUE, FM_XATTR_BYTES,
			      XATTR_CREATE);
}

/**
 * fm_written - pages of a file are about to be written back
 * @inode: the file
 */
void fm_written(struct inode *inode)
{
	WRITE_ONCE(EXT4_I(inode)->i_fm_written, true);
}

/* Nothing of it is in the page cache, on disk, in the journal, or in the hands of somebody who writes back. */
static bool fm_is_fresh(struct inode *inode)
{
	return !i_size_read(inode) && !inode->i_blocks && !inode->i_mapping->nrpages &&
	       !EXT4_I(inode)->i_reserved_data_blocks && !READ_ONCE(EXT4_I(inode)->i_fm_written);
}

static void fm_note(struct inode *inode, int mode)
{
	WRITE_ONCE(EXT4_I(inode)->i_fm_ordered, mode == VEXT4_JOURNALING_ORDERED);
	if (mode == VEXT4_JOURNALING_DATA)
		ext4_set_inode_flag(inode, EXT4_INODE_JOURNAL_DATA);
	else
		ext4_clear_inode_flag(inode, EXT4_INODE_JOURNAL_DATA);
	if (S_ISREG(inode->i_mode))
		ext4_set_aops(inode);
}

/* As ext4_change_inode_journal_flag(), which forgets what mappings have changed in journaled data. */
static int fm_switch_written(struct inode *inode, int mode)
{
	journal_t *journal = EXT4_JOURNAL(inode);
	int alloc_ctx, err;

	/* A sync that comes meanwhile asks again whether a commit is all that it needs. */
	mutex_lock(&EXT4_I(inode)->i_sio_walk);
	/* Faults wait for this, and find pages clean and protected. */
	err = filemap_write_and_wait(inode->i_mapping);
	if (err)
		goto out;
	alloc_ctx = ext4_writepages_down_write(inode->i_sb);
	jbd2_journal_lock_updates(journal);
	if (ext4_should_journal_data(inode) && !vext4_without(VEXT4_PART_SWITCH_FLUSH)) {
		atomic64_inc(&journal->j_sio.switches_flushed);
		vext4_fault(VEXT4_FAULT_SWITCH);
		err = jbd2_journal_flush(journal, 0);
		vext4_fault(VEXT4_FAULT_SWITCH_FLUSHED);
	}
	if (!err) {
		fm_note(inode, mode);
		if (!ext4_should_journal_data(inode))
			sio_unmark(inode);
	}
	jbd2_journal_unlock_updates(journal);
	ext4_writepages_up_write(inode->i_sb, alloc_ctx);
out:
	mutex_unlock(&EXT4_I(inode)->i_sio_walk);
	return err;
}

static int fm_switch(struct inode *inode, int mode)
{
	bool journals = fm_would_journal(inode, mode == VEXT4_JOURNALING_DATA, mode == VEXT4_JOURNALING_ORDERED);
	int err = 0;

	/* Encrypted data is never journaled. */
	if (!S_ISREG(inode->i_mode) || IS_ENCRYPTED(inode) || journals == ext4_should_journal_data(inode)) {
		fm_note(inode, mode);
		return 0;
	}
	atomic64_inc(&EXT4_JOURNAL(inode)->j_sio.switches);
	inode_dio_wait(inode);
	filemap_invalidate_lock(inode->i_mapping);
	if (fm_is_fresh(inode))
		fm_note(inode, mode);
	else if (ext4_should_journal_data(inode) && !capable(CAP_SYS_RESOURCE))
		err = -EPERM;
	else
		err = fm_switch_written(inode, mode);
	filemap_invalidate_unlock(inode->i_mapping);
	return err;
}

static int fm_store(struct inode *inode, bool ordered)
{
	int err;

	err = ext4_xattr_set(inode, FM_XATTR_INDEX, FM_XATTR_NAME, ordered ? FM_XATTR_VALUE : NULL,
			     ordered ? FM_XATTR_BYTES : 0, 0);
	if (err || !ordered || fm_stored(inode))
		return err;
	/* It went into a block of its own, where nobody looks when an inode is read. */
	ext4_xattr_set(inode, FM_XATTR_INDEX, FM_XATTR_NAME, NULL, 0, 0);
	return -ENOSPC;
}

static int fm_record(struct inode *inode)
{
	handle_t *handle = ext4_journal_start(inode, EXT4_HT_INODE, 1);
	int err;

	if (IS_ERR(handle))
		return PTR_ERR(handle);
	ext4_fc_mark_ineligible(inode->i_sb, EXT4_FC_REASON_JOURNAL_FLAG_CHANGE, handle);
	series_touch(inode);
	err = ext4_mark_inode_dirty(handle, inode);
	ext4_journal_stop(handle);
	return err;
}

static int fm_set(struct inode *inode, int mode)
{
	int before = fm_mode(inode);
	int err;

	if (mode == before)
		return 0;
	if (!EXT4_JOURNAL(inode))
		return -EOPNOTSUPP;
	if (is_journal_aborted(EXT4_JOURNAL(inode)))
		return -EROFS;
	if (IS_DAX(inode))
		return -EBUSY;
	/*
	 * An inode that is read again must not be ordered before it was switched. A stock kernel that gives it the
	 * attribute j leaves ours where it is, unseen until j is taken away. So is one that was inherited without room.
	 */
	if (before == VEXT4_JOURNALING_ORDERED ||
	    ext4_xattr_get(inode, FM_XATTR_INDEX, FM_XATTR_NAME, NULL, 0) >= 0) {
		err = fm_store(inode, false);
		if (err)
			return err;
	}
	err = fm_switch(inode, mode);
	if (!err && mode == VEXT4_JOURNALING_ORDERED) {
		err = fm_store(inode, true);
		/* The attempt has written the inode without its attribute. */
		if (err && !fm_switch(inode, before))
			fm_record(inode);
	}
	return err ? err : fm_record(inode);
}

/**
 * fm_change_flag - change the attribute j
 * @inode: whose
 * @data: whether it is to have it
 *
 * Return: 0, or an error.
 */
int fm_change_flag(struct inode *inode, int data)
{
	/* As the stock one. */
	if (!EXT4_JOURNAL(inode))
		return 0;
	return fm_set(inode, data ? VEXT4_JOURNALING_DATA : VEXT4_JOURNALING_DEFAULT);
}

/**
 * fm_is_ioctl - is this one of ours?
 * @cmd: what was asked
 */
bool fm_is_ioctl(unsigned int cmd)
{
	return cmd == VEXT4_IOC_GET_JOURNALING || cmd == VEXT4_IOC_SET_JOURNALING;
}

/**
 * fm_ioctl - say or change a file's mode
 * @filp: the file or folder
 * @cmd: what fm_is_ioctl() has recognized
 * @arg: the mode
 *
 * The stock attribute asks for CAP_SYS_RESOURCE. Here a file is its owner's: databases do not run as root. What empties
 * the journal, for everybody, asks for it here, too: a switch away from the journal of a file that has data.
 *
 * Return: the mode, 0, or an error.
 */
long fm_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct inode *inode = file_inode(filp);
	int err;

	if (!S_ISREG(inode->i_mode) && !S_ISDIR(inode->i_mode))
		return -ENOTTY;
	if (cmd == VEXT4_IOC_GET_JOURNALING)
		return fm_mode(inode);
	if (arg >= VEXT4_JOURNALING_MODES)
		return -EINVAL;
	if (!series_owner_or_capable(filp, inode))
		return -EPERM;
	err = mnt_want_write_file(filp);
	if (err)
		return err;
	inode_lock(inode);
	if (IS_IMMUTABLE(inode) || IS_APPEND(inode))
		err = -EPERM;
	else if (IS_SWAPFILE(inode))
		err = -ETXTBSY;
	else
		err = fm_set(inode, arg);
	inode_unlock(inode);
	mnt_drop_write_file(filp);
	return err;
}
