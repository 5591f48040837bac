/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * iJournaling's areas and i-transactions: crates/format/src/ijournal.rs in C. A test of that crate compiles this
 * file and compares the bytes. What they mean is in docs/ijournaling.md. Every field lies at a multiple of its size.
 */
#ifndef _IJOURNAL_FORMAT_H
#define _IJOURNAL_FORMAT_H

#include <linux/types.h>

#define IJOURNAL_FILE_NAME ".vext4-ijournal"	/* in the root directory */
/* s_feature_incompat of the journal's superblock, earlier of the file system's: there may be valid i-transactions. */
#define IJOURNAL_INCOMPAT 0x40000000

#define IJOURNAL_AREAS_MAGIC "AFIJAR\r\n"
#define IJOURNAL_RUN_MAGIC "AFIJTX\r\n"
#define IJOURNAL_COMMIT_MAGIC "AFIJCM\r\n"
#define IJOURNAL_VERSION 1

#define IJOURNAL_BLOCK_BYTES 4096
#define IJOURNAL_RUN_BLOCKS_MAX 64
#define IJOURNAL_AREAS_MAX 1024
#define IJOURNAL_AREA_BLOCKS_MIN 64
#define IJOURNAL_AREAS_BLOCKS_MAX 0x400000	/* of all areas together */
#define IJOURNAL_INODE_BYTES_MIN 128
#define IJOURNAL_INODE_BYTES_MAX 256

/* ijournal_header.kind */
enum {
	IJOURNAL_FILE = 1,
	IJOURNAL_DIRECTORY
};

/* ijournal_record.kind; each body is padded with zeroes to a multiple of 8 */
enum {
	IJOURNAL_INODE = 1,	/* s_inode_size bytes; the first record of every run */
	IJOURNAL_EXTENT_BLOCK,	/* struct ijournal_extent_block, the block's header and eh_entries entries */
	IJOURNAL_ENTRY		/* struct ijournal_entry, the name */
};

/* Block 0 of the file; areas * area_blocks blocks follow. */
struct ijournal_areas {
	__u8 magic[8];
	__le16 version;
	__u8 reserved_10[2];	/* zero, like all that is reserved */
	__le32 crc;		/* CRC-32C of the block with this field zero */
	__u8 epoch[16];		/* random, another one after each mount */
	__le32 areas;
	__le32 area_blocks;
	__le32 block_bytes;
	__le32 first_tid;	/* the first that was not committed when the epoch began */
	__u8 reserved_48[4048];
};

/* The beginning of a run; records follow, zeroes, and the commit record at the run's end. */
struct ijournal_header {
	__u8 magic[8];
	__le16 version;
	__le16 kind;
	__le32 blocks;		/* of the run, this one included */
	__u8 epoch[16];
	__le64 sub_id;		/* one order over all areas, from 1 */
	__le32 tid;
	__le32 ino;
	__le32 generation;
	__le32 records_len;	/* bytes, padding included */
	__le32 area;
	__le32 at;		/* the run's first block within the area */
};

/* The last bytes of a run's last block. */
struct ijournal_commit {
	__u8 magic[8];
	__le64 sub_id;
	__u8 reserved_16[12];
	__le32 crc;		/* CRC-32C of the run but these four bytes: ~crc32c(~0, run, bytes - 4) */
};

struct ijournal_record {
	__le16 kind;
	__le16 reserved_2;
	__le32 len;		/* of the body, without padding */
};

struct ijournal_extent_block {
	__le64 home;
};

struct ijournal_entry {
	__le32 ino;
	__le32 generation;	/* the inode's i_generation */
	__u8 file_type;		/* as in the directory: 1 a regular file, 2 a directory */
	__u8 name_len;
	__le16 reserved_10;
};

/* Blocks of a run whose records have that many bytes: with several, the last is the commit block. */
static inline __u32 ijournal_run_blocks(__u32 records_len)
{
	__u32 one = IJOURNAL_BLOCK_BYTES - sizeof(struct ijournal_header) - sizeof(struct ijournal_commit);

	if (records_len <= one)
		return 1;
	return (sizeof(struct ijournal_header) + records_len + IJOURNAL_BLOCK_BYTES - 1) / IJOURNAL_BLOCK_BYTES + 1;
}

#endif
