//! The log reader's entry point for fuzzing.

use std::sync::Arc;
use std::time::Duration;

use afterimage_block::sim::SimWorld;
use afterimage_block::Medium;
use afterimage_format::log::PAGE_BYTES;

use super::core::{Config, Core};
use super::scan::{read_header, scan};
use crate::VirtualClock;

/// The largest images that are made up for a fuzzed log.
const IMAGES_BYTES_MAX: u64 = 16 << 20;

/// Treats bytes as a log file: reads it, and where it is good, takes it over and brings it home into images of the sizes
/// it names. Must never panic, whatever the bytes are.
pub fn fuzz_log(bytes: &[u8]) {
    fuzz(bytes.to_vec());
    // A fuzzer cannot guess checksums: the same with the two header slots sealed.
    let mut sealed = bytes.to_vec();
    for slot in sealed.chunks_exact_mut(PAGE_BYTES as usize).take(2) {
        let mut raw = [0; PAGE_BYTES as usize];
        raw.copy_from_slice(slot);
        let header: afterimage_format::log::LogHeader = zerocopy::transmute!(raw);
        slot.copy_from_slice(&header.seal());
    }
    fuzz(sealed);
}

fn fuzz(bytes: Vec<u8>) {
    let world = SimWorld::new(vec![bytes]);
    let log: Arc<dyn Medium> = world.medium(0);
    let Ok(header) = read_header(log.as_ref()) else { return };
    let sizes: Vec<u64> = header.images().iter().map(|image| image.size_bytes.get()).collect();
    if sizes.iter().any(|size| *size > IMAGES_BYTES_MAX) {
        // Its records are still judged; images of that size are not made up.
        let _ = scan(&log);
        return;
    }
    let mut contents = vec![world.cached(0)];
    contents.extend(sizes.iter().map(|size| vec![0; *size as usize]));
    let world = SimWorld::new(contents);
    let config = Config {
        window: Duration::from_millis(50),
        clock: Arc::new(VirtualClock::default()),
        log: world.medium(0),
        homes: (1..=sizes.len()).map(|i| world.medium(i) as Arc<dyn Medium>).collect(),
        incarnation: 1,
        #[cfg(feature = "mutations")]
        mutation: None,
    };
    if let Ok(core) = Core::open(config) {
        let _ = core.close();
    }
}
