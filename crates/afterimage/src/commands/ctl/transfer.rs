//! Ranges of one file to another, holes kept.

use std::fs::File;
use std::io;
use std::ops::Range;

use rustix::fs::{fallocate, seek, FallocateFlags, SeekFrom};
use rustix::io::Errno;

/// Bytes through memory at once, where the kernel does not copy.
const BUFFER_BYTES: usize = 1 << 20;

/// Makes a range of `to` as it is in `from`, in pieces of so many bytes, for as long as it goes on, which is asked after each piece.
/// Returns where it ended.
///
/// # Errors
/// One of the files cannot be read or written, or `from` ends before.
pub fn copy_range(
    from: &File,
    to: &File,
    range: Range<u64>,
    piece_bytes: u64,
    goes_on: &mut dyn FnMut(u64) -> bool,
) -> io::Result<u64> {
    let mut at = range.start;
    while at < range.end {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data.min(range.end),
            Err(Errno::NXIO) => range.end,
            Err(e) => return Err(e.into()),
        };
        if at < data {
            clear(to, at..data)?;
            at = data;
            if !goes_on(0) {
                return Ok(at);
            }
            continue;
        }
        let end = seek(from, SeekFrom::Hole(data))?.min(range.end);
        while at < end {
            let bytes = copy_piece(from, to, at, piece_bytes.min(end - at))?;
            if bytes == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += bytes;
            if !goes_on(bytes) {
                return Ok(at);
            }
        }
    }
    Ok(at)
}

/// Makes a hole, or zeroes what is none where the file system makes none.
fn clear(to: &File, range: Range<u64>) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut at = range.start;
    while at < range.end {
        let data = match seek(to, SeekFrom::Data(at)) {
            Ok(data) if data < range.end => data,
            Ok(_) | Err(Errno::NXIO) => break,
            Err(e) => return Err(e.into()),
        };
        match fallocate(to, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, data, range.end - data) {
            Ok(()) => break,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(e) => return Err(e.into()),
        }
        let bytes = (range.end - data).min(BUFFER_BYTES as u64);
        to.write_all_at(&vec![0; bytes as usize], data)?;
        at = data + bytes;
    }
    Ok(())
}

/// Copies in the kernel where the two file systems allow it, through memory elsewhere.
fn copy_piece(from: &File, to: &File, at: u64, bytes: u64) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let (mut source, mut target) = (at, at);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    match rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), bytes) {
        Ok(copied) => Ok(copied as u64),
        Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
            let mut buffer = vec![0; bytes.min(BUFFER_BYTES)];
            let copied = from.read_at(&mut buffer, at)?;
            to.write_all_at(&buffer[..copied], at)?;
            Ok(copied as u64)
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    const LENGTH: u64 = 8 << 20;

    fn files(folder: &std::path::Path) -> (File, File) {
        let file = |name: &str| {
            let file =
                File::options().read(true).write(true).create_new(true).open(folder.join(name)).unwrap();
            file.set_len(LENGTH).unwrap();
            file
        };
        (file("from"), file("to"))
    }

    fn whole(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_range_becomes_as_it_is_and_nothing_else_does() {
        for folder in [tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap()] {
            let (from, to) = files(folder.path());
            // Two pieces with holes between them, over something else.
            [1 << 20, 4 << 20].iter().for_each(|at| from.write_all_at(&[7; 8192], *at).unwrap());
            to.write_all_at(&vec![9; LENGTH as usize], 0).unwrap();
            let range = (1 << 20) + 4096..6 << 20;
            let mut copied = 0;
            let mut count = |bytes| {
                copied += bytes;
                true
            };
            assert_eq!(copy_range(&from, &to, range.clone(), 4096, &mut count).unwrap(), range.end);
            assert_eq!(copied, 12288);
            let mut expected = vec![9; LENGTH as usize];
            expected[range.start as usize..range.end as usize]
                .copy_from_slice(&whole(&from)[range.start as usize..range.end as usize]);
            assert!(whole(&to) == expected);
            assert!(to.metadata().unwrap().blocks() * 512 < 5 << 20, "what is a hole there is none here");
        }
    }

    #[test]
    fn it_stops_where_it_may_not_go_on_and_says_where() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = files(folder.path());
        from.write_all_at(&[7; 65536], 0).unwrap();
        let mut asked = 0;
        let mut twice = |_| {
            asked += 1;
            asked < 2
        };
        assert_eq!(copy_range(&from, &to, 0..LENGTH, 4096, &mut twice).unwrap(), 8192);
        let copy = whole(&to);
        assert!(copy[..8192] == [7; 8192] && copy[8192..].iter().all(|b| *b == 0));
        from.set_len(4096).unwrap();
        assert!(copy_range(&from, &to, 4096..8192, 4096, &mut |_| true).is_ok(), "a hole behind the end");
    }
}
