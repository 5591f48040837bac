//! Landlock: the files that are open stay open; by name, only what an orderly life and end need.

use std::path::{Path, PathBuf};

use afterimage_journal::own_folder;
use landlock::{
    Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope, ABI,
};

/// What the daemon must still reach by name after start-up.
#[derive(Clone, Debug, Default)]
pub struct FileNeeds {
    /// Images and logs: read, write, truncate, device commands.
    pub files: Vec<PathBuf>,
    /// Folders in which the log and its side files are created, renamed, synced and removed.
    pub log_folders: Vec<PathBuf>,
    /// The memory of retained journals, which is removed at the end or where an earlier one is of no use; with its folder
    /// where it has one of its own.
    pub arenas: Vec<PathBuf>,
    /// Folders in which a socket file is removed at the end.
    pub socket_folders: Vec<PathBuf>,
}

/// Newest interface whose rights are known here; older kernels enforce what they know.
const NEWEST: ABI = ABI::V6;

/// Restricts this thread and all it will create. Must run while it is the only thread. Returns what is in force.
///
/// # Errors
/// In words: why nothing is.
pub fn restrict_files(needs: &FileNeeds) -> Result<String, String> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err("other threads run already and would stay free".to_owned());
    }
    let status = apply(needs).map_err(|e| format!("refused by the kernel: {e}"))?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok("full".to_owned()),
        RulesetStatus::PartiallyEnforced => Ok("partial".to_owned()),
        RulesetStatus::NotEnforced => Err(match status.landlock {
            LandlockStatus::NotImplemented => "not in this kernel".to_owned(),
            LandlockStatus::NotEnabled => "switched off in this kernel".to_owned(),
            _ => "not enforced by this kernel".to_owned(),
        }),
    }
}

fn apply(needs: &FileNeeds) -> Result<landlock::RestrictionStatus, landlock::RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        // No port is ever opened after start-up.
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    let file_access: BitFlags<AccessFs> =
        AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let log_access: BitFlags<AccessFs> = AccessFs::ReadFile
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::ReadDir
        | AccessFs::MakeReg
        | AccessFs::RemoveFile;
    let arena_access: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile;
    let socket_access: BitFlags<AccessFs> = AccessFs::RemoveFile.into();
    // Thread counts and memory limits are read from here by the standard library and the allocator.
    let system: [(&Path, BitFlags<AccessFs>); 2] = [
        (Path::new("/proc/self"), AccessFs::ReadFile | AccessFs::ReadDir),
        (Path::new("/sys/fs/cgroup"), AccessFs::ReadFile.into()),
    ];
    let notes = afterimage_store::notes_folder();
    let shared = needs.arenas.iter().filter_map(|arena| own_folder(arena)?.parent());
    let wanted = needs
        .files
        .iter()
        .map(|p| (p.as_path(), file_access))
        .chain(needs.log_folders.iter().map(|p| (p.as_path(), log_access)))
        .chain(needs.arenas.iter().map(|p| (p.as_path(), arena_access)))
        .chain(needs.arenas.iter().filter_map(|p| Some((p.parent()?, AccessFs::RemoveFile.into()))))
        // Of the folders that all daemons share only empty ones can go: another's is not.
        .chain(shared.map(|p| (p, AccessFs::RemoveDir.into())))
        // What is known of the last syncs of images and logs.
        .chain([(notes.as_path(), log_access)])
        .chain(needs.socket_folders.iter().map(|p| (p.as_path(), socket_access)))
        .chain(system);
    for (path, access) in wanted {
        // What does not exist needs no permission.
        if let Ok(fd) = PathFd::new(path) {
            let access = if path.is_dir() { access } else { access & AccessFs::from_file(NEWEST) };
            ruleset = ruleset.add_rule(PathBeneath::new(fd, access))?;
        }
    }
    ruleset.restrict_self()
}
