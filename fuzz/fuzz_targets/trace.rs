//! A block trace in any format, plain, gzip or zstd: which format it is and what its lines mean.
#![no_main]

use libfuzzer_sys::fuzz_target;

/// A few bytes of zstd unfold to 128 KiB: more compressed bytes than this would cost time and find nothing new.
const COMPRESSED_MAX: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let compressed = data.starts_with(&[0x1f, 0x8b]) || data.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let data = if compressed { &data[..data.len().min(COMPRESSED_MAX)] } else { data };
    afterimage_fuzz_kit::traces::fuzz_read(data);
});
