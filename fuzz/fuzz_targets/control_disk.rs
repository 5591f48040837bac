//! A command on the control disk, and an answer as a guest reads it.
#![no_main]

use afterimage_format::control_disk::{Answer, Command, BLOCKS_MAX, COMMAND_MAGIC, CONTROL_VERSION, WAIT_MS_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Answer::parse(data).map(|answer| answer.text());
    let accepted = Command::parse(data, data.len());
    // What only a right magic, version and checksum stand before.
    let mut sector = [0; 512];
    sector.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    let mut command: Command = zerocopy::transmute!(sector);
    (command.magic, command.version) = (COMMAND_MAGIC, CONTROL_VERSION.into());
    let sealed = command.seal();
    let length = 512 + command.blocks.get().min(BLOCKS_MAX) as usize * 4096;
    for command in accepted.into_iter().chain(Command::parse(zerocopy::IntoBytes::as_bytes(&sealed), length)) {
        assert_eq!(command, command.seal());
        assert!(command.timeout_ms.get() <= WAIT_MS_MAX && command.reserved == [0; 440]);
    }
});
