//! Files that are no trace, told by how they begin: they are named, not read as text.

/// Where, the bytes there, and what such a file is.
const FOREIGN: [(usize, &[u8], &str); 23] = [
    (257, b"ustar", "a tar archive: unpack it, and name the traces in it"),
    (0, b"PK\x03\x04", "a zip archive: unpack it, and name the traces in it"),
    (0, b"PK\x05\x06", "an empty zip archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive: unpack it, and name the traces in it"),
    (0, b"Rar!\x1a\x07", "a RAR archive: unpack it, and name the traces in it"),
    (0, b"!<arch>\n", "an ar archive: unpack it, and name the traces in it"),
    (0, b"\xfd7zXZ\0", "compressed by xz: unpack it by xz -d, or use gzip or zstd"),
    (4, b"1AY&SY", "compressed by bzip2: unpack it by bzip2 -d, or use gzip or zstd"),
    (0, b"\x04\x22\x4d\x18", "compressed by lz4: unpack it by lz4 -d, or use gzip or zstd"),
    (0, b"LZIP", "compressed by lzip: unpack it by lzip -d, or use gzip or zstd"),
    (0, b"\x5d\0\0", "compressed by lzma: unpack it by unlzma, or use gzip or zstd"),
    (0, b"\x89LZO\0\r\n\x1a\n", "compressed by lzop: unpack it by lzop -d, or use gzip or zstd"),
    (0, b"\x1f\x9d", "compressed by compress(1): unpack it by gzip -d"),
    (0, b"\xff\x06\0\0sNaPpY", "compressed by snappy: unpack it, or use gzip or zstd"),
    (0, b"\x1f\x8b", "compressed twice: unpack it once"),
    (0, b"\x28\xb5\x2f\xfd", "compressed twice: unpack it once"),
    (0, b"\xff\xfe", "text in UTF-16: convert it by iconv -f UTF-16 -t UTF-8"),
    (0, b"\xfe\xff", "text in UTF-16: convert it by iconv -f UTF-16 -t UTF-8"),
    (0, b"\x07tae", "what blktrace writes: print it by blkparse"),
    (0, b"eat\x07", "what blktrace writes: print it by blkparse, on a machine of the same byte order"),
    (0, b"AFIREC\r\n", "a recording of afterimage explore, not a trace"),
    (0, b"SQLite format 3\0", "a SQLite database: export it as CSV"),
    (0, b"PAR1", "a Parquet file: export it as CSV"),
];

/// What a file is that begins so, unless it may be a trace.
pub fn what(head: &[u8]) -> Option<&'static str> {
    let is = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    FOREIGN.iter().find(|(at, bytes, _)| is(*at, bytes)).map(|(_, _, what)| *what)
}
