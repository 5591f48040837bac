//! Recognising images that are not raw: serving one as raw would show the guest its metadata as a disk, and the
//! guest's first write would destroy it.

/// How much of the beginning is looked at, in bytes.
pub(crate) const HEAD_BYTES: usize = 512;

/// The format that a file's first and last 512 bytes belong to, or `None` for raw content. LUKS, partition tables and
/// file systems are what a raw disk holds.
pub(crate) fn other_format(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let at = |offset: usize, magic: &[u8]| head.get(offset..offset + magic.len()) == Some(magic);
    if at(0, b"QFI\xfb") {
        // QCOW_VERSION 1 is the older format.
        return Some(if at(4, &1u32.to_be_bytes()) { "qcow" } else { "qcow2" });
    }
    let formats: [(usize, &[u8], &'static str); 10] = [
        (0, b"QED\0", "QED"),
        (0, b"KDMV", "VMDK"),
        (0, b"COWD", "VMDK"),
        (0, b"# Disk DescriptorFile", "VMDK"),
        // VDI_SIGNATURE, little-endian (VirtualBox VDICore.h).
        (0x40, &0xbeda_107fu32.to_le_bytes(), "VDI"),
        (0, b"conectix", "VHD"),
        (0, b"vhdxfile", "VHDX"),
        (0, b"WithoutFreeSpace", "Parallels"),
        (0, b"WithouFreSpacExt", "Parallels"),
        (0, b"Bochs Virtual HD Image", "Bochs"),
    ];
    for (offset, magic, name) in formats {
        if at(offset, magic) {
            return Some(name);
        }
    }
    // A fixed VHD is raw content with a footer.
    tail.starts_with(b"conectix").then_some("fixed-size VHD")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_content_is_taken_and_formats_are_not() {
        let mut head = vec![0; HEAD_BYTES];
        assert_eq!(other_format(&head, &[]), None);
        head[..6].copy_from_slice(b"LUKS\xba\xbe");
        assert_eq!(other_format(&head, &head), None);
        head[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
        assert_eq!(other_format(&head, &[]), Some("qcow2"));
        head[..8].fill(0);
        head[0x40..0x44].copy_from_slice(&[0x7f, 0x10, 0xda, 0xbe]);
        assert_eq!(other_format(&head, &[]), Some("VDI"));
        assert_eq!(other_format(&[0; 512], b"conectix\0\0"), Some("fixed-size VHD"));
    }
}
