//! Guests that start another kernel over themselves.

use crate::error::Result;
use crate::guest::{fetch_kernel, GuestBuilder};

/// A guest whose script can do [`script`].
pub(super) fn with_kernel(builder: GuestBuilder) -> Result<GuestBuilder> {
    Ok(builder.environment("KERNEL", &fetch_kernel()?.image.to_string_lossy()))
}

/// The end of a script that starts the same kernel again from the running one, with one more word on its command line.
pub(super) fn script(word: &str) -> String {
    format!(
        "run=$(sed 's/.*afterimage.run=\\([^ ]*\\).*/\\1/' /proc/cmdline)\n\
         \"$AFTERIMAGE_AGENT\" kexec $KERNEL $run/initramfs --arguments \"$(cat /proc/cmdline) {word}\"\n\
         echo 'kexec failed'\nexit 1\n"
    )
}
