//! What a seed adds for guests with `vext4` (docs/guest-kernel.md): how it is mounted, which mode whose files have, and where the kernel panics.
//!
//! What is left is looked at with either driver: the stock one's replay is the oracle of ours. Under `ijournal` neither is asked before
//! `vext4-recover` was.

use std::path::Path;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// See the module.
#[derive(Clone, Debug)]
pub struct Vext4 {
    /// The mount's options.
    pub options: &'static str,
    /// The modes of the folders in which records are, SQLite's two, and what comes and goes.
    pub modes: [&'static str; 4],
    /// The records' files are switched from one mode to another all the time.
    pub switches: bool,
    /// Mounted with `ijournal` (docs/ijournaling.md).
    pub ijournal: bool,
}

/// What runs in a guest before it mounts.
const RECOVER: &str = "vext4-recover";

const MODES: [&str; 3] = ["default", "data", "ordered"];

/// Where a build with faults panics, and how often it may come by before it does.
const PANICS: [(&str, u32); 7] = [
    ("revoke", 4),
    ("mapped", 6),
    ("content", 8),
    ("commit_block", 8),
    ("flushed", 8),
    ("switch", 4),
    ("switch_flushed", 4),
];

/// The same for fsyncs that write i-transactions.
const IJOURNAL_PANICS: [(&str, u32); 4] =
    [("ijournal", 9), ("ijournal_way", 5), ("ijournal_written", 9), ("content", 6)];

/// What such a kernel says.
pub const PANICKED: &str = "Kernel panic - not syncing: injected at";

impl Vext4 {
    /// Draws it, and takes nothing from what else the seed draws.
    pub fn draw(seed: u64, ijournal: bool) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x7e14);
        let options = [
            "data=journal,journal_async_commit",
            "data=journal,journal_async_commit",
            "data=ordered,journal_async_commit",
            "data=ordered,journal_async_commit",
            "data=journal",
            "data=ordered",
        ][rng.random_range(0..6)];
        let modes = [(); 4].map(|()| MODES[rng.random_range(0..3)]);
        let switches = rng.random_ratio(1, 2);
        if !ijournal {
            return Self { options, modes, switches, ijournal };
        }
        // Between commits there have to be i-transactions; and a file whose data is journaled has none.
        let options =
            ["ijournal,commit=1", "ijournal,commit=5", "ijournal,commit=300"][rng.random_range(0..3)];
        Self { options, modes: if switches { modes } else { ["default"; 4] }, switches, ijournal }
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        let switched = if self.switches { ", switched" } else { "" };
        format!("vext4 {} ({}{switched})", self.options, self.modes.join(" "))
    }

    /// What every boot's kernel is told; `programs` is the folder of the tests' programs, `own` that of ours.
    pub fn append(&self, programs: &Path, own: &Path) -> Vec<String> {
        let program = |name: &str| programs.join(name).display().to_string();
        vec![
            format!("OPTIONS={}", self.options),
            format!("MODES={}", self.modes.join(",")),
            format!("SWITCHES={}", u8::from(self.switches)),
            format!("JOURNALING={}", program("journaling")),
            format!("SYNCED={}", program("synced")),
            format!(
                "RECOVER={}",
                if self.ijournal { own.join(RECOVER).display().to_string() } else { "true".to_owned() }
            ),
            format!("AREAS={}", if self.ijournal { program("areas") } else { "true".to_owned() }),
        ]
    }

    /// What one boot's is told: who looks, and, in three of four that are not the last, where it panics.
    pub fn append_to_boot(&self, rng: &mut ChaCha8Rng, last: bool) -> Vec<String> {
        let panics: &[_] = if self.ijournal { &IJOURNAL_PANICS } else { &PANICS };
        let mut append = vec![format!("LOOKER={}", if rng.random() { "ext4" } else { "vext4" })];
        let (place, size) = panics[rng.random_range(0..panics.len())];
        let size = rng.random_range(0..size);
        let after: u32 = rng.random_range(1 << size..2 << size);
        if rng.random_ratio(3, 4) && !last {
            append.extend([format!("vjbd2.panic_at={place}"), format!("vjbd2.panic_after={after}")]);
        }
        append
    }
}

/// Mounts for those who look, and for those who work.
pub const LOOK: &str =
    "$RECOVER /dev/vda || refuse recovery\n    mount -t $LOOKER -o $([ $LOOKER = ext4 ] && echo data=$DATA || echo $OPTIONS) /dev/vda $top";
/// Beside `mkfs`.
pub const MAKE: &str =
    "    mount -t vext4 /dev/vda $top && $AREAS $top 1 1024 && umount $top || refuse areas\n";
pub const MOUNT: &str = "mount -t vext4 -o $OPTIONS /dev/vda $top";

/// What is looked at beside records and databases.
pub const LOOKS: &str = r#"
        [ -e $top/$boot/synced ] && echo "simulate: synced $($SYNCED check $top/$boot/synced | tail -n 1)""#;

/// What goes on beside the work: every way to sync, stores through a mapping among them; files that come and go, whose blocks others
/// get; and switches. The latter two are nobody's children, and end when what is judged is done.
pub const BESIDE: &str = r#"
mkdir $top/$BOOT/tree
set -- $(echo $MODES | tr , ' ')
for folder in records wal rollback tree; do
    $JOURNALING set $1 $top/$BOOT/$folder
    shift
done
come_and_go() {
    head -c 120000 /dev/urandom > /run/bytes
    while [ ! -e /run/done ]; do
        for n in 1 2 3 4 5 6; do cp /run/bytes $top/$BOOT/tree/$n; done
        sync $top/$BOOT/tree/1
        rm $top/$BOOT/tree/*
        sleep 0.03
    done
}
switch() {
    while [ $SWITCHES = 1 ] && [ ! -e /run/done ]; do
        for mode in data ordered; do
            $JOURNALING set $mode $top/$BOOT/records/*
            sleep 0.05
        done
    done
}
(come_and_go & switch &) 2> /dev/null
AFTERIMAGE_REPORT=/dev/console $SYNCED write $top/$BOOT/synced 400 &
"#;

/// Until what is judged is done.
pub const WAIT: &str = "wait\n: > /run/done";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_drawn_and_the_last_boot_does_not_panic() {
        let drawn: Vec<Vext4> = (0..300).map(|seed| Vext4::draw(seed, false)).collect();
        for mode in MODES {
            assert!((0..4).all(|at| drawn.iter().any(|vext4| vext4.modes[at] == mode)));
        }
        assert!(drawn.iter().any(|v| v.switches) && drawn.iter().any(|v| !v.switches));
        assert_eq!(Vext4::draw(5, true).describe(), Vext4::draw(5, true).describe());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let panics = |append: Vec<String>| append.iter().find(|a| a.contains("panic_at")).cloned();
        for (vext4, places) in
            [(Vext4::draw(1, false), &PANICS[..]), (Vext4::draw(1, true), &IJOURNAL_PANICS)]
        {
            let boots: Vec<_> =
                (0..300).filter_map(|_| panics(vext4.append_to_boot(&mut rng, false))).collect();
            assert!(places.iter().all(|(place, _)| boots.contains(&format!("vjbd2.panic_at={place}"))));
            assert!((0..300).all(|_| panics(vext4.append_to_boot(&mut rng, true)).is_none()));
        }
    }
}
