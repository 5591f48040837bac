// SPDX-License-Identifier: GPL-2.0
/*
 * Faults, in builds for tests: panics at named places, parts left out, and planted mistakes. Both modules ask here, so
 * that one parameter names what a guest does.
 */

#include <linux/delay.h>
#include <linux/faults.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>

static char *panic_at = "";
module_param(panic_at, charp, 0644);
static atomic_t panic_after = ATOMIC_INIT(1);
static int panic_after_set(const char *value, const struct kernel_param *param)
{
	int times, err;

	err = kstrtoint(value, 0, &times);
	if (!err)
		atomic_set(&panic_after, times);
	return err;
}

static const struct kernel_param_ops panic_after_ops = { .set = panic_after_set };
module_param_cb(panic_after, &panic_after_ops, NULL, 0200);

/* A place to wait at, once, so that a test can do something meanwhile. */
static char *wait_at = "";
module_param(wait_at, charp, 0644);
static uint wait_ms;
module_param(wait_ms, uint, 0644);
static atomic_t waited = ATOMIC_INIT(0);

static char *plant = "";
module_param(plant, charp, 0644);
static DEFINE_MUTEX(plant_first);
static DEFINE_MUTEX(plant_second);
static DEFINE_SPINLOCK(plant_spin);

/* A mistake of a kind that a debugging kernel has to see, once. */
static void vext4_plant(void)
{
	static atomic_t planted = ATOMIC_INIT(0);
	char *bytes;

	if (!*plant || atomic_xchg(&planted, 1))
		return;
	bytes = kmalloc(128, GFP_NOFS);
	if (!bytes)
		return;
	/* The compiler is to take what follows as it is. */
	OPTIMIZER_HIDE_VAR(bytes);
	if (!strcmp(plant, "leak"))
		return;
	kfree(bytes);
	OPTIMIZER_HIDE_VAR(bytes);
	if (!strcmp(plant, "use-after-free")) {
		pr_info("planted: %d\n", READ_ONCE(*bytes));
	} else if (!strcmp(plant, "inversion")) {
		mutex_lock(&plant_first);
		mutex_lock(&plant_second);
		mutex_unlock(&plant_second);
		mutex_unlock(&plant_first);
		mutex_lock(&plant_second);
		mutex_lock(&plant_first);
		mutex_unlock(&plant_first);
		mutex_unlock(&plant_second);
	} else if (!strcmp(plant, "sleep")) {
		spin_lock(&plant_spin);
		might_sleep();
		spin_unlock(&plant_spin);
	}
}

static const char * const fault_names[VEXT4_FAULT_POINTS] = {
	[VEXT4_FAULT_REVOKE] = "revoke",
	[VEXT4_FAULT_MAPPED] = "mapped",
	[VEXT4_FAULT_CONTENT] = "content",
	[VEXT4_FAULT_COMMIT_BLOCK] = "commit_block",
	[VEXT4_FAULT_FLUSHED] = "flushed",
	[VEXT4_FAULT_SWITCH] = "switch",
	[VEXT4_FAULT_SWITCH_FLUSHED] = "switch_flushed",
	[VEXT4_FAULT_VMA_GATHERED] = "vma_gathered",
	[VEXT4_FAULT_VMA_COMMIT] = "vma_commit",
	[VEXT4_FAULT_VMA_ANSWERED] = "vma_answered",
	[VEXT4_FAULT_VMA_REFUSED] = "vma_refused",
	[VEXT4_FAULT_VMA_REWRITTEN] = "vma_rewritten",
	[VEXT4_FAULT_VMA_PUBLISHED] = "vma_published",
	[VEXT4_FAULT_IJOURNAL] = "ijournal",
	[VEXT4_FAULT_IJOURNAL_WAY] = "ijournal_way",
	[VEXT4_FAULT_IJOURNAL_WRITTEN] = "ijournal_written",
};

/**
 * vext4_armed - is the kernel to panic at a place, sooner or later?
 * @point: which
 */
bool vext4_armed(enum vext4_fault point)
{
	return !strcmp(panic_at, fault_names[point]);
}
EXPORT_SYMBOL(vext4_armed);

/**
 * vext4_fault - a place where the kernel may be told to panic
 * @point: which
 */
void vext4_fault(enum vext4_fault point)
{
	if (point == VEXT4_FAULT_CONTENT)
		vext4_plant();
	if (wait_ms && !strcmp(wait_at, fault_names[point]) && !atomic_xchg(&waited, 1))
		msleep(wait_ms);
	if (vext4_armed(point) && atomic_dec_return(&panic_after) == 0)
		panic("injected at %s", panic_at);
}
EXPORT_SYMBOL(vext4_fault);

static char *without = "";
module_param(without, charp, 0644);

/**
 * vext4_without - a part that may have been left out
 * @part: which
 */
bool vext4_without(enum vext4_part part)
{
	static const char * const names[VEXT4_PARTS] = {
		[VEXT4_PART_FLUSH] = "flush",
		[VEXT4_PART_CHECKSUM] = "checksum",
		[VEXT4_PART_HOME_RULE] = "home-rule",
		[VEXT4_PART_REVOKE_RULE] = "revoke-rule",
		[VEXT4_PART_SWITCH_FLUSH] = "switch-flush",
		[VEXT4_PART_REVOKE] = "revoke",
		[VEXT4_PART_SWAP_RULE] = "swap-rule",
		[VEXT4_PART_VMA_REWRITE] = "vma-rewrite",
		[VEXT4_PART_VMA_PUBLISH] = "vma-publish",
		[VEXT4_PART_IJOURNAL_ORDER] = "ijournal-order",
		[VEXT4_PART_IJOURNAL_DIRECTORY] = "ijournal-directory",
		[VEXT4_PART_IJOURNAL_FLUSH] = "ijournal-flush",
		[VEXT4_PART_IJOURNAL_LOGGED] = "ijournal-logged",
		[VEXT4_PART_IJOURNAL_GROUP] = "ijournal-group",
		[VEXT4_PART_IJOURNAL_ABORTED] = "ijournal-aborted",
	};

	return !strcmp(without, names[part]);
}
EXPORT_SYMBOL(vext4_without);
