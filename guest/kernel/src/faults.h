/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a build for tests can do wrong: see faults.c.
 */
#ifndef _LINUX_FAULTS_H
#define _LINUX_FAULTS_H

#include <linux/types.h>

/*
 * Built for tests: the modules panic where vjbd2.panic_at says, do without what vjbd2.without names, and make a mistake
 * that vjbd2.plant names: leak, use-after-free, inversion (of two locks) or sleep (under a spinlock).
 */
#ifndef VEXT4_FAULTS
#define VEXT4_FAULTS 0
#endif

/* What the tests have to miss: the parts that keep a promise. */
enum vext4_part {
	VEXT4_PART_FLUSH,
	VEXT4_PART_CHECKSUM,
	VEXT4_PART_HOME_RULE,
	VEXT4_PART_REVOKE_RULE,
	VEXT4_PART_SWITCH_FLUSH,
	VEXT4_PART_REVOKE,
	VEXT4_PART_SWAP_RULE,
	VEXT4_PART_VMA_REWRITE,
	VEXT4_PART_VMA_PUBLISH,
	VEXT4_PART_IJOURNAL_ORDER,
	VEXT4_PART_IJOURNAL_DIRECTORY,
	VEXT4_PART_IJOURNAL_FLUSH,
	VEXT4_PART_IJOURNAL_LOGGED,
	VEXT4_PART_IJOURNAL_GROUP,
	VEXT4_PART_IJOURNAL_ABORTED,
	VEXT4_PARTS
};

/* Where a panic can be injected. */
enum vext4_fault {
	VEXT4_FAULT_REVOKE,
	VEXT4_FAULT_MAPPED,
	VEXT4_FAULT_CONTENT,
	VEXT4_FAULT_COMMIT_BLOCK,
	VEXT4_FAULT_FLUSHED,
	VEXT4_FAULT_SWITCH,
	VEXT4_FAULT_SWITCH_FLUSHED,
	VEXT4_FAULT_VMA_GATHERED,
	VEXT4_FAULT_VMA_COMMIT,
	VEXT4_FAULT_VMA_ANSWERED,
	VEXT4_FAULT_VMA_REFUSED,
	VEXT4_FAULT_VMA_REWRITTEN,
	VEXT4_FAULT_VMA_PUBLISHED,
	VEXT4_FAULT_IJOURNAL,
	VEXT4_FAULT_IJOURNAL_WAY,
	VEXT4_FAULT_IJOURNAL_WRITTEN,
	VEXT4_FAULT_POINTS
};

#if VEXT4_FAULTS
void vext4_fault(enum vext4_fault point);
bool vext4_armed(enum vext4_fault point);
bool vext4_without(enum vext4_part part);
#else
static inline void vext4_fault(enum vext4_fault point)
{
}

static inline bool vext4_armed(enum vext4_fault point)
{
	return false;
}

static inline bool vext4_without(enum vext4_part part)
{
	return false;
}
#endif

#endif
