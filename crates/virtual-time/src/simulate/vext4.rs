//! What a seed adds for guests with `vext4` (docs/guest-kernel.md): how it is mounted, which mode whose files have, and where the kernel panics.
//!
//! What is left is looked at with either driver: the stock one's replay is the oracle of ours. Under `ijournal` neither is asked before
//! `vext4-recover` was. Under `data=vma` commits are handed over to the control disk, which lies behind the end of the disk.

use std::path::Path;

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

/// What is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mount {
    /// Data journaled or ordered, single-I/O commits or not.
    Own,
    /// `ijournal` (docs/ijournaling.md).
    Ijournal,
    /// `data=vma` (docs/guest-kernel.md), with a control disk.
    Vma,
}

impl Mount {
    /// The device that the file system is on. Where a control disk lies behind it, both are partitions of the guest's one device.
    pub fn device(self) -> &'static str {
        match self {
            Self::Own | Self::Ijournal => "/dev/vda",
            Self::Vma => "/dev/vda1",
        }
    }

    /// What a boot does first, so that there is such a device.
    pub fn begin(self) -> &'static str {
        match self {
            Self::Own | Self::Ijournal => "",
            Self::Vma => {
                "sectors=$(($(blockdev --getsz /dev/vda) - 131072))\n\
                 addpart /dev/vda 1 0 $sectors && addpart /dev/vda 9 $sectors 131072 || refuse partitions\n"
            }
        }
    }

    /// Where a build with faults panics, and how often it may come by before it does: at most two to the power of that.
    fn panics(self) -> &'static [(&'static str, u32)] {
        match self {
            Self::Own => &PANICS,
            Self::Ijournal => &IJOURNAL_PANICS,
            Self::Vma => &VMA_PANICS,
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Vext4 {
    /// The mount's options.
    pub options: &'static str,
    /// The modes of the folders in which records are, SQLite's two, and what comes and goes.
    pub modes: [&'static str; 4],
    /// The records' files are switched from one mode to another all the time.
    pub switches: bool,
    /// What is mounted.
    pub mount: Mount,
}

/// What runs in a guest before it mounts.
const RECOVER: &str = "vext4-recover";

const MODES: [&str; 3] = ["default", "data", "ordered"];

/// See [`Mount::panics`].
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

/// The same for commits that are handed over. The last two are come by once a mount at most, if a command is refused.
const VMA_PANICS: [(&str, u32); 9] = [
    ("vma_gathered", 9),
    ("vma_commit", 9),
    ("vma_answered", 9),
    ("vma_published", 9),
    ("revoke", 4),
    ("mapped", 6),
    ("switch", 4),
    (VMA_REFUSED, 1),
    ("vma_rewritten", 1),
];

/// Commits are sent, or published.
const VMA_OPTIONS: [[&str; 3]; 2] = [
    [
        "data=vma,vma_disk=/dev/vda9,commit=1",
        "data=vma,vma_disk=/dev/vda9,commit=5",
        "data=vma,vma_disk=/dev/vda9,commit=300",
    ],
    [
        "data=vma,vma_exitless,vma_disk=/dev/vda9,commit=1",
        "data=vma,vma_exitless,vma_disk=/dev/vda9,commit=5",
        "data=vma,vma_exitless,vma_disk=/dev/vda9,commit=300",
    ],
];

/// Where a command has just been refused.
const VMA_REFUSED: &str = "vma_refused";

/// What a kernel says whose control disk refuses a command.
pub const REFUSED: &str = "the control disk did not take transaction";

/// What such a kernel says.
pub const PANICKED: &str = "Kernel panic - not syncing: injected at";

impl Vext4 {
    /// Draws it, and takes nothing from what else the seed draws.
    pub fn draw(seed: u64, mount: Mount) -> Self {
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
        let often = rng.random_range(0..3);
        let publishes: bool = rng.random();
        match mount {
            Mount::Own => Self { options, modes, switches, mount },
            // Between commits there have to be i-transactions; and a file whose data is journaled has none.
            Mount::Ijournal => Self {
                options: ["ijournal,commit=1", "ijournal,commit=5", "ijournal,commit=300"][often],
                modes: if switches { modes } else { ["default"; 4] },
                switches,
                mount,
            },
            Mount::Vma => {
                Self { options: VMA_OPTIONS[usize::from(publishes)][often], modes, switches, mount }
            }
        }
    }

    /// Whether commits are published: then some may be lost by whoever dies with its daemon.
    pub fn publishes(&self) -> bool {
        VMA_OPTIONS[1].contains(&self.options)
    }

    /// In a few words.
    pub fn describe(&self) -> String {
        let switched = if self.switches { ", switched" } else { "" };
        format!("vext4 {} ({}{switched})", self.options, self.modes.join(" "))
    }

    /// What every boot's kernel is told; `programs` is the folder of the tests' programs, `own` that of ours.
    pub fn append(&self, programs: &Path, own: &Path) -> Vec<String> {
        let program = |name: &str| programs.join(name).display().to_string();
        let of_ijournal = |program: String| match self.mount {
            Mount::Ijournal => program,
            Mount::Own | Mount::Vma => "true".to_owned(),
        };
        vec![
            format!("OPTIONS={}", self.options),
            format!("MODES={}", self.modes.join(",")),
            format!("SWITCHES={}", u8::from(self.switches)),
            format!("JOURNALING={}", program("journaling")),
            format!("SYNCED={}", program("synced")),
            format!("RECOVER={}", of_ijournal(own.join(RECOVER).display().to_string())),
            format!("AREAS={}", of_ijournal(program("areas"))),
        ]
    }

    /// What one boot's is told: who looks, and, in three of four that are not the last, where it panics. Under `data=vma` also how many blocks a
    /// command may have, and, in one of three and where it matters for the panic, when a command is refused.
    pub fn append_to_boot(&self, rng: &mut ChaCha8Rng, last: bool) -> Vec<String> {
        let panics = self.mount.panics();
        let mut append = vec![format!("LOOKER={}", if rng.random() { "ext4" } else { "vext4" })];
        let (place, size) = panics[rng.random_range(0..panics.len())];
        let size = rng.random_range(0..size);
        let after: u32 = rng.random_range(1 << size..2 << size);
        let panicks = rng.random_ratio(3, 4) && !last;
        if panicks {
            append.extend([format!("vjbd2.panic_at={place}"), format!("vjbd2.panic_after={after}")]);
        }
        if self.mount == Mount::Vma {
            let blocks = [1, 3, 16, 255][rng.random_range(0..4)];
            append.push(format!("vjbd2.vma_blocks={blocks}"));
            let refuses = rng.random_ratio(1, 3);
            let size = rng.random_range(0..10);
            let commands = rng.random_range(1 << size..2 << size);
            if refuses || panicks && [VMA_REFUSED, "vma_rewritten"].contains(&place) {
                append.push(format!("vjbd2.vma_refuse_after={commands}"));
            }
        }
        append
    }
}

/// Mounts for those who look, and for those who work.
pub const LOOK: &str =
    "$RECOVER @DEVICE@ || refuse recovery\n    mount -t $LOOKER -o $([ $LOOKER = ext4 ] && echo data=$DATA || echo $OPTIONS) @DEVICE@ $top";
/// Beside `mkfs`.
pub const MAKE: &str =
    "    mount -t vext4 @DEVICE@ $top && $AREAS $top 1 1024 && umount $top || refuse areas\n";
pub const MOUNT: &str = "mount -t vext4 -o $OPTIONS @DEVICE@ $top";

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
(AFTERIMAGE_REPORT=/dev/console $SYNCED write $top/$BOOT/synced 400; echo "simulate: ended synced $?") &
"#;

/// Until what is judged is done.
pub const WAIT: &str = "wait\n: > /run/done";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_drawn_and_the_last_boot_does_not_panic() {
        let drawn: Vec<Vext4> = (0..300).map(|seed| Vext4::draw(seed, Mount::Own)).collect();
        for mode in MODES {
            assert!((0..4).all(|at| drawn.iter().any(|vext4| vext4.modes[at] == mode)));
        }
        assert!(drawn.iter().any(|v| v.switches) && drawn.iter().any(|v| !v.switches));
        let published = (0..300).filter(|seed| Vext4::draw(*seed, Mount::Vma).publishes()).count();
        assert!((100..200).contains(&published) && !drawn.iter().any(Vext4::publishes));
        assert_eq!(Vext4::draw(5, Mount::Ijournal).describe(), Vext4::draw(5, Mount::Ijournal).describe());
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let panics = |append: Vec<String>| append.iter().find(|a| a.contains("panic_at")).cloned();
        for mount in [Mount::Own, Mount::Ijournal, Mount::Vma] {
            let vext4 = Vext4::draw(1, mount);
            let boots: Vec<_> = (0..300).map(|_| vext4.append_to_boot(&mut rng, false)).collect();
            let panicking: Vec<_> = boots.iter().cloned().filter_map(panics).collect();
            let places = mount.panics().iter().map(|(place, _)| format!("vjbd2.panic_at={place}"));
            assert!(places.into_iter().all(|place| panicking.contains(&place)));
            assert!((0..300).all(|_| panics(vext4.append_to_boot(&mut rng, true)).is_none()));
            // What nobody comes by where nothing is refused.
            let refuses = |boot: &&Vec<String>| boot.iter().any(|a| a.contains("vma_refuse_after"));
            let at_refusals = |boot: &&Vec<String>| {
                boot.iter().any(|a| {
                    ["vjbd2.panic_at=vma_refused", "vjbd2.panic_at=vma_rewritten"].contains(&a.as_str())
                })
            };
            assert_eq!(boots.iter().any(|boot| refuses(&boot)), mount == Mount::Vma);
            assert!(boots.iter().filter(at_refusals).all(|boot| refuses(&boot)));
        }
    }
}
