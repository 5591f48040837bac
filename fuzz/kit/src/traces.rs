//! Block traces in every format, as their tools write them and as our writer does, and their reader's entry point for fuzzing.

use std::error::Error;
use std::io::{Cursor, Write as _};
use std::path::Path;

use afterimage_flash::trace::{Class, Format, Kind, Options, Reader, Request, Writer};

/// As `serve --trace` writes it, with every operation, class and most remarks.
pub const AFTERIMAGE: &str = "\
# afterimage-trace 1
# by afterimage 0.1.0: --survives power-window=50ms --journal passthrough
# begun 1795276800123456789 ns since 1970
# file disk0 4294967296 /vm/a.img
# file disk1 4294967296 /vm/b.img
# file log 268435456 /vm/a.img.aflog
# time_ns file operation offset_bytes length_bytes class
1000 log write 8192 4608 log
1500 log flush 0 0 log
2000 disk1 read 1024 512 home
2000 disk0 write 1048576 8192 journal
3500 disk0 zero 4096 65536 home
3500 disk0 discard 8192 4096 home
3600 disk0 flush 0 0 home
# end 7 requests, 0 dropped
";

/// As blkparse prints it, with events that are no request and its summary.
pub const BLKPARSE: &str = "\
  8,0    3        1     0.000000000  697  G   W 223490 + 8 [kjournald]
  8,0    3        2     0.000000100  697  Q   W 223490 + 8 [kjournald]
  8,0    3       11     0.009507758  697  D   W 223490 + 56 [kjournald]
  8,0    3       12     0.010000000  697  C   W 223490 + 56 [0]
  8,16   0        1     0.020000000    0  D  RA 64 + 8 [cat]
  8,0    1        3     0.030000000  697  D FWFS [kworker/1:1H]
  8,0    1        4     0.030000000  697  D FWS 0 + 0 [kworker/1:1H]
  8,0    1        5     0.040000000  697  D  DS 1024 + 2048 [fstrim]
  8,0    1        6     0.050000000  697  P   N [fstrim]
  8,0    1        7     0.050000000    0  m   N cfq697S / alloced
  8,0    1        8     0.050000001    0 UT   N [swapper] 1
CPU3 (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:          7,      128KiB
 Read depth:             0         \t Write depth:            2

Total (8,0):
 Reads Queued:           0,        0KiB\t Writes Queued:          7,      128KiB

Throughput (R/W): 0KiB/s / 575KiB/s
Events (8,0): 13 entries
Skips: 0 forward (0 -   0.0%)
";

/// As fio 3.33 wrote it.
pub const FIO3: &str = "\
fio version 3 iolog
21 /dev/shm/fiot.dat add
185 /dev/shm/fiot.dat open
189 /dev/shm/fiot.dat read 0 4096
209 /dev/shm/fiot.dat write 45056 4096
210 /dev/shm/fiot.dat sync 0 0
212 /dev/shm/fiot.dat trim 28672 8192
218 /dev/shm/fiot.dat close
";

/// With the actions that are passed over.
pub const FIO2: &str = "\
fio version 2 iolog
/mnt/a disk add
/mnt/a disk open
/mnt/a disk read 0 4096
/mnt/a disk wait 2000 0
/mnt/a disk write 4096 512
/mnt/a disk datasync 0 0
/mnt/a disk close
";

/// As the MSR Cambridge traces are.
pub const MSR: &str = "\
128166372003061629,hm,0,Read,383496192,32768,413
128166372016382155,hm,1,Write,2822144,4096,404
";

/// As the Storage Performance Council's traces are.
pub const SPC: &str = "0,303567,3584,w,0.000000\n1,55590,3072,R,0.026214\n0,303574,3584,W,1.5,ignored\n";

/// DiskSim's ASCII format.
pub const DISKSIM: &str = "0.000000 0 4096 8 0\n12.500000 1 16 16 1\n13.25 1 16 16 0x11\n";

/// MQSim's, which is DiskSim's in nanoseconds.
pub const MQSIM: &str = "4800 0 4096 8 0\n48100 1 16 16 1\n";

/// Reads arbitrary bytes as a trace in every way; must not panic.
pub fn fuzz_read(data: &[u8]) {
    for format in Format::ALL.into_iter().map(Some).chain([None]) {
        let options = Options { format, ..Options::default() };
        let source = Box::new(Cursor::new(data.to_vec()));
        let Ok(mut reader) = Reader::new(Path::new("fuzz"), source, &options) else { continue };
        // Compressed input may unfold to a great deal.
        while reader.tally().lines < 10_000 && matches!(reader.next_request(), Ok(Some(_))) {}
    }
}

/// A name and contents.
pub type Seed = (String, Vec<u8>);

/// What fuzzing starts from.
///
/// # Errors
/// The writer of a format or a compressor fails.
pub fn seeds() -> Result<Vec<Seed>, Box<dyn Error>> {
    let request = |time_us: u64, device, kind, offset, bytes| Request {
        time_ns: Some(time_us * 1000),
        device,
        kind,
        offset,
        bytes,
        class: Class::Home,
    };
    let requests = [
        request(0, 0, Kind::Write, 1 << 20, 4096),
        request(250, 1, Kind::Read, 512, 512),
        request(1_000_250, 0, Kind::Discard, 8192, 1 << 16),
        request(2_000_000, 0, Kind::Write, 4096, 65_536),
    ];
    let mut seeds = vec![
        ("afterimage-real".to_owned(), AFTERIMAGE.into()),
        (
            "afterimage-dropped".to_owned(),
            AFTERIMAGE.replace("3500 disk0 zero", "# dropped 12\n3500 disk0 zero").into(),
        ),
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
    packer.write_all(BLKPARSE.as_bytes())?;
    seeds.push(("gzip".to_owned(), packer.finish()?));
    Ok(seeds)
}
