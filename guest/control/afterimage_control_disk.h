/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * The control disk's commands and answers: crates/format/src/control_disk.rs in C, for programs and for kernels. A test of that
 * crate compiles this file and compares the bytes. What they mean is in docs/control-disk.md.
 */
#ifndef AFTERIMAGE_CONTROL_DISK_H
#define AFTERIMAGE_CONTROL_DISK_H

#include <linux/types.h>

#define AFTERIMAGE_CONTROL_SERIAL "afterimage-control"
#define AFTERIMAGE_COMMAND_MAGIC "AFCTLC\r\n"
#define AFTERIMAGE_ANSWER_MAGIC "AFCTLA\r\n"
#define AFTERIMAGE_CONTROL_VERSION 1

#define AFTERIMAGE_SECTOR_BYTES 512
#define AFTERIMAGE_SLOTS 64
#define AFTERIMAGE_SLOT_BYTES (1 << 20)
#define AFTERIMAGE_FILE_SYSTEM_SLOTS 8	/* the last: no program's */
#define AFTERIMAGE_WAIT_MS_MAX 1000
#define AFTERIMAGE_BLOCK_BYTES 4096
#define AFTERIMAGE_BLOCKS_MAX 255
#define AFTERIMAGE_TEXT_BYTES_MAX 400
#define AFTERIMAGE_LENT_MAGIC "AFCTLM\r\n"
#define AFTERIMAGE_LENT_MS_MAX 100
#define AFTERIMAGE_PUBLISHED_US_MAX 10000
#define AFTERIMAGE_CHALLENGE_AT 0xf4	/* where the challenge stands in the journal's superblock: its last spare bytes */

/* afterimage_command.operation */
enum {
	AFTERIMAGE_NONE,
	AFTERIMAGE_VORDER,
	AFTERIMAGE_VFLUSH,
	AFTERIMAGE_WAIT,
	AFTERIMAGE_INIT = 16,
	AFTERIMAGE_CLEANUP,
	AFTERIMAGE_MPROTECT,
	AFTERIMAGE_QUERY,
	AFTERIMAGE_RECOVER,
	AFTERIMAGE_LEND,	/* no command: struct afterimage_lent may be */
	AFTERIMAGE_CHALLENGE	/* no command: INIT looks for its challenge */
};

/* afterimage_answer.status */
enum {
	AFTERIMAGE_DONE,
	AFTERIMAGE_NOT_YET,
	AFTERIMAGE_MALFORMED,
	AFTERIMAGE_UNSUPPORTED,
	AFTERIMAGE_FAILED
};

/* afterimage_answer.contract */
enum {
	AFTERIMAGE_POWER = 1,
	AFTERIMAGE_POWER_WINDOW,
	AFTERIMAGE_GUEST_CRASH
};

/*
 * Written to the beginning of a slot other than the first; AFTERIMAGE_MPROTECT with its blocks behind it in the same request. Every
 * field lies at a multiple of its size.
 */
struct afterimage_command {
	__u8 magic[8];
	__le16 version;
	__le16 operation;
	__le32 crc;		/* CRC-32C of the sector with this field zero */
	__le64 tag;		/* the sender's; the answer carries it */
	__le64 instance;	/* AFTERIMAGE_WAIT: the point; 0: now. AFTERIMAGE_MPROTECT: as INIT was answered */
	__le64 sequence;
	__le32 timeout_ms;	/* AFTERIMAGE_WAIT: at most AFTERIMAGE_WAIT_MS_MAX */
	__le32 blocks;		/* AFTERIMAGE_MPROTECT: how many follow */
	__u8 file_system[16];	/* from AFTERIMAGE_INIT on: its UUID */
	/*
	 * AFTERIMAGE_MPROTECT: the file system's, where they would stand. AFTERIMAGE_INIT: the challenge, a number that was
	 * written to the journal's superblock before, as it stands there; 0: none.
	 */
	__le64 block;
	__u8 reserved[440];	/* zero */
};

/* What is retained of a file system. */
struct afterimage_held {
	__le64 versions;	/* blocks of which a committed version is known */
	__le64 pending;		/* those whose home has not been written since */
	__le64 data_bytes;
	__le64 information_bytes;
};

/* Read from the beginning of a slot. */
struct afterimage_answer {
	__u8 magic[8];
	__le16 version;
	__le16 operation;
	__le32 crc;		/* CRC-32C of the sector with this field zero */
	__le64 tag;
	__le16 status;
	__le16 contract;
	__le32 window_us;
	__le64 instance;	/* the daemon that answers; with sequence: a point */
	__le64 sequence;
	__le64 durable;
	__le64 operations;	/* a bit for each that there is */
	__le32 slots;
	__le32 slot_bytes;
	__le16 text_len;
	__u8 reserved[6];
	__u8 text[AFTERIMAGE_TEXT_BYTES_MAX];
	struct afterimage_held held;
};

/* afterimage_lent.state */
enum {
	AFTERIMAGE_OFFERED,
	AFTERIMAGE_OPEN,
	AFTERIMAGE_CLOSED,	/* looks once more; then the read ends */
	AFTERIMAGE_REFUSED	/* does not look, and not again */
};

/*
 * The first block of the memory of a read of several blocks, at the beginning of one of the last slots; the read ends after at most
 * AFTERIMAGE_LENT_MS_MAX. What would be an AFTERIMAGE_MPROTECT is published there: the blocks behind this one, .blocks and .block,
 * then .published (release), then a full barrier; and if .state says AFTERIMAGE_OPEN then, it is committed. The next one waits until
 * .taken has its number, or the read has ended without: then it is sent as a command.
 */
struct afterimage_lent {
	__u8 magic[8];
	__le16 version;
	__le16 reserved;
	__le32 crc;		/* CRC-32C of the first 64 bytes with this field zero */
	__le64 instance;	/* with sequence: as INIT was answered */
	__le64 sequence;
	__u8 file_system[16];
	__u8 reserved_more[16];
	/* The guest's. */
	__le32 published;	/* the number of the newest publication */
	__le32 blocks;		/* how many blocks it has, one behind the other after this one */
	__le32 back;		/* the guest wants its memory back */
	__u8 reserved_guest[52];
	/* The daemon's, from the read's begin to its end. */
	__le32 state;
	__le32 taken;		/* the number of the newest publication that was taken */
	__u8 reserved_daemon[56];
	/* The guest's: where each block would stand. */
	__le64 block[AFTERIMAGE_BLOCKS_MAX];
	__u8 rest[1864];
};

#endif
