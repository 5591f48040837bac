//! The control disk: how a guest's programs, and its kernel, talk to the daemon through the block driver that every guest has.
//!
//! ```text
//! disk     [slot 0][slot 1] ... [slot 63], 1 MiB each
//! write at the beginning of slot 1..: a [`Command`]; it completes when the command is done
//! read  at the beginning of a slot:   an [`Answer`], to the slot's last command; in slot 0, and before the first command, to none
//! ```
//!
//! A read of several blocks at the beginning of one of the last slots lends its memory to the daemon, if it begins with a [`Lent`]: what the
//! guest publishes there needs no request. A commit that is handed over ([`OPERATION_MPROTECT`]) has its blocks behind the command, in the same request; every other command is
//! one sector. No command is as long as a slot, so no block layer ever joins two of them into one request. A command may be executed twice (the
//! daemon died before its completion was seen): each means the same then. `guest/control/afterimage_control_disk.h` says the same in C;
//! `tests/control_disk.rs` compares the two.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{checksum, FormatError};

/// Magic of a command: "AFCTLC\r\n".
pub const COMMAND_MAGIC: [u8; 8] = *b"AFCTLC\r\n";
/// Magic of an answer: "AFCTLA\r\n".
pub const ANSWER_MAGIC: [u8; 8] = *b"AFCTLA\r\n";
/// The newest version of both.
pub const CONTROL_VERSION: u16 = 1;
/// What GET_ID answers, and Linux shows as `/sys/block/NAME/serial`.
pub const CONTROL_SERIAL: &str = "afterimage-control";

/// Slots of the disk.
pub const SLOTS: u32 = 64;
/// A slot, in bytes.
pub const SLOT_BYTES: u32 = 1 << 20;
/// The longest time that [`OPERATION_WAIT`] waits, in milliseconds: a device that is stopped waits for it.
pub const WAIT_MS_MAX: u32 = 1000;
/// A block that is handed over, in bytes.
pub const BLOCK_BYTES: u32 = 4096;
/// The most blocks that one command hands over: what is left of a slot.
pub const BLOCKS_MAX: u32 = (SLOT_BYTES - 512) / BLOCK_BYTES;
/// The last slots: the file systems', and no program's.
pub const FILE_SYSTEM_SLOTS: u32 = 8;
/// How long a read that lends memory ([`Lent`]) is held at most, in milliseconds: a device that is stopped waits for it.
pub const LENT_MS_MAX: u32 = 100;
/// What may be lost of commits that are published ([`Lent`]) where the VMM and the daemon die together, in microseconds: whoever publishes
/// says *committed* for so long, while the daemon has not taken what it says it of.
pub const PUBLISHED_US_MAX: u32 = 10_000;
/// Bytes of an answer's text.
pub const TEXT_BYTES_MAX: usize = 400;

/// `Answer::operation` where there was no command.
pub const OPERATION_NONE: u16 = 0;
/// vDrive's *vorder* (§ 4.1.1): nothing that comes later survives a power cut unless everything that has completed does.
pub const OPERATION_VORDER: u16 = 1;
/// vDrive's *vflush* (§ 4.1.1): everything that has completed survives a power cut, under every contract.
pub const OPERATION_VFLUSH: u16 = 2;
/// vDrive's *aio-notify* (§ 4.1.2): a point is durable. Forces nothing where durability comes by itself.
pub const OPERATION_WAIT: u16 = 3;
/// VMA's *init* (Table I): whether a file system's commits may be handed over. The answer's point is what [`OPERATION_MPROTECT`] names.
pub const OPERATION_INIT: u16 = 16;
/// VMA's *cleanup*: the file system is unmounted; done where nothing is retained of it.
pub const OPERATION_CLEANUP: u16 = 17;
/// VMA's *mprotect*: blocks of a transaction, as they would stand in the journal.
pub const OPERATION_MPROTECT: u16 = 18;
/// VMA's *query*: what is retained of a file system.
pub const OPERATION_QUERY: u16 = 19;
/// VMA's *recover*: whatever is committed goes home, durably.
pub const OPERATION_RECOVER: u16 = 20;
/// A bit in `Answer::operations`, and no command: memory may be lent ([`Lent`]).
pub const OPERATION_LEND: u16 = 21;
/// A bit in `Answer::operations`, and no command: [`OPERATION_INIT`] looks for its challenge.
pub const OPERATION_CHALLENGE: u16 = 22;

/// Where a challenge stands in the journal's superblock: its last spare bytes.
pub const CHALLENGE_AT: usize = 0xf4;

/// Whether an operation is about one file system.
pub fn is_of_a_file_system(operation: u16) -> bool {
    (OPERATION_INIT..=OPERATION_RECOVER).contains(&operation)
}

/// `Answer::status`: done.
pub const STATUS_DONE: u16 = 0;
/// `Answer::status`: the time is over, and the point is not durable yet.
pub const STATUS_NOT_YET: u16 = 1;
/// `Answer::status`: not a command, or not at the beginning of a slot that takes any.
pub const STATUS_MALFORMED: u16 = 2;
/// `Answer::status`: of a later version, or an operation that this daemon does not have.
pub const STATUS_UNSUPPORTED: u16 = 3;
/// `Answer::status`: the disks have failed.
pub const STATUS_FAILED: u16 = 4;

/// A command, one sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Command {
    /// [`COMMAND_MAGIC`].
    pub magic: [u8; 8],
    /// [`CONTROL_VERSION`].
    pub version: U16,
    /// [`OPERATION_VORDER`] and its like.
    pub operation: U16,
    /// CRC-32C of the sector with this field zero.
    pub crc: U32,
    /// Whatever the sender likes: the answer carries it back, so that it knows its own.
    pub tag: U64,
    /// [`OPERATION_WAIT`]: which daemon's the point is, as an answer said; 0: now. [`OPERATION_MPROTECT`]: as [`OPERATION_INIT`] was answered.
    pub instance: U64,
    /// [`OPERATION_WAIT`]: the point. [`OPERATION_MPROTECT`]: as [`OPERATION_INIT`] was answered.
    pub sequence: U64,
    /// [`OPERATION_WAIT`]: at most [`WAIT_MS_MAX`].
    pub timeout_ms: U32,
    /// [`OPERATION_MPROTECT`]: how many blocks follow, 1 to [`BLOCKS_MAX`].
    pub blocks: U32,
    /// Which file system an [operation](is_of_a_file_system) is about.
    pub file_system: [u8; 16],
    /// [`OPERATION_MPROTECT`]: the block of the file system at which they would stand, one behind the other. [`OPERATION_INIT`]: the challenge,
    /// a number that the sender has written to [`CHALLENGE_AT`] of its journal's superblock; 0: none.
    pub block: U64,
    /// Zero.
    pub reserved: [u8; 440],
}

const _: () = assert!(size_of::<Command>() == 512);

/// What is retained of a file system.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Held {
    /// Blocks of which a committed version is known.
    pub versions: U64,
    /// Those whose home has not been written since.
    pub pending: U64,
    /// Bytes of their content.
    pub data_bytes: U64,
    /// Bytes of what is known about them (the paper's journal information).
    pub information_bytes: U64,
}

/// Magic of memory that is lent: "AFCTLM\r\n".
pub const LENT_MAGIC: [u8; 8] = *b"AFCTLM\r\n";

/// [`Lent::state`]: nobody has looked at it yet.
pub const LENT_OFFERED: u32 = 0;
/// [`Lent::state`]: the daemon looks for what is published.
pub const LENT_OPEN: u32 = 1;
/// [`Lent::state`]: it will look once more, and then the read ends.
pub const LENT_CLOSED: u32 = 2;
/// [`Lent::state`]: it does not look (any more), and nothing is to be lent again.
pub const LENT_REFUSED: u32 = 3;

/// The first block of memory that a file system lends to the daemon, as the buffer of a read that the daemon holds for at most
/// [`LENT_MS_MAX`]: what would be an [`OPERATION_MPROTECT`] is published there by one store, and no request is sent.
///
/// ```text
/// guest    content behind this block ─► blocks, block ─► published (release) ─► full barrier ─► state: OPEN? then it is committed
/// daemon   state: CLOSED ─► full barrier ─► published (acquire) ─► content, as one more MPROTECT ─► taken (release)
/// ```
///
/// Numbers of publications follow each other; the next one waits until the one before was taken. So either the guest sees that it is
/// over, or the daemon sees what was published. Each side's words lie on cache lines of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Lent {
    /// [`LENT_MAGIC`].
    pub magic: [u8; 8],
    /// [`CONTROL_VERSION`].
    pub version: U16,
    /// Zero.
    pub reserved: U16,
    /// CRC-32C of the first 64 bytes with this field zero.
    pub crc: U32,
    /// By which right commits are handed over: what [`OPERATION_INIT`] was answered.
    pub instance: U64,
    /// See [`Lent::instance`].
    pub sequence: U64,
    /// Whose they are.
    pub file_system: [u8; 16],
    /// Zero.
    pub reserved_more: [u8; 16],
    /// The guest's: the number of the newest publication.
    pub published: U32,
    /// The guest's: how many blocks it has, which lie one behind the other after this one.
    pub blocks: U32,
    /// The guest's: not 0 where it wants its memory back.
    pub back: U32,
    /// The guest's.
    pub reserved_guest: [u8; 52],
    /// The daemon's: [`LENT_OPEN`] and its like.
    pub state: U32,
    /// The daemon's: the number of the newest publication that it has taken; the guest's before the read.
    pub taken: U32,
    /// The daemon's.
    pub reserved_daemon: [u8; 56],
    /// The guest's: the block of the file system at which each of them would stand.
    pub block: [U64; BLOCKS_MAX as usize],
    /// Nobody's.
    pub rest: [u8; 1864],
}

const _: () = assert!(size_of::<Lent>() == BLOCK_BYTES as usize);

impl Lent {
    /// Where [`Lent::published`] lies.
    pub const PUBLISHED_AT: usize = std::mem::offset_of!(Self, published);
    /// Where [`Lent::back`] lies.
    pub const BACK_AT: usize = std::mem::offset_of!(Self, back);
    /// Where [`Lent::state`] lies.
    pub const STATE_AT: usize = std::mem::offset_of!(Self, state);
    /// Where [`Lent::taken`] lies.
    pub const TAKEN_AT: usize = std::mem::offset_of!(Self, taken);
    const SEALED_BYTES: usize = std::mem::offset_of!(Self, published);

    /// Nothing was published yet.
    pub fn new(file_system: [u8; 16], instance: u64, sequence: u64) -> Self {
        let mut lent = Self {
            magic: LENT_MAGIC,
            version: CONTROL_VERSION.into(),
            instance: instance.into(),
            sequence: sequence.into(),
            file_system,
            ..Self::new_zeroed()
        };
        lent.crc = lent.checksum().into();
        lent
    }

    fn checksum(&self) -> u32 {
        let mut unsealed = *self;
        unsealed.crc = 0.into();
        checksum(&unsealed.as_bytes()[..Self::SEALED_BYTES])
    }

    /// Reads what stands at the beginning of a read's memory, which may be anything.
    ///
    /// # Errors
    /// Nothing is lent, or by a later version; or its checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let lent = Self::read_from_bytes(bytes)
            .map_err(|_| FormatError::Corrupt("memory is lent in blocks of 4096 bytes"))?;
        check(lent.magic, LENT_MAGIC, "memory that is lent", lent.version.get())?;
        if lent.checksum() != lent.crc.get() {
            return Err(FormatError::Corrupt("the checksum of what is lent does not match"));
        }
        if lent.instance.get() == 0 || lent.reserved.get() != 0 || lent.reserved_more != [0; 16] {
            return Err(FormatError::Corrupt("what is lent says too much, or not by which right"));
        }
        Ok(lent)
    }
}

/// An answer, one sector. A *point* is an instance and a sequence number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Answer {
    /// [`ANSWER_MAGIC`].
    pub magic: [u8; 8],
    /// [`CONTROL_VERSION`].
    pub version: U16,
    /// The command's operation, or [`OPERATION_NONE`].
    pub operation: U16,
    /// CRC-32C of the sector with this field zero.
    pub crc: U32,
    /// The command's.
    pub tag: U64,
    /// [`STATUS_DONE`] and its like.
    pub status: U16,
    /// The contract in force, as in [`crate::mark::MarkHeader::contract`].
    pub contract: U16,
    /// `power-window`: its length. 0 elsewhere.
    pub window_us: U32,
    /// Which daemon answers: another number after each of its starts, never 0.
    pub instance: U64,
    /// The point that the answer is about; without a command, the newest request that has completed.
    pub sequence: U64,
    /// Up to here everything survives a power cut.
    pub durable: U64,
    /// A bit for each operation that there is.
    pub operations: U64,
    /// [`SLOTS`].
    pub slots: U32,
    /// [`SLOT_BYTES`].
    pub slot_bytes: U32,
    /// Bytes of the text.
    pub text_len: U16,
    /// Zero.
    pub reserved: [u8; 6],
    /// One sentence in UTF-8: why not; without a command, the promise in force.
    pub text: [u8; TEXT_BYTES_MAX],
    /// What is retained of the file system that the command was about.
    pub held: Held,
}

const _: () = assert!(size_of::<Answer>() == 512);

fn check(magic: [u8; 8], wanted: [u8; 8], what: &'static str, version: u16) -> Result<(), FormatError> {
    if magic != wanted {
        return Err(FormatError::Magic { what });
    }
    if version > CONTROL_VERSION {
        return Err(FormatError::Version { version: version.into(), known: CONTROL_VERSION.into() });
    }
    if version == 0 {
        return Err(FormatError::Old { version: 0, oldest: 1 });
    }
    Ok(())
}

impl Command {
    /// A command without a point.
    pub fn new(operation: u16, tag: u64) -> Self {
        Self {
            magic: COMMAND_MAGIC,
            version: CONTROL_VERSION.into(),
            operation: operation.into(),
            tag: tag.into(),
            ..Self::new_zeroed()
        }
    }

    /// With its checksum.
    pub fn seal(mut self) -> Self {
        self.crc = 0.into();
        self.crc = checksum(self.as_bytes()).into();
        self
    }

    /// Reads a command from the first sector of a request of `length` bytes. Whether there is such an operation is not judged; one that there is
    /// says what it should.
    ///
    /// # Errors
    /// Not a command, one of a later version, or one whose length, checksum or fields are wrong.
    pub fn parse(bytes: &[u8], length: usize) -> Result<Self, FormatError> {
        let (command, _) =
            Self::read_from_prefix(bytes).map_err(|_| FormatError::Corrupt("the command is cut short"))?;
        check(command.magic, COMMAND_MAGIC, "a command", command.version.get())?;
        let (operation, blocks) = (command.operation.get(), command.blocks.get());
        let hands_over = operation == OPERATION_MPROTECT;
        if blocks > BLOCKS_MAX || length != 512 + (blocks * BLOCK_BYTES) as usize {
            return Err(FormatError::Corrupt("the request is not as long as its command says"));
        }
        if command.seal().crc != command.crc {
            return Err(FormatError::Corrupt("the command's checksum does not match"));
        }
        let waits = operation == OPERATION_WAIT;
        let point = command.instance.get() != 0 || command.sequence.get() != 0;
        let named = command.file_system != [0; 16];
        if command.reserved.iter().any(|byte| *byte != 0)
            || (!waits && !hands_over && point)
            || (!waits && command.timeout_ms.get() != 0)
            || (!hands_over && blocks != 0)
            || (!hands_over && operation != OPERATION_INIT && command.block.get() != 0)
            || (!is_of_a_file_system(operation) && named)
        {
            return Err(FormatError::Corrupt("the command says more than its operation takes"));
        }
        if hands_over && (blocks == 0 || command.instance.get() == 0) {
            return Err(FormatError::Corrupt(
                "the command hands nothing over, or does not say by which right",
            ));
        }
        if command.timeout_ms.get() > WAIT_MS_MAX {
            return Err(FormatError::Corrupt("the command waits for longer than a second"));
        }
        if command.instance.get() == 0 && command.sequence.get() != 0 {
            return Err(FormatError::Corrupt("the command's point is of no daemon"));
        }
        Ok(command)
    }
}

impl Answer {
    /// With its text, as much of it as there is room for, and its checksum.
    pub fn seal(mut self, text: &str) -> Self {
        let mut length = text.len().min(TEXT_BYTES_MAX);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        self.magic = ANSWER_MAGIC;
        self.version = CONTROL_VERSION.into();
        self.text = [0; TEXT_BYTES_MAX];
        self.text[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.text_len = (length as u16).into();
        self.crc = 0.into();
        self.crc = checksum(self.as_bytes()).into();
        self
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// Not an answer, one of a later version, or one whose checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let answer = Self::read_from_bytes(bytes)
            .map_err(|_| FormatError::Corrupt("the answer is not one sector long"))?;
        check(answer.magic, ANSWER_MAGIC, "an answer", answer.version.get())?;
        let mut unsealed = answer;
        unsealed.crc = 0.into();
        if checksum(unsealed.as_bytes()) != answer.crc.get() {
            return Err(FormatError::Corrupt("the answer's checksum does not match"));
        }
        if usize::from(answer.text_len.get()) > TEXT_BYTES_MAX {
            return Err(FormatError::Corrupt("the answer's text is longer than the answer"));
        }
        Ok(answer)
    }

    /// Its sentence.
    pub fn text(&self) -> String {
        let length = usize::from(self.text_len.get()).min(TEXT_BYTES_MAX);
        String::from_utf8_lossy(&self.text[..length]).into_owned()
    }
}
