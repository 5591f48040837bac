//! What is refused, with which words, and that nothing was touched; and who else sees the locks.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use afterimage_block::{Blocking, Disk, FlushKind, Medium, Sector};
use afterimage_store::{
    create_image, DirectMode, Image as _, ImageStore, LogError, LogFile, NewLog, OpenError, OpenOptions,
};
use afterimage_testing::{command, is_inside, on_a_device, skip};

fn image() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("disk.img");
    create_image(&path, 1 << 20).unwrap();
    (directory, path)
}

fn error(options: &OpenOptions) -> OpenError {
    match ImageStore::open(options) {
        Ok(_) => panic!("{} was opened", options.path.display()),
        Err(error) => error,
    }
}

fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|s| s.success())
}

#[test]
fn bad_files_are_refused() {
    let (directory, path) = image();
    let in_directory = |name: &str| directory.path().join(name);
    let say = |path: &Path| error(&OpenOptions::new(path)).to_string();

    assert!(matches!(error(&OpenOptions::new(in_directory("nothing"))), OpenError::NotFound(_)));
    assert!(say(directory.path()).contains("is a directory"));
    assert!(say(Path::new("/dev/null")).contains("character device"));
    let pipe = in_directory("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(say(&pipe).contains("is a pipe"));

    std::fs::write(in_directory("odd"), vec![0; 1000]).unwrap();
    assert!(say(&in_directory("odd")).contains("multiple of 512"));
    std::fs::write(in_directory("empty"), b"").unwrap();
    assert!(say(&in_directory("empty")).contains("is empty: give the disk a size"));

    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o444)).unwrap();
    assert!(matches!(error(&OpenOptions::new(&path)), OpenError::NotWritable { .. }));
    ImageStore::open(&OpenOptions { read_only: true, ..OpenOptions::new(&path) }).unwrap();

    assert!(matches!(create_image(&path, 512), Err(OpenError::Exists(_))));
    assert!(matches!(create_image(&in_directory("new"), 100), Err(OpenError::BadSize { .. })));
    assert!(!in_directory("new").exists());
    assert!(matches!(
        error(&OpenOptions { direct: DirectMode::On, ..OpenOptions::new(in_memory_image().1) }),
        OpenError::NoDirect(_)
    ));
}

fn in_memory_image() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("disk.img");
    create_image(&path, 1 << 20).unwrap();
    // The directory must outlive the caller's look at it.
    (directory, path)
}

#[test]
fn other_formats_are_refused_with_advice() {
    if !has("qemu-img") {
        return skip("no qemu-img here (Debian: qemu-utils)");
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for format in ["qcow2", "qcow", "vmdk", "vdi", "vpc", "vhdx", "qed", "parallels"] {
        let path = directory.path().join(format);
        let made = Command::new("qemu-img")
            .args(["create", "-q", "-f", format])
            .arg(&path)
            .arg("8M")
            .status()
            .unwrap();
        assert!(made.success(), "{format}");
        // Some are no whole number of sectors long; the format is the better explanation only where they are.
        let size = std::fs::metadata(&path).unwrap().len().next_multiple_of(512);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(size).unwrap();
        let before = std::fs::read(&path).unwrap();
        let message = error(&OpenOptions::new(&path)).to_string();
        assert!(message.contains("qemu-img convert"), "{format}: {message}");
        assert_eq!(before, std::fs::read(&path).unwrap(), "{format} was touched");
        ImageStore::open(&OpenOptions { any_content: true, ..OpenOptions::new(&path) }).unwrap();
    }
    let luks = directory.path().join("luks");
    let mut content = vec![0; 1 << 20];
    content[..6].copy_from_slice(b"LUKS\xba\xbe");
    std::fs::write(&luks, content).unwrap();
    ImageStore::open(&OpenOptions::new(&luks)).unwrap();
}

#[test]
fn closing_gives_the_locks_back_at_once() {
    let (_directory, path) = image();
    for _ in 0..50 {
        let options = OpenOptions { lock_wait: Duration::ZERO, ..OpenOptions::new(&path) };
        let disk = ImageStore::open(&options).unwrap();
        let mut lane = Blocking::new(disk.open_lane().unwrap());
        lane.write(Sector(8), &[1; 4096]).unwrap();
        lane.flush(FlushKind::Durable).unwrap();
        assert!(error(&options).to_string().contains("this very process"));
    }
}

#[test]
fn readers_share_and_a_writer_does_not() {
    let (_directory, path) = image();
    let reader = OpenOptions { read_only: true, ..OpenOptions::new(&path) };
    let first = ImageStore::open(&reader).unwrap();
    let second = ImageStore::open(&reader).unwrap();
    assert!(matches!(error(&OpenOptions::new(&path)), OpenError::InUse { .. }));
    drop((first, second));
    let _writer = ImageStore::open(&OpenOptions::new(&path)).unwrap();
    assert!(matches!(error(&reader), OpenError::InUse { .. }));
}

#[test]
fn qemu_and_we_see_each_other() {
    if !has("qemu-img") || !has("qemu-io") {
        return skip("no qemu-img and qemu-io here (Debian: qemu-utils)");
    }
    let (_directory, path) = image();
    let qemu_io = |read_only: bool| {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw"]).args(read_only.then_some("-r")).arg(&path).args(["-c", "read 0 512"]);
        command.output().unwrap().status.success()
    };
    assert!(qemu_io(false), "qemu-io works here at all");
    let ours = ImageStore::open(&OpenOptions::new(&path)).unwrap();
    assert!(!qemu_io(false) && !qemu_io(true), "QEMU opened an image that is served");
    drop(ours);
    let ours = ImageStore::open(&OpenOptions { read_only: true, ..OpenOptions::new(&path) }).unwrap();
    assert!(!qemu_io(false), "QEMU wrote to an image that is served read-only");
    assert!(qemu_io(true), "two readers disturb nobody");
    drop(ours);

    // The other way round: a QEMU program holds the image, with byte locks only.
    let mut qemu = Qemu(
        Command::new("qemu-io")
            .args(["-f", "raw"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap(),
    );
    // Its prompt: the image is open.
    let mut prompt = [0; 8];
    qemu.0.stdout.as_mut().unwrap().read_exact(&mut prompt).unwrap();
    let message = error(&OpenOptions::new(&path)).to_string();
    let pid = qemu.0.id().to_string();
    assert!(message.contains(&pid) && message.contains("qemu-io"), "{message}");
    qemu.0.kill().unwrap();
}

struct Qemu(Child);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn created_images_are_sparse_and_identified() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("large.img");
    create_image(&path, 1 << 34).unwrap();
    let disk = ImageStore::open(&OpenOptions::new(&path)).unwrap();
    assert_eq!(disk.geometry().sectors, 1 << 25);
    assert_eq!(disk.serial(), "large.img");
    let before = disk.identity().unwrap();
    assert_eq!(before.size_bytes, 1 << 34);
    let mut lane = Blocking::new(disk.open_lane().unwrap());
    lane.write(Sector(4096), &vec![7; 1 << 20]).unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() >= 2048);
    lane.discard(Sector(4096), 2048).unwrap();
    lane.write_zeroes(Sector(1 << 20), 1 << 20, true).unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() < 64, "sparse stays sparse");
    lane.flush(FlushKind::Durable).unwrap();
    let counted = disk.counters().snapshot();
    assert_eq!((counted.discards, counted.syncs, counted.write_bytes), (2, 1, 1 << 20));
    lane.flush(FlushKind::Durable).unwrap();
    assert_eq!(disk.counters().snapshot().syncs, 1, "nothing was written since the last sync");
    let after = disk.identity().unwrap();
    assert_eq!((before.dev, before.ino), (after.dev, after.ino));
    assert!(after.mtime_ns > before.mtime_ns);
}

/// A log of nothing, whose content `fill` writes.
fn create_log(path: &Path, fill: &dyn Fn(&Arc<dyn Medium>)) -> Result<LogFile, LogError> {
    let fill = |log: &Arc<dyn Medium>, _: &[_], _: &[_]| {
        fill(log);
        Ok(())
    };
    LogFile::create(path, &[], NewLog { bytes: 1 << 16, written_bytes: 0, fill: &fill })
}

/// Two starts with one `--log`, whose images differ, so that no image's lock keeps them apart.
#[test]
fn a_start_takes_no_log_away_that_another_one_makes() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, draft) = (directory.path().join("log"), directory.path().join("log.new"));
    // What a dead start has left is in nobody's way.
    std::fs::write(&draft, [1; 100]).unwrap();
    let log = create_log(&path, &|log| {
        let Err(error) = create_log(&path, &|_| panic!("beside another start")) else { panic!("two logs") };
        assert!(matches!(error, LogError::LogInUse(_)), "{error}");
        log.write_at(b"ours", 0).unwrap();
    });
    let log = log.unwrap();
    assert!(!draft.exists() && !log.is_deleted());
    // Or the other one has come so far while this one prepared its own.
    let late = create_log(&path, &|log| log.write_at(b"late", 0).unwrap());
    assert!(late.is_err() && !draft.exists() && !log.is_deleted());
    assert_eq!(&std::fs::read(&path).unwrap()[..4], b"ours");
}

#[test]
fn a_device_has_one_writer_whatever_leads_to_it() {
    on_a_device("claims");
}

/// A loop device over a file, with one partition of 8 MiB.
struct Loop(String);

impl Loop {
    fn over(backing: &Path) -> Self {
        let made =
            Self(command("losetup", &["--find", "--show", backing.to_str().unwrap()]).trim_end().to_owned());
        command("addpart", &[&made.0, "1", "2048", "16384"]);
        made
    }

    /// A node of its own, as a container's /dev has one; of the device or of one of its partitions.
    fn node(&self, path: &Path, partition: Option<u32>) -> PathBuf {
        let name = self.0.strip_prefix("/dev/").unwrap();
        let folder = match partition {
            Some(n) => format!("/sys/class/block/{name}p{n}/dev"),
            None => format!("/sys/class/block/{name}/dev"),
        };
        let numbers = std::fs::read_to_string(folder).unwrap();
        let (major, minor) = numbers.trim().split_once(':').unwrap();
        command("mknod", &[path.to_str().unwrap(), "b", major, minor]);
        path.to_owned()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("delpart").args([&self.0, "1"]).status();
        command("losetup", &["--detach", &self.0]);
    }
}

#[test]
#[ignore = "run in a namespace by a_device_has_one_writer_whatever_leads_to_it"]
fn claims() {
    if !is_inside() {
        return skip("run by a_device_has_one_writer_whatever_leads_to_it");
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::File::create(at("disk")).and_then(|file| file.set_len(16 << 20)).unwrap();
    let device = Loop::over(&at("disk"));
    let (one, other, part) =
        (device.node(&at("one"), None), device.node(&at("other"), None), device.node(&at("part"), Some(1)));
    let writer = |path: &Path| ImageStore::open(&OpenOptions::new(path));
    let reader = |path: &Path| ImageStore::open(&OpenOptions { read_only: true, ..OpenOptions::new(path) });
    let in_use = |opened: Result<Arc<ImageStore>, OpenError>, by: &str| match opened.err() {
        Some(OpenError::InUse { holder, .. }) => assert!(holder.contains(by), "{holder}"),
        other => panic!("{other:?}"),
    };

    // The file below it would have two writers.
    in_use(writer(&at("disk")), "loop device");
    drop(reader(&at("disk")).unwrap());
    let first = writer(&one).unwrap();
    in_use(writer(&other), "process");
    in_use(writer(&part), "process");
    in_use(reader(&other), "process");
    drop(first);
    let first = writer(&part).unwrap();
    in_use(writer(&one), "process");
    drop(first);
    let (first, second) = (reader(&one).unwrap(), reader(&other).unwrap());
    drop((first, second));

    let mounted = at("mounted");
    std::fs::create_dir(&mounted).unwrap();
    let mounted = mounted.to_str().unwrap();
    command("mkfs.ext4", &["-q", "-F", part.to_str().unwrap()]);
    command("mount", &[part.to_str().unwrap(), mounted]);
    for path in [&part, &one, &other] {
        in_use(writer(path), mounted);
        in_use(reader(path), mounted);
    }
    command("mount", &["-o", "remount,ro", mounted]);
    in_use(writer(&one), mounted);
    drop((reader(&one).unwrap(), reader(&part).unwrap()));
    command("umount", &[mounted]);
    // And a mount asks us.
    let served = writer(&other).unwrap();
    let refused = Command::new("mount").arg(&part).arg(mounted).status().unwrap();
    assert!(!refused.success(), "mounted while it is served");
    drop(served);
    drop(writer(&part).unwrap());
}
