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

/// As `blkparse -s` 1.2.0 prints it: a flush, commands that programs pass through with and without their bytes, and the summaries, of
/// programs first.
pub const BLKPARSE_PROGRAMS: &str = "\
  8,0    0        3     0.000000000  1234  Q   W 2048 + 8 [my prog (x)]
  8,0    0        4     0.000000100  1234  D   W 2048 + 8 [my prog (x)]
  8,0    0        5     0.000001000  1234  C   W 2048 + 8 [0]
  8,0    0        6     0.000002000    77  D   R 36 (12 00 00 00 24 00 ..) [dd]
  8,0    0        7     0.000002500    77  C   R (12 00 00 00 24 00 ..) [0]
  8,0    0        8     0.000002600    77  D   W 0 [dd]
  8,0    0        9     0.000002700    77  C   W [0]
  8,0    0       11     0.000003100    77  D  FW [dd]
  8,0    0       12     0.000003200    77  C  FW 0 [0]
  8,0    0       13     0.000004000    77  D   D 4096 + 2048 [dd]
  8,0    0       14     0.000004100    77  C   D 4096 + 2048 [0]
dd (77)
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        0KiB
 Completion wait:        0        \t Completion wait:         0
my prog (x) (1234, ...)
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        4KiB

CPU0 (t):
 Reads Queued:           0,        0KiB\t Writes Queued:           2,        4KiB

Throughput (R/W): 0KiB/s / 0KiB/s
Events (t): 14 entries
Skips: 0 forward (0 -   0.0%)
Input file t.blktrace.0 added
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
211 /dev/shm/fiot.dat sync_file_range 45056 0
211 /dev/shm/fiot.dat syncfs 0 0
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

/// Alibaba's, with the row that some copies begin with.
pub const ALIBABA: &str = "\
device_id,opcode,offset,length,timestamp
419,W,8792731648,16384,1577808000000002
725,R,59110326272,360448,1577808000001502
";

/// Tencent's.
pub const TENCENT: &str = "1538323200,12910952,128,0,1063\n1538323201,6338688,8,1,1627\n";

/// SYSTOR '17's, with a request that was never answered.
pub const SYSTOR: &str = "\
Timestamp,Response,IOType,LUN,Offset,Size
1456135200.013118000,0.000806000,R,0,899056122368,131072
1456135200.013251000,,,0,8192,4096
1456135200.013618000,0.000236000,W,4,4096,8192
";

/// FIU's; some have the digests of several blocks.
pub const FIU: &str = "\
89968195792462 20782 gzip 283193184 8 R 6 0 56f11b711d91a065a2b6458eca924523
89968195801462 318 kjournald 194192 16 W 8 0 b2b0d4272e2645dc1658d5908c48d964 b2b0d4272e2645dc1658d5908c48d964
";

/// CloudPhysics' as CSV.
pub const CLOUDPHYSICS: &str = "5633898611441,6353,r,4096\n5633898615441,6361,w,512\n";

/// CloudPhysics' as they were recorded: version 1, with a TEST UNIT READY in between.
pub fn vscsi() -> Vec<u8> {
    let records: [(u32, u32, u16, u64, u64); 3] =
        [(1, 4096, 0x28, 6353, 1000), (2, 0, 0x00, 0, 1500), (3, 512, 0x2a, 6361, 5000)];
    let mut bytes = Vec::new();
    for (number, length, command, block, at_us) in records {
        bytes.extend(number.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(command.to_le_bytes());
        bytes.extend(0x0100_u16.to_le_bytes());
        bytes.extend(block.to_le_bytes());
        bytes.extend(at_us.to_le_bytes());
    }
    bytes
}

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
        ("blkparse-programs".to_owned(), BLKPARSE_PROGRAMS.into()),
        ("alibaba-real".to_owned(), ALIBABA.into()),
        ("tencent-real".to_owned(), TENCENT.into()),
        ("systor-real".to_owned(), SYSTOR.into()),
        ("fiu-real".to_owned(), FIU.into()),
        ("vscsi-1".to_owned(), vscsi()),
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
    let mut packed = packer.finish()?;
    seeds.push(("gzip".to_owned(), packed.clone()));
    packed.extend([0; 40]);
    packed.extend(packed.clone());
    seeds.push(("gzip-padded".to_owned(), packed));
    Ok(seeds)
}
