//! What has to be decided before a group is opened: which images have retained journals, and where.
//!
//! ```text
//! FILE.state? ─ none ──────────────► new arena; refused where a journal's superblock bears a stamp: the image was renamed or copied
//!     │
//!     └ same image? ─► arena there, of this boot? ─ yes ─► taken over (passthrough: refused)
//!                                 └ no ─► power-window: nothing durable is lost, go on
//!                                         guest-crash: refused, unless the loss is accepted
//! ```
//!
//! Nothing that exists is changed here. Dropped, it removes the arenas that it made.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use afterimage_block::{Medium, SECTOR_BYTES};
use afterimage_store::{open_ours, FileMedium};
use uuid::Uuid;

use super::error::RetainError;
use super::JournalOptions;
use crate::error::JournalError;
use crate::ext4;
use crate::state_file::{self, ImageIdentity, State, StateError};
use crate::versions::arena::{Arena, ArenaIdentity, Budget};

/// An image of the group.
#[derive(Clone, Copy, Debug)]
pub struct GroupImage<'a> {
    /// Where it is. It is locked by the caller.
    pub path: &'a Path,
    /// Nothing of it is retained.
    pub read_only: bool,
}

/// The outcome, to be handed to [`super::RetainGroup::open`].
#[derive(Debug)]
pub struct Prepared {
    pub(super) options: JournalOptions,
    pub(super) budget: Budget,
    /// By position in the group; `None` where nothing is retained.
    pub(super) disks: Vec<Option<PreparedDisk>>,
    /// State files that are to go, because what it named is gone.
    pub(super) stale: Vec<PathBuf>,
    /// Disks, by position, of which what was retained is given up without anything being retained from now on.
    pub(super) given_up: Vec<usize>,
    /// Arenas of earlier boots that nothing can use any more.
    pub(super) dead_arenas: Vec<(PathBuf, ArenaIdentity)>,
}

/// A disk whose journals will be retained.
#[derive(Debug)]
pub(super) struct PreparedDisk {
    pub(super) image: PathBuf,
    /// Its state file.
    pub(super) state_path: PathBuf,
    pub(super) arena: Arena,
    pub(super) state: State,
    /// Removes what was made for it, unless the group comes to life.
    pub(super) fresh: Fresh,
}

/// Files made for a disk that had none.
#[derive(Debug)]
pub(super) struct Fresh {
    state: PathBuf,
    arena: Option<PathBuf>,
    pub(super) state_written: bool,
}

impl Fresh {
    fn nothing() -> Self {
        Self { state: PathBuf::new(), arena: None, state_written: false }
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.arena.is_some()
    }

    /// The files stay.
    pub(super) fn keep(&mut self) {
        self.arena = None;
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        let Some(arena) = &self.arena else { return };
        if self.state_written {
            if let Err(error) = state_file::remove(&self.state) {
                tracing::warn!(%error, "a start that failed leaves its state file");
                return;
            }
        }
        if let Err(error) = crate::versions::arena::remove(arena) {
            tracing::warn!(%error, arena = %arena.display(), "a start that failed leaves its arena");
        }
    }
}

/// What is known of an image's retained journals.
pub(crate) enum Earlier {
    /// Nothing is retained, and nothing was.
    Nothing,
    /// An arena goes on.
    Arena(State, Box<Arena>),
    /// What was retained is gone, and that is accepted.
    Gone(Option<State>),
}

impl Prepared {
    /// Looks at the images' state files, opens or makes the arenas. The images must be locked.
    ///
    /// # Errors
    /// See [`RetainError`].
    pub fn new(
        images: &[GroupImage<'_>],
        contract: &afterimage_order::Contract,
        options: JournalOptions,
    ) -> Result<Self, RetainError> {
        let mut prepared = Self {
            budget: Budget::new(options.retain_bytes_max),
            options,
            disks: Vec::new(),
            stale: Vec::new(),
            given_up: Vec::new(),
            dead_arenas: Vec::new(),
        };
        let mut earlier = Vec::new();
        // All are judged before anything is made.
        for image in images {
            let retain = prepared.options.retain && !image.read_only;
            if retain && ImageIdentity::of(image.path)?.is_none() {
                return Err(RetainError::Device { image: image.path.to_owned() });
            }
            let JournalOptions { arena_folder, accept_loss, .. } = &prepared.options;
            earlier.push((image, retain, judge(image.path, arena_folder, retain, *accept_loss)?));
        }
        if prepared.options.retain {
            prepared.options.arena_folder = folder(&prepared.options)?;
        }
        for (n, (image, retain, found)) in earlier.into_iter().enumerate() {
            if matches!(found, Earlier::Gone(_)) && !retain && !image.read_only {
                prepared.given_up.push(n);
            }
            let disk = prepared.disk(image.path, retain, found, contract)?;
            prepared.disks.push(disk);
        }
        Ok(prepared)
    }

    /// Files that are opened or removed later on, with the folders that are theirs alone.
    pub fn arenas(&self) -> Vec<PathBuf> {
        let disks = self.disks.iter().flatten().map(|d| d.arena.path());
        let dead = self.dead_arenas.iter().map(|(path, _)| path.as_path());
        disks.chain(dead).map(Path::to_owned).collect()
    }

    /// Folders in which state files are written and removed.
    pub fn state_folders(&self) -> Vec<PathBuf> {
        let files = self.disks.iter().flatten().map(|d| &d.state_path).chain(&self.stale);
        files.filter_map(|file| file.parent()).map(Path::to_owned).collect()
    }

    fn disk(
        &mut self,
        image: &Path,
        retain: bool,
        found: Earlier,
        contract: &afterimage_order::Contract,
    ) -> Result<Option<PreparedDisk>, RetainError> {
        let state_path = state_file::state_path(image)?;
        match found {
            Earlier::Arena(state, mut arena) => {
                arena.set_bytes_max(self.options.retain_bytes_max)?;
                arena.set_budget(self.budget.clone());
                arena.note_image(&whole(image));
                let image = image.to_owned();
                let fresh = Fresh::nothing();
                return Ok(Some(PreparedDisk { image, state_path, arena: *arena, state, fresh }));
            }
            Earlier::Gone(state) => {
                let left =
                    |s: &State| crate::versions::arena::own_folder(&s.arena).unwrap_or(&s.arena).exists();
                if let Some(state) = state.filter(left) {
                    self.dead_arenas.push((state.arena.clone(), state.arena_identity()));
                }
                if !retain {
                    self.stale.push(state_path.clone());
                }
            }
            Earlier::Nothing => {}
        }
        if !retain {
            return Ok(None);
        }
        let identity =
            ImageIdentity::of(image)?.ok_or_else(|| RetainError::Device { image: image.to_owned() })?;
        let arena_uuid = Uuid::new_v4();
        let state = State {
            arena: crate::versions::arena::place(&self.options.arena_folder, arena_uuid),
            arena_uuid,
            image: identity,
            boot_id: state_file::boot_id()?,
            contract: contract.to_string(),
        };
        let mut arena = Arena::create(&state.arena, state.arena_identity(), self.options.retain_bytes_max)?;
        arena.set_budget(self.budget.clone());
        arena.note_image(&whole(image));
        let fresh =
            Fresh { state: state_path.clone(), arena: Some(state.arena.clone()), state_written: false };
        Ok(Some(PreparedDisk { image: image.to_owned(), state_path, arena, state, fresh }))
    }
}

/// A path for people, from anywhere.
fn whole(image: &Path) -> PathBuf {
    fs::canonicalize(image).unwrap_or_else(|_| image.to_owned())
}

/// The folder as a path that means the same from anywhere.
fn folder(options: &JournalOptions) -> Result<PathBuf, RetainError> {
    let refused = |why: String| RetainError::Folder { folder: options.arena_folder.clone(), why };
    let folder = fs::canonicalize(&options.arena_folder).map_err(|e| refused(e.to_string()))?;
    if folder.to_str().is_none() {
        return Err(refused("its name is not UTF-8 text, which the state file needs".to_owned()));
    }
    let found = rustix::fs::statvfs(&folder).map_err(|e| refused(std::io::Error::from(e).to_string()))?;
    let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
    if free_bytes < options.retain_bytes_max {
        tracing::warn!(
            folder = %folder.display(),
            free_bytes,
            retain_bytes_max = options.retain_bytes_max,
            "the arena's folder has less free memory than --retain-max: journals will be checkpointed earlier"
        );
    }
    if rustix::fs::statfs(&folder).is_ok_and(|s| s.f_type != TMPFS_MAGIC) {
        tracing::warn!(
            folder = %folder.display(),
            "the arena's folder is not on a tmpfs: the kernel will write retained journals to its storage"
        );
    }
    Ok(folder)
}

/// What statfs says of a tmpfs (linux/magic.h).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Judges what an image's state file says; where there is none, what its journals say. `arena_folder`: where their arena may be.
pub(crate) fn judge(
    image: &Path,
    arena_folder: &Path,
    retain: bool,
    accept_loss: bool,
) -> Result<Earlier, RetainError> {
    let state_path = state_file::state_path(image)?;
    let state = match State::read(&state_path) {
        Ok(None) => match stray(image, arena_folder)? {
            None => return Ok(Earlier::Nothing),
            Some(why) if accept_loss => {
                tracing::warn!(image = %image.display(), why, "--accept-loss: what it had is given up");
                return Ok(Earlier::Gone(None));
            }
            Some(why) => return Err(RetainError::Stray { image: image.to_owned(), why }),
        },
        Ok(Some(state)) => state,
        Err(source @ StateError::Corrupt { .. }) if accept_loss => {
            tracing::warn!(error = %source, "--accept-loss: whatever it named is given up");
            return Ok(Earlier::Gone(None));
        }
        Err(source @ StateError::Corrupt { .. }) => {
            return Err(RetainError::Damaged { image: image.to_owned(), source });
        }
        Err(e) => return Err(e.into()),
    };
    if !is_own(image, &state)? {
        if accept_loss {
            tracing::warn!(image = %image.display(), "--accept-loss: its state file belongs to another image");
            return Ok(Earlier::Gone(None));
        }
        return Err(RetainError::OtherImage {
            image: image.to_owned(),
            path: state_path,
            inode: state.image.inode,
            size_bytes: state.image.size_bytes,
        });
    }
    let why = match arena_of(image, &state)? {
        Ok(()) if !retain => {
            return Err(RetainError::Retained { image: image.to_owned(), arena: state.arena });
        }
        Ok(()) => match open_arena(image, &state) {
            Ok(arena) => return Ok(Earlier::Arena(state, Box::new(arena))),
            Err(JournalError::Corrupt(what)) => what,
            Err(e) => return Err(e.into()),
        },
        Err(gone) => gone,
    };
    if state.survives_power() {
        tracing::warn!(
            image = %image.display(),
            why,
            "the arena of retained journals is gone; under {} nothing durable is lost with it",
            state.contract
        );
    } else if accept_loss {
        tracing::warn!(
            image = %image.display(),
            why,
            "--accept-loss: what the guest had committed and not yet written home is given up"
        );
    } else {
        return Err(RetainError::Lost { image: image.to_owned(), why });
    }
    Ok(Earlier::Gone(Some(state)))
}

/// Whether an image is the one that its state file was made for: by inode and size; or, where it was moved to another file system, by its
/// journals' stamp. A copy bears that as well: then the image that it was made from is still where it was. Where a redo log has to go home
/// first, the arena's own look at the disk decides, and it insists on the stamp.
pub(crate) fn is_own(image: &Path, state: &State) -> Result<bool, RetainError> {
    let found = ImageIdentity::of(image)?;
    if found == Some(state.image) {
        return Ok(true);
    }
    if found.is_none_or(|found| found.size_bytes != state.image.size_bytes) {
        return Ok(false);
    }
    let ours = open_ours(&state.arena, state_file::owner_of(image)).ok();
    let peeked = ours.and_then(|_| Arena::peek(&state.arena).ok());
    let original = peeked.as_ref().and_then(|peeked| peeked.image.as_deref());
    if original.is_some_and(|path| ImageIdentity::of(path).is_ok_and(|there| there == Some(state.image))) {
        return Ok(false);
    }
    if is_behind_its_log(image) {
        return Ok(peeked
            .is_some_and(|peeked| !peeked.records.is_empty() && peeked.records.iter().all(|r| r.stamped)));
    }
    let medium =
        Arc::new(FileMedium::open(image, true).map_err(StateError::io("open", image))?) as Arc<dyn Medium>;
    let sectors = medium.len() / SECTOR_BYTES;
    Ok(ext4::bears(&mut { medium }, sectors, *state.arena_uuid.as_bytes())?)
}

/// Where what was committed on an image without a state file is retained, if its journals say that it is: it was renamed, linked or
/// copied without that file.
pub(crate) fn stray(image: &Path, arena_folder: &Path) -> Result<Option<String>, RetainError> {
    // Where it cannot be opened, whoever serves it says why.
    let Ok(medium) = FileMedium::open(image, true) else { return Ok(None) };
    let medium = Arc::new(medium) as Arc<dyn Medium>;
    let sectors = medium.len() / SECTOR_BYTES;
    let Some(arena) = ext4::awaited(&mut { medium }, sectors)? else { return Ok(None) };
    // What a redo log holds may say something else, and it is durable.
    if is_behind_its_log(image) {
        return Ok(None);
    }
    let arena = crate::versions::arena::place(arena_folder, Uuid::from_bytes(arena));
    Ok(Some(match arena.exists() {
        true => format!("it is retained in {}", arena.display()),
        false => format!("it was retained in an arena that is not in {}", arena_folder.display()),
    }))
}

/// Whether a redo log holds requests that are not home: until they are, the image does not show what a daemon would see, and
/// whether somebody else changed it cannot be said.
pub(crate) fn is_behind_its_log(image: &Path) -> bool {
    afterimage_order::offline::inspect(image)
        .is_ok_and(|report| report.log.is_some_and(|log| log.records > 0))
}

/// Opens the arena that a state names; what is open is judged once more, since its name may lead elsewhere by now.
pub(crate) fn open_arena(image: &Path, state: &State) -> Result<Arena, JournalError> {
    let arena = Arena::open(&state.arena, Some(state.arena_identity()))?;
    arena.check_owner(state_file::owner_of(image))?;
    Ok(arena)
}

/// Whether the arena that a state names is there, and ours; why it is not there.
pub(crate) fn arena_of(image: &Path, state: &State) -> Result<Result<(), String>, StateError> {
    let arena = state.arena.display();
    if state_file::boot_id()? != state.boot_id {
        return Ok(Err(format!("the host was restarted since, and the arena {arena} was memory")));
    }
    match open_ours(&state.arena, state_file::owner_of(image)) {
        Ok(_) => Ok(Ok(())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Err(format!("the arena {arena} is gone"))),
        Err(e) => Err(StateError::io("look at the arena", &state.arena)(e)),
    }
}
