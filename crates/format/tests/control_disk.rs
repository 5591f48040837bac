//! The control disk's bytes, spelled out; the same in C; and a parser that takes anything.

mod common;

use std::path::Path;
use std::process::Stdio;

use afterimage_format::control_disk::*;
use afterimage_format::{checksum, FormatError};
use common::{built_by_c, hex, printed_by_c};
use proptest::prelude::*;
use zerocopy::{FromZeros as _, IntoBytes as _};

fn command() -> Command {
    let mut command = Command::new(OPERATION_WAIT, 0x0102_0304_0506_0708);
    command.instance = 0x1112_1314_1516_1718.into();
    command.sequence = 0x2122_2324_2526_2728.into();
    command.timeout_ms = 999.into();
    command.seal()
}

fn hand_over() -> Command {
    let mut command = Command::new(OPERATION_MPROTECT, 0x0102_0304_0506_0708);
    (command.instance, command.sequence) = (0x1112_1314_1516_1718.into(), 0x2122_2324_2526_2728.into());
    (command.blocks, command.block) = (0x3132.into(), 0x4142_4344_4546_4748.into());
    command.file_system = std::array::from_fn(|i| i as u8 + 0x51);
    command.seal()
}

fn answer() -> Answer {
    let answer = Answer {
        operation: OPERATION_VFLUSH.into(),
        tag: 0x0102_0304_0506_0708.into(),
        status: STATUS_FAILED.into(),
        contract: 2.into(),
        window_us: 50_000.into(),
        instance: 0x1112_1314_1516_1718.into(),
        sequence: 0x2122_2324_2526_2728.into(),
        durable: 0x3132_3334_3536_3738.into(),
        operations: 0xe.into(),
        slots: SLOTS.into(),
        slot_bytes: SLOT_BYTES.into(),
        held: Held {
            versions: 1.into(),
            pending: 2.into(),
            data_bytes: 3.into(),
            information_bytes: 4.into(),
        },
        ..Answer::new_zeroed()
    };
    answer.seal("no: broken")
}

fn lent() -> Lent {
    let file_system = std::array::from_fn(|i| i as u8 + 0x51);
    let mut lent = Lent::new(file_system, 0x1112_1314_1516_1718, 0x2122_2324_2526_2728);
    (lent.published, lent.blocks, lent.back) = (0x6162_6364.into(), 0x7172_7374.into(), 1.into());
    (lent.state, lent.taken) = (LENT_CLOSED.into(), 0x8182_8384.into());
    lent.block[0] = 0x4142_4344_4546_4748.into();
    lent.block[BLOCKS_MAX as usize - 1] = 0x3132_3334_3536_3738.into();
    lent
}

#[test]
fn memory_that_is_lent_begins_with_these_bytes() {
    let bytes = lent();
    let golden = "414643544c4d0d0a01000000CRC0000018171615141312112827262524232221\
                  5152535455565758595a5b5c5d5e5f6000000000000000000000000000000000";
    assert_eq!(hex(&bytes.as_bytes()[..64]), golden.replace("CRC00000", &hex(&bytes.as_bytes()[12..16])));
    assert_eq!(hex(&bytes.as_bytes()[64..80]), "64636261747372710100000000000000");
    assert_eq!(hex(&bytes.as_bytes()[128..136]), "0200000084838281");
    assert_eq!(hex(&bytes.as_bytes()[192..200]), "4847464544434241");
    assert_eq!(hex(&bytes.as_bytes()[2224..2240]), "38373635343332310000000000000000");
    let mut unsealed = bytes.as_bytes()[..64].to_vec();
    unsealed[12..16].fill(0);
    assert_eq!(bytes.crc.get(), checksum(&unsealed));
    // What both sides change meanwhile is not judged.
    assert_eq!(Lent::parse(bytes.as_bytes()), Ok(bytes));
    assert_eq!((Lent::PUBLISHED_AT, Lent::BACK_AT, Lent::STATE_AT, Lent::TAKEN_AT), (64, 72, 128, 132));
    for at in 0..64 {
        let mut wrong = bytes.as_bytes().to_vec();
        wrong[at] ^= 4;
        assert!(Lent::parse(&wrong).is_err(), "byte {at}");
    }
    assert!(Lent::parse(&bytes.as_bytes()[..4095]).is_err());
    assert!(Lent::parse(Lent::new([1; 16], 0, 7).as_bytes()).is_err(), "by no right");
}

#[test]
fn a_command_and_an_answer_are_these_bytes() {
    let bytes = command();
    let golden = "414643544c430d0a01000300CRC0000008070605040302011817161514131211282726252423222\
                  1e7030000";
    assert_eq!(hex(&bytes.as_bytes()[..44]), golden.replace("CRC00000", &hex(&bytes.as_bytes()[12..16])));
    assert!(bytes.as_bytes()[44..].iter().all(|byte| *byte == 0));
    let mut unsealed = bytes.as_bytes().to_vec();
    unsealed[12..16].fill(0);
    assert_eq!(bytes.crc.get(), checksum(&unsealed));
    assert_eq!(Command::parse(bytes.as_bytes(), 512), Ok(bytes));

    let bytes = hand_over();
    let golden = "414643544c430d0a01001200CRC0000008070605040302011817161514131211282726252423222100000000\
                  323100005152535455565758595a5b5c5d5e5f604847464544434241";
    assert_eq!(hex(&bytes.as_bytes()[..72]), golden.replace("CRC00000", &hex(&bytes.as_bytes()[12..16])));
    assert!(bytes.as_bytes()[72..].iter().all(|byte| *byte == 0));

    let bytes = answer();
    let golden = "414643544c410d0a01000200CRC0000008070605040302010400020050c30000\
                  1817161514131211282726252423222138373635343332310e00000000000000\
                  40000000000010000a000000000000006e6f3a2062726f6b656e0000";
    assert_eq!(hex(&bytes.as_bytes()[..92]), golden.replace("CRC00000", &hex(&bytes.as_bytes()[12..16])));
    let held = "0100000000000000020000000000000003000000000000000400000000000000";
    assert_eq!(hex(&bytes.as_bytes()[480..]), held);
    let parsed = Answer::parse(bytes.as_bytes()).unwrap();
    assert_eq!((parsed.text().as_str(), parsed), ("no: broken", bytes));
}

/// What the C header's structures are when they are filled in with the same values.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <string.h>
#include <endian.h>
#include "afterimage_control_disk.h"
int main(void)
{
    struct afterimage_command c, h;
    struct afterimage_answer a;
    struct afterimage_lent l;
    memset(&l, 0, sizeof(l));
    memset(&c, 0, sizeof(c));
    memset(&h, 0, sizeof(h));
    memset(&a, 0, sizeof(a));
    memcpy(c.magic, AFTERIMAGE_COMMAND_MAGIC, 8);
    c.version = htole16(AFTERIMAGE_CONTROL_VERSION);
    c.operation = htole16(AFTERIMAGE_WAIT);
    c.tag = htole64(0x0102030405060708);
    c.instance = htole64(0x1112131415161718);
    c.sequence = htole64(0x2122232425262728);
    c.timeout_ms = htole32(AFTERIMAGE_WAIT_MS_MAX - 1);
    memcpy(&h, &c, sizeof(h));
    h.operation = htole16(AFTERIMAGE_MPROTECT);
    h.timeout_ms = 0;
    h.blocks = htole32(0x3132);
    h.block = htole64(0x4142434445464748);
    for (int i = 0; i < 16; i++)
        h.file_system[i] = i + 0x51;
    memcpy(a.magic, AFTERIMAGE_ANSWER_MAGIC, 8);
    a.version = htole16(AFTERIMAGE_CONTROL_VERSION);
    a.operation = htole16(AFTERIMAGE_VFLUSH);
    a.tag = htole64(0x0102030405060708);
    a.status = htole16(AFTERIMAGE_FAILED);
    a.contract = htole16(AFTERIMAGE_POWER_WINDOW);
    a.window_us = htole32(50000);
    a.instance = htole64(0x1112131415161718);
    a.sequence = htole64(0x2122232425262728);
    a.durable = htole64(0x3132333435363738);
    a.operations = htole64(1 << AFTERIMAGE_VORDER | 1 << AFTERIMAGE_VFLUSH | 1 << AFTERIMAGE_WAIT);
    a.slots = htole32(AFTERIMAGE_SLOTS);
    a.slot_bytes = htole32(AFTERIMAGE_SLOT_BYTES);
    a.text_len = htole16(10);
    memcpy(a.text, "no: broken", 10);
    a.held.versions = htole64(1);
    a.held.pending = htole64(2);
    a.held.data_bytes = htole64(3);
    a.held.information_bytes = htole64(4);
    memcpy(l.magic, AFTERIMAGE_LENT_MAGIC, 8);
    l.version = c.version;
    l.instance = c.instance;
    l.sequence = c.sequence;
    memcpy(l.file_system, h.file_system, 16);
    l.published = htole32(0x61626364);
    l.blocks = htole32(0x71727374);
    l.back = htole32(1);
    l.state = htole32(AFTERIMAGE_CLOSED);
    l.taken = htole32(0x81828384);
    l.block[0] = h.block;
    l.block[AFTERIMAGE_BLOCKS_MAX - 1] = htole64(0x3132333435363738);
    fwrite(&c, 1, sizeof(c), stdout);
    fwrite(&h, 1, sizeof(h), stdout);
    fwrite(&a, 1, sizeof(a), stdout);
    fwrite(&l, 1, sizeof(l), stdout);
    fputs(AFTERIMAGE_CONTROL_SERIAL, stdout);
    printf("%d %d %d", AFTERIMAGE_LEND, AFTERIMAGE_BLOCKS_MAX, AFTERIMAGE_FILE_SYSTEM_SLOTS);
    printf(" %d %d %d", AFTERIMAGE_REFUSED, AFTERIMAGE_LENT_MS_MAX, AFTERIMAGE_PUBLISHED_US_MAX);
    printf(" %d %d", AFTERIMAGE_CHALLENGE, AFTERIMAGE_CHALLENGE_AT);
    return sizeof(a.text) != AFTERIMAGE_TEXT_BYTES_MAX || sizeof(a) != AFTERIMAGE_SECTOR_BYTES;
}
"#;

#[test]
fn the_c_header_has_the_same_bytes() {
    let Some(printed) = printed_by_c("control_disk_bytes", "guest/control", PROGRAM) else { return };

    let (mut command, mut hand_over, mut answer) = (command(), hand_over(), answer());
    (command.crc, hand_over.crc, answer.crc) = (0.into(), 0.into(), 0.into());
    let lent = Lent { crc: 0.into(), ..lent() };
    let numbers = format!(
        "{CONTROL_SERIAL}{OPERATION_LEND} {BLOCKS_MAX} {FILE_SYSTEM_SLOTS} {LENT_REFUSED} {LENT_MS_MAX} {PUBLISHED_US_MAX} {OPERATION_CHALLENGE} {CHALLENGE_AT}"
    );
    let parts: [&[u8]; 5] =
        [command.as_bytes(), hand_over.as_bytes(), answer.as_bytes(), lent.as_bytes(), numbers.as_bytes()];
    let ours = parts.concat();
    assert_eq!(hex(&printed), hex(&ours));
}

/// Which moment *now* is says a command, which waits for what is published, and no read; every later part is about the same one.
#[test]
fn a_c_program_waits_for_one_now() {
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wpadded"
#define pread daemon_is_read
#define pwrite daemon_is_asked
#include <sys/types.h>
ssize_t daemon_is_read(int fd, void *sector, size_t length, off_t at);
ssize_t daemon_is_asked(int fd, const void *sector, size_t length, off_t at);
#include "afterimage_guest.c"

static struct afterimage_answer answer;

ssize_t daemon_is_read(int fd, void *sector, size_t length, off_t at)
{
	(void)fd;
	answer.version = 1;
	memcpy(answer.magic, AFTERIMAGE_ANSWER_MAGIC, sizeof(answer.magic));
	answer.instance = 7;
	answer.sequence = at ? 41 : 40;
	answer.crc = 0;
	answer.crc = checksum(&answer, sizeof(answer));
	memcpy(sector, &answer, length);
	return length;
}

ssize_t daemon_is_asked(int fd, const void *sector, size_t length, off_t at)
{
	const struct afterimage_command *command = sector;
	static int asked;

	(void)fd, (void)at;
	printf("%d:%d ", (int)command->instance, (int)command->sequence);
	answer.operation = command->operation;
	answer.tag = command->tag;
	answer.status = ++asked < 3 ? AFTERIMAGE_NOT_YET : AFTERIMAGE_DONE;
	return length;
}

int main(void)
{
	static struct afterimage_answer sector;
	struct afterimage control = { .slot = AFTERIMAGE_SLOT_BYTES, .sector = &sector };

	return afterimage_wait(&control, NULL, -1);
}
"#;
    let Some(printed) = printed_by_c("control_disk_wait", "guest/control", PROGRAM) else { return };
    assert_eq!(String::from_utf8(printed).unwrap(), "0:0 7:41 7:41 ");
}

/// On a file instead of a disk, which is enough to be looked at.
#[test]
fn the_guests_program_understands_its_words_before_it_looks_for_a_disk_and_loses_no_output() {
    const PROGRAM: &str = r#"
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wpadded"
#include <fcntl.h>
#undef O_DIRECT
#define O_DIRECT 0
#include "afterimage_guest.c"
#include "afterimage-guest.c"
"#;
    let Some(program) = built_by_c("control_disk_program", "guest/control", PROGRAM) else { return };
    let disk = program.with_extension("disk");
    std::fs::write(&disk, answer().as_bytes()).unwrap();
    let status = |disk: &Path, words: &str, output: &str| {
        let mut command = std::process::Command::new(&program);
        command.arg("-d").arg(disk).args(words.split_whitespace());
        command.stdout(std::fs::File::create(output).unwrap()).stderr(Stdio::null());
        command.status().unwrap().code()
    };
    let none = Path::new("/nowhere");
    for words in [
        "",
        "frobnicate",
        "show x",
        "wait -t x",
        "wait 1:2 3",
        "wait 1",
        "wait 0:1",
        "wait 1:-1",
        "wait -1:1",
        "wait +1:1",
        "query",
        "query nonsense",
        "recover 0123456789abcdef",
    ] {
        assert_eq!(status(none, words, "/dev/null"), Some(2), "{words}");
    }
    for words in ["show", "wait", "wait -t 1.5 00000000000000ff:1", "order x", "flush"] {
        assert_eq!(status(none, words, "/dev/null"), Some(1), "{words}");
    }
    assert_eq!(status(&disk, "show", "/dev/null"), Some(0));
    assert_eq!(status(&disk, "show", "/dev/full"), Some(1));
}

#[test]
fn what_is_no_command_is_refused() {
    let refused = |change: fn(&mut Command)| {
        let mut changed = command();
        change(&mut changed);
        Command::parse(changed.seal().as_bytes(), 512).unwrap_err()
    };
    assert_eq!(refused(|c| c.magic[0] = 0), FormatError::Magic { what: "a command" });
    assert_eq!(refused(|c| c.version = 2.into()), FormatError::Version { version: 2, known: 1 });
    assert!(matches!(refused(|c| c.version = 0.into()), FormatError::Old { .. }));
    for change in [
        |c: &mut Command| c.reserved[439] = 1,
        |c: &mut Command| c.timeout_ms = (WAIT_MS_MAX + 1).into(),
        |c: &mut Command| c.instance = 0.into(),
        |c: &mut Command| c.operation = OPERATION_VFLUSH.into(),
        |c: &mut Command| c.operation = OPERATION_QUERY.into(),
        |c: &mut Command| c.file_system = [1; 16],
        |c: &mut Command| c.blocks = 1.into(),
        |c: &mut Command| c.block = 1.into(),
    ] {
        assert!(matches!(refused(change), FormatError::Corrupt(_)));
    }
    let bytes = command();
    let longer = [bytes.as_bytes(), &[0; 512]].concat();
    assert!(matches!(Command::parse(&longer, longer.len()), Err(FormatError::Corrupt(_))));
    assert!(matches!(Command::parse(&bytes.as_bytes()[..511], 511), Err(FormatError::Corrupt(_))));
    // A commit says by which right, and brings as many blocks as it says.
    let handed = |change: fn(&mut Command), length: usize| {
        let mut changed = hand_over();
        changed.blocks = 2.into();
        change(&mut changed);
        Command::parse(changed.seal().as_bytes(), length)
    };
    assert!(handed(|_| {}, 512 + 2 * 4096).is_ok());
    for (change, length) in [
        (|_: &mut Command| {}, 512 + 4096),
        (|_| {}, 512 + 3 * 4096),
        (|c| c.blocks = 0.into(), 512),
        (|c| c.instance = 0.into(), 512 + 2 * 4096),
        (|c| c.timeout_ms = 1.into(), 512 + 2 * 4096),
        (|c| c.blocks = (BLOCKS_MAX + 1).into(), 512 + 256 * 4096),
        (|c| c.blocks = (1 << 20).into(), 512),
    ] as [(fn(&mut Command), usize); 7]
    {
        assert!(matches!(handed(change, length), Err(FormatError::Corrupt(_))));
    }
    // An operation that nobody has is for the daemon to refuse.
    assert!(Command::parse(Command::new(77, 1).seal().as_bytes(), 512).is_ok());
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let text = "ä".repeat(TEXT_BYTES_MAX);
    let answer = Answer::new_zeroed().seal(&text[..2 * TEXT_BYTES_MAX - 2]);
    assert_eq!(answer.text(), "ä".repeat(TEXT_BYTES_MAX / 2));
    let odd = Answer::new_zeroed().seal(&format!("x{text}"));
    assert_eq!(odd.text(), format!("x{}", "ä".repeat(TEXT_BYTES_MAX / 2 - 1)));
}

proptest! {
    #[test]
    fn one_wrong_bit_is_noticed(at in 0usize..512, bit in 0u32..8) {
        let mut bytes = command().as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        prop_assert!(Command::parse(&bytes, 512).is_err());
        let mut bytes = answer().as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        prop_assert!(Answer::parse(&bytes).is_err());
    }

    #[test]
    fn anything_may_come(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
        let _ = Command::parse(&bytes, bytes.len());
        let _ = Answer::parse(&bytes);
        // And behind a right magic, version and checksum.
        let mut sector = [0; 512];
        sector.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
        let mut command: Command = zerocopy::transmute!(sector);
        command.magic = COMMAND_MAGIC;
        command.version = CONTROL_VERSION.into();
        let length = 512 + command.blocks.get().min(BLOCKS_MAX) as usize * 4096;
        if let Ok(parsed) = Command::parse(command.seal().as_bytes(), length) {
            prop_assert_eq!(parsed.operation.get() == OPERATION_MPROTECT, parsed.blocks.get() > 0);
            prop_assert!(parsed.timeout_ms.get() <= WAIT_MS_MAX);
            prop_assert_eq!(parsed, command.seal());
        }
    }
}
