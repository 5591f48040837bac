//! The control disk: how a guest's programs, and its kernel, talk to the daemon through the block driver that every guest has.
//!
//! ```text
//! disk     [slot 0][slot 1] ... [slot 63], 1 MiB each
//! write at the beginning of slot 1..: a [`Command`]; it completes when the command is done
//! read  at the beginning of a slot:   an [`Answer`], to the slot's last command; in slot 0, and before the first command, to none
//! ```
//!
//! A command is far shorter than a slot, so no block layer ever joins two of them into one request. A command may be executed twice (the
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
/// Bytes of an answer's text.
pub const TEXT_BYTES_MAX: usize = 432;

/// `Answer::operation` where there was no command.
pub const OPERATION_NONE: u16 = 0;
/// vDrive's *vorder* (§ 4.1.1): nothing that comes later survives a power cut unless everything that has completed does.
pub const OPERATION_VORDER: u16 = 1;
/// vDrive's *vflush* (§ 4.1.1): everything that has completed survives a power cut, under every contract.
pub const OPERATION_VFLUSH: u16 = 2;
/// vDrive's *aio-notify* (§ 4.1.2): a point is durable. Forces nothing where durability comes by itself.
pub const OPERATION_WAIT: u16 = 3;

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
    /// [`OPERATION_WAIT`]: which daemon's the point is, as an answer said; 0: now.
    pub instance: U64,
    /// [`OPERATION_WAIT`]: the point.
    pub sequence: U64,
    /// [`OPERATION_WAIT`]: at most [`WAIT_MS_MAX`].
    pub timeout_ms: U32,
    /// Zero.
    pub reserved: [u8; 468],
}

const _: () = assert!(size_of::<Command>() == 512);

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

    /// Reads a command. Whether there is such an operation is not judged; one that there is says what it should.
    ///
    /// # Errors
    /// Not a command, one of a later version, or one whose length, checksum or fields are wrong.
    pub fn parse(bytes: &[u8]) -> Result<Self, FormatError> {
        let (command, rest) =
            Self::read_from_prefix(bytes).map_err(|_| FormatError::Corrupt("the command is cut short"))?;
        check(command.magic, COMMAND_MAGIC, "a command", command.version.get())?;
        if !rest.is_empty() {
            return Err(FormatError::Corrupt("the command is longer than its sector"));
        }
        if command.seal().crc != command.crc {
            return Err(FormatError::Corrupt("the command's checksum does not match"));
        }
        let waits = command.operation.get() == OPERATION_WAIT;
        let point = command.instance.get() != 0 || command.sequence.get() != 0;
        if command.reserved.iter().any(|byte| *byte != 0)
            || (!waits && (point || command.timeout_ms.get() != 0))
        {
            return Err(FormatError::Corrupt("the command says more than its operation takes"));
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
