//! What guests do, on every boot: look at what earlier boots have left, check the file system, and work until somebody kills them.
//!
//! The text is the same for every run, so that it lies under one name; what differs is in the environment, which is the kernel's
//! command line.

use std::fmt::Write as _;

use afterimage_lab::demo::{state, transactions, Journal};
use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::vext4::{self, Mount};

/// How many transactions a boot commits at most, in each of SQLite's journal modes.
const TRANSACTIONS: u32 = 300;

/// The words with which a guest says how far it is.
pub const READY: &str = "simulate: ready";
pub const FOLDER: &str = "simulate: folder";
pub const LOOKED: &str = "simulate: looked";
pub const CHECKED: &str = "simulate: e2fsck";
pub const SYNCED: &str = "simulate: synced";
pub const REFUSED: &str = "simulate: refused";
pub const ENDED: &str = "simulate: ended";

const BEGIN: &str = r#"
refuse() {
    echo "simulate: refused $1"
    dmesg | tail -n 30
    exit 9
}
@BEGIN@top=/mnt/disk
if [ "$FRESH" = 1 ]; then
    mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0,nodiscard @DEVICE@ || refuse mkfs
@MAKE@    @MOUNT@ || refuse mount
    sync
    # Until it is durable under every contract.
    sleep 2
else
    @LOOK@ || refuse mount
    for boot in $(echo "$LOOK" | tr , ' '); do
        echo "simulate: folder $boot"
        "$AGENT" verify $top/$boot/records
        for mode in wal rollback; do
            [ -e $top/$boot/$mode/bank ] && sqlite3 -batch $top/$boot/$mode/bank < /run/$mode-state.sql
        done@LOOKS@
        echo "simulate: looked $boot"
    done
    for boot in $(echo "$REMOVE" | tr , ' '); do rm -rf $top/$boot; done
    umount $top || refuse umount
    e2fsck -fn @DEVICE@ > /run/e2fsck.out 2>&1
    code=$?
    [ $code = 0 ] || cat /run/e2fsck.out
    echo "simulate: e2fsck $code"
    [ "$FINAL" = 1 ] && exit 0
    @MOUNT@ || refuse mount
fi
mkdir -p $top/$BOOT/wal $top/$BOOT/rollback $top/$BOOT/records || refuse mkdir
sync || refuse sync
echo "simulate: ready"
@BESIDE@for mode in wal rollback; do
    ("$AGENT" pace /run/$mode.sql --pause-us $PAUSE | sqlite3 -batch $top/$BOOT/$mode/bank; echo "simulate: ended $mode $?") &
done
("$AGENT" ack-write $top/$BOOT/records --records 1500 --threads $THREADS --size $SIZE --pause-us $PAUSE $FILES; echo "simulate: ended records $?") &
@WAIT@
sync
sleep 1000000
"#;

/// The script; with what is done on vext4, or for the stock file system.
pub fn script(on_vext4: Option<Mount>) -> String {
    let mut text = String::new();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for journal in Journal::ALL {
        let (name, work) = (journal.name(), transactions(journal, TRANSACTIONS, &mut rng));
        let state = state(journal);
        // Writing to a string does not fail.
        let _ = write!(text, "cat > /run/{name}.sql << 'END'\n{work}END\n");
        let _ = write!(text, "cat > /run/{name}-state.sql << 'END'\n{state}\nEND\n");
    }
    let stock = "mount -t ext4 -o data=$DATA @DEVICE@ $top";
    let parts = match on_vext4 {
        None => {
            [("MAKE", ""), ("LOOKS", ""), ("LOOK", stock), ("MOUNT", stock), ("BESIDE", ""), ("WAIT", "wait")]
        }
        Some(_) => [
            ("MAKE", vext4::MAKE),
            ("LOOKS", vext4::LOOKS),
            ("LOOK", vext4::LOOK),
            ("MOUNT", vext4::MOUNT),
            ("BESIDE", vext4::BESIDE),
            ("WAIT", vext4::WAIT),
        ],
    };
    let mut begin = BEGIN.to_owned();
    for (name, part) in parts {
        begin = begin.replace(&format!("@{name}@"), part);
    }
    let mount = on_vext4.unwrap_or(Mount::Own);
    begin = begin.replace("@BEGIN@", mount.begin()).replace("@DEVICE@", mount.device());
    text.push_str(&begin);
    text
}
