//! The same few requests in every trace format, and what real tools write around them.

use std::error::Error;

use afterimage_flash::trace::{Format, Kind, Request, Writer};

/// As blkparse prints it, with events that are no request and its summary.
const BLKPARSE: &str = "\
  8,0    3        2     0.000000100  697  Q   W 223490 + 8 [kjournald]
  8,0    3       11     0.009507758  697  D   W 223490 + 56 [kjournald]
  8,0    3       12     0.010000000  697  C   W 223490 + 56 [0]
  8,0    1        4     0.030000000  697  D FWS 0 + 0 [kworker/1:1H]
  8,0    1        5     0.040000000  697  D  DS 1024 + 2048 [fstrim]
  8,0    1        7     0.050000000    0  m   N cfq697S / alloced
CPU3 (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:          7,      128KiB
";

/// As `serve --trace` writes it, with every operation, class and remark.
const AFTERIMAGE: &str = "\
# afterimage-trace 1
# begun 1795276800123456789 ns since 1970
# file disk0 4294967296 /vm/a.img
# file log 268435456 /vm/a.img.aflog
1000 log write 8192 4608 log
1500 log flush 0 0 log
2000 disk0 read 1024 512 home
2000 disk0 write 1048576 8192 journal
# dropped 12
3500 disk0 zero 4096 65536 home
3500 disk0 discard 8192 4096 home
# end 6 requests, 12 dropped
";

/// With the actions that are passed over.
const FIO2: &str = "\
fio version 2 iolog
/mnt/a disk add
/mnt/a disk open
/mnt/a disk read 0 4096
/mnt/a disk wait 2000 0
/mnt/a disk write 4096 512
/mnt/a disk datasync 0 0
/mnt/a disk close
";

/// A name and contents.
pub type Seed = (String, Vec<u8>);

/// All of them.
pub fn seeds() -> Result<Vec<Seed>, Box<dyn Error>> {
    let request = |time_us: u64, device, kind, offset, bytes| Request {
        time_ns: Some(time_us * 1000),
        device,
        kind,
        offset,
        bytes,
    };
    let requests = [
        request(0, 0, Kind::Write, 1 << 20, 4096),
        request(250, 1, Kind::Read, 512, 512),
        request(1_000_250, 0, Kind::Discard, 8192, 1 << 16),
        request(2_000_000, 0, Kind::Write, 4096, 65_536),
    ];
    let mut seeds = vec![
        ("afterimage-real".to_owned(), AFTERIMAGE.into()),
        ("blkparse-real".to_owned(), BLKPARSE.into()),
        ("fio2-real".to_owned(), FIO2.into()),
    ];
    for format in Format::ALL {
        let mut writer = Writer::new(Vec::new(), format)?;
        for request in &requests {
            writer.request(request)?;
        }
        seeds.push((format.name().to_owned(), writer.finish()?));
    }
    let packed = zstd::encode_all(BLKPARSE.as_bytes(), 3)?;
    seeds.push(("zstd".to_owned(), packed));
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packer, BLKPARSE.as_bytes())?;
    seeds.push(("gzip".to_owned(), packer.finish()?));
    Ok(seeds)
}
