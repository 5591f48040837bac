//! Encrypted files under `data=journal`: their data goes home, whatever their mode; what replay brings must not lie over it.

use super::{modes, Build};
use crate::error::Result;
use crate::evidence::Evidence;

/// What encrypts files and their names, as modules of Debian's kernel.
pub(super) const MODULES: [&str; 4] = ["sha512_generic", "ecb", "xts", "cts"];

/// Random operations in an encrypted file, and another one in the blocks of a journaled file that was deleted; a crash, a stock kernel's
/// replay.
pub(super) fn kept(evidence: &Evidence, build: &Build, seed: u64) -> Result<String> {
    let (encrypted, mount) = (build.program("encrypted"), modes::MOUNTS[0]);
    let body = format!(
        r#"E={encrypted}
# In an inode of 256 bytes what encrypts leaves no room for the mode.
mkfs.ext4 -q -F -b 4096 -I 512 -m 0 -O encrypt -J size=16 -E lazy_itable_init=0,lazy_journal_init=0 /dev/vda 128M
mount -t vext4 -o {mount} /dev/vda /mnt
echo 0 > /sys/fs/vext4/vda/reserved_clusters
head -c 800k /dev/zero | tr '\0' A > /a; tr A B < /a > /b
write() {{ dd if=$1 of=$2 bs=100k count=$3 conv=notrunc,fsync 2>/dev/null; }}
mkdir /mnt/e; $E make /mnt/e
# In each mode its data goes home before the commit; a journaled file beside it has nothing to do with that.
: > /mnt/e/file
for mode in default data ordered; do
    $J set $mode /mnt/e/file; is $mode /mnt/e/file
    before=$(counted classic_home_data); write /a /mnt/e/file 1
    [ $(counted classic_home_data) -gt $before ] || broken "an encrypted file's data is journaled as $mode"
    before=$(counted single); write /a /mnt/plain 1
    [ $(counted single) -gt $before ] || broken "a journaled file beside it is not committed in one write"
done
[ "$(counted switches)" = 0 ] || broken "a switch has changed where an encrypted file's data goes"
rm /mnt/plain
$SCRAMBLE /mnt/e/scrambled /copy {seed} 600 || broken "random operations, while they ran"
# In the only free blocks, which a journaled file had.
fallocate -l 1M /mnt/hole
fallocate -l $((($(stat -f -c %a /mnt) - 16) * 4096)) /mnt/rest
sync; rm /mnt/hole; sync
write /a /mnt/first 8; rm /mnt/first; sync
: > /mnt/e/second; write /b /mnt/e/second 8
replay
[ ! -e /mnt/e/second ] || broken "names are not encrypted"
$E key /mnt
head -c 102400 /a | cmp - /mnt/e/file || broken "an encrypted file is not as it was written"
cmp /copy /mnt/e/scrambled || broken "random operations, after the replay"
cmp /b /mnt/e/second || broken "what was journaled is back in the blocks of an encrypted file""#
    );
    modes::run(evidence, &modes::script(build, &body))?;
    Ok("as written, 600 random operations as in the model, and blocks that a journaled file had, after a replay"
        .to_owned())
}
