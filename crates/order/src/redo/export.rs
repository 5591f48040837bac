//! What a log would change, as files: for whoever decides what becomes of it.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use afterimage_block::SECTOR_BYTES;
use afterimage_format::log::RecordKind;
use afterimage_store::{sync_directory, LogError, LogFile};

use super::area::Area;
use super::extents::{Extent, ExtentMap, Source};
use super::scan::scan;
use crate::OpenError;

/// Bytes copied at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// The newest content that a log holds of one image.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ExportedImage {
    /// Where the image was when the log was opened last.
    pub image: PathBuf,
    /// A file of the image's size, with a hole wherever the log holds nothing.
    pub content: PathBuf,
    /// The ranges that it holds, one a line: offset and length in bytes, and `data` or `zeroes`.
    pub ranges: PathBuf,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Bytes of zeroes.
    pub zero_bytes: u64,
}

/// Writes what a log holds of each of its images into a folder. Overwrites nothing.
pub(crate) fn export(file: &LogFile, folder: &Path) -> Result<Vec<ExportedImage>, OpenError> {
    let log = file.path();
    let found = scan(&file.medium()).map_err(|e| LogError::reading(log, e))?;
    let mut disks: BTreeMap<u16, ExtentMap> = BTreeMap::new();
    for record in &found.records {
        let source = match record.kind {
            RecordKind::Write => Source::Log(record.payload()),
            RecordKind::Discard | RecordKind::Zero => Source::Zero { unmap: false },
            RecordKind::Incarnation => continue,
        };
        let extent = Extent { sectors: record.sectors, source, sequence: record.sequence };
        disks.entry(record.disk.0).or_default().insert(record.sector, extent);
    }
    let area = Area { medium: file.medium(), bytes: found.header.area_bytes.get() };
    let images = found.header.images();
    let mut exported = Vec::new();
    for ((disk, image), entry) in (0..).zip(file.names(images.len())).zip(images) {
        let name = image.file_name().unwrap_or_default().to_string_lossy();
        let content = folder.join(format!("disk{disk}-{name}.changes"));
        let ranges = content.with_extension("changes.txt");
        let map = disks.remove(&disk).unwrap_or_default();
        let (data_bytes, zero_bytes) = write_content(&area, &map, entry.size_bytes.get(), &content)
            .and_then(|bytes| write_ranges(&map, &ranges).map(|()| bytes))
            .map_err(OpenError::io("exporting to", &content))?;
        exported.push(ExportedImage { image, content, ranges, data_bytes, zero_bytes });
    }
    sync_directory(&folder.join("log")).map_err(OpenError::io("syncing", folder))?;
    Ok(exported)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

fn write_content(area: &Area, map: &ExtentMap, size_bytes: u64, path: &Path) -> io::Result<(u64, u64)> {
    let file = create(path)?;
    file.set_len(size_bytes)?;
    let (mut data_bytes, mut zero_bytes, mut chunk) = (0, 0, Vec::new());
    for (sector, extent) in map.iter() {
        let bytes = extent.sectors * SECTOR_BYTES;
        let Source::Log(from) = extent.source else {
            zero_bytes += bytes;
            continue;
        };
        data_bytes += bytes;
        let mut at = 0;
        while at < bytes {
            chunk.resize(CHUNK_BYTES.min(bytes - at) as usize, 0);
            area.read(from + at, &mut chunk)?;
            file.write_all_at(&chunk, sector * SECTOR_BYTES + at)?;
            at += chunk.len() as u64;
        }
    }
    file.sync_all()?;
    Ok((data_bytes, zero_bytes))
}

fn write_ranges(map: &ExtentMap, path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(create(path)?);
    for (sector, extent) in map.iter() {
        let what = if matches!(extent.source, Source::Log(_)) { "data" } else { "zeroes" };
        writeln!(file, "{} {} {what}", sector * SECTOR_BYTES, extent.sectors * SECTOR_BYTES)?;
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}
