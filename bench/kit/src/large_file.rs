//! Disks with a large file that is there and was never written: what `mke2fs -d` would copy, or a mounted file system allocate in the order of
//! its own write-back, which is another one in each run.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{Context, Result};

/// mke2fs's own defaults of 1.47, and its way to make such a file (mke2fs.conf(5), `make_hugefiles`).
const CONFIG: &str = "[defaults]
    base_features = sparse_super,large_file,filetype,resize_inode,dir_index,ext_attr
    default_mntopts = acl,user_xattr
    blocksize = 4096
    inode_size = 256
    inode_ratio = 16384
[fs_types]
    ext4 = {
        features = has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,extra_isize
    }
    data = {
        make_hugefiles = true
        hugefiles_dir = /
        hugefiles_name = data
        hugefiles_digits = 0
        hugefiles_size = SIZE
        num_hugefiles = 1
        zero_hugefiles = false
    }
";

/// Has `mke2fs` make a file `/data` of so many MiB: its blocks are there and count as written, and the image holds no byte of them. `config` is
/// written, and has to be there when the command is run.
///
/// # Errors
/// It cannot be written.
pub fn large_file(mke2fs: &mut Command, config: &Path, mib: u64) -> Result<()> {
    let text = CONFIG.replace("SIZE", &format!("{mib}M"));
    fs::write(config, text).context(|| format!("write {}", config.display()))?;
    mke2fs.env("MKE2FS_CONFIG", config).args(["-T", "data"]);
    Ok(())
}
