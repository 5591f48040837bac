//! The peers' way, where this machine lets us.

use std::sync::Arc;

use afterimage_block::Medium as _;

use super::ext4::Ext4;
use crate::check::fsck::Fsck;
use crate::check::mount_per_state::MountPerState;
use crate::check::{Checker, Observation};
use crate::state::{Image, Scratch};
use crate::ExploreError;

/// Both ways find the same.
#[test]
#[ignore = "mounts loop devices as root: part of the guests' suite"]
fn it_agrees_with_ours() {
    let ext4 = Ext4::new();
    ext4.journal_block(9000, &[7; 4096]);
    let base = ext4.load();
    let state = || Arc::new(Scratch::new(Image::digested(0, Arc::clone(&base))));
    let mut peer = match MountPerState::new("noatime") {
        Ok(peer) => peer,
        Err(ExploreError::Usage(why)) => return afterimage_testing::skip(why),
        Err(error) => panic!("{error}"),
    };
    let mut ours = Fsck::new().unwrap();
    match peer.check(&[state()]) {
        Ok(found) => assert_eq!(found, Observation::Sound),
        Err(ExploreError::Checker(why)) if why.contains("loop device") => {
            return afterimage_testing::skip(why);
        }
        Err(error) => panic!("{error}"),
    }
    let damaged = || {
        let state = state();
        // The group descriptors.
        state.zero_at(4096, 4096, false).unwrap();
        [state]
    };
    for checker in [&mut peer as &mut dyn Checker, &mut ours] {
        let found = checker.check(&damaged()).unwrap();
        assert!(matches!(found, Observation::Inconsistent { .. }), "{}: {found:?}", checker.name());
        assert_eq!(checker.check(&[state()]).unwrap(), Observation::Sound, "{}", checker.name());
    }
    let folder = peer.folder.clone();
    drop(peer);
    assert!(!folder.exists());
    assert!(!std::fs::read_to_string("/proc/mounts").unwrap().contains(&*folder.to_string_lossy()));
}
