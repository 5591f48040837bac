//! `afterimage guest-user NAME`: the user that serves one guest's disks.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use nix::unistd::User;

use crate::failure::Failure;

/// Make the user that serves one guest's disks, for the unit afterimage@NAME
///
/// The user is afterimage-NAME. Its group may connect to the disks. systemd-sysusers makes both, from a file in /etc/sysusers.d.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  afterimage guest-user web\n  afterimage guest-user web --vmm vm-operator"
)]
pub struct Args {
    /// The guest: the NAME of afterimage@NAME.service and of /etc/afterimage/NAME.toml
    name: String,
    /// A user whose VMM connects to the disks; libvirt-qemu if left out and there is one
    #[arg(long, value_name = "USER")]
    vmm: Vec<String>,
}

/// libvirt's QEMU runs as this user on Debian.
const LIBVIRT: &str = "libvirt-qemu";
/// Linux has 31 characters for a user's name.
const NAME_MAX: usize = 31 - "afterimage-".len();

/// Runs it.
///
/// # Errors
/// The name cannot be a user's; the file cannot be written; systemd-sysusers fails.
pub fn run(args: &Args) -> Result<(), Failure> {
    let name = checked(&args.name)?;
    let mut vmm = args.vmm.clone();
    if vmm.is_empty() && exists(LIBVIRT)? {
        vmm.push(LIBVIRT.into());
    }
    for user in &vmm {
        if !exists(user)? {
            return Err(Failure::usage(format!("--vmm {user}: there is no such user")));
        }
    }
    let file = format!("/etc/sysusers.d/afterimage-{name}.conf");
    write(Path::new(&file), &sysusers(name, &vmm))?;
    let status = Command::new("systemd-sysusers").arg(&file).status();
    let status = status.map_err(|e| Failure::failed(format!("cannot start systemd-sysusers: {e}")))?;
    if !status.success() {
        return Err(Failure::failed(format!("systemd-sysusers {file}: {status}")));
    }
    super::print_line(&format!(
        "afterimage-{name} serves the disks of {name}. Next: write /etc/afterimage/{name}.toml, systemctl start afterimage@{name}"
    ))
}

fn exists(user: &str) -> Result<bool, Failure> {
    let found =
        User::from_name(user).map_err(|e| Failure::failed(format!("cannot look up the user {user}: {e}")))?;
    Ok(found.is_some())
}

/// The guest's name, if `afterimage-NAME` can be a user's name and NAME needs no escape in a unit's name.
fn checked(name: &str) -> Result<&str, Failure> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    if (1..=NAME_MAX).contains(&name.len()) && name.chars().all(plain) {
        return Ok(name);
    }
    Err(Failure::usage(format!(
        "{name:?} cannot name a guest's user: use 1 to {NAME_MAX} of a-z, 0-9, - and _"
    )))
}

/// What sysusers.d(5) reads.
fn sysusers(name: &str, vmm: &[String]) -> String {
    let user = format!("afterimage-{name}");
    let mut lines = format!("u {user} - \"Afterimage disks of {name}\" /var/lib/afterimage/{name}\n");
    for member in vmm {
        lines += &format!("m {member} {user}\n");
    }
    lines
}

/// Whole or not at all; the folder is made if it is missing.
fn write(path: &Path, content: &str) -> Result<(), Failure> {
    let failed = |e: std::io::Error| {
        let advice = if e.kind() == ErrorKind::PermissionDenied { ": run it as root" } else { "" };
        Failure::failed(format!("cannot write {}: {e}{advice}", path.display()))
    };
    let part = path.with_extension("part");
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
    fs::write(&part, content).and_then(|()| fs::rename(&part, path)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_good_for_a_user_and_a_unit() {
        for good in ["web", "web-1", "a_b", "12345678901234567890"] {
            assert_eq!(checked(good).unwrap(), good);
        }
        for bad in ["", "Web", "a b", "../a", "a@b", "ä", "a\nb", "123456789012345678901"] {
            assert!(checked(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_file_is_what_the_example_says() {
        let example = include_str!("../../../../contrib/systemd/afterimage.sysusers");
        let lines: String =
            example.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
        assert_eq!(sysusers("NAME", &["libvirt-qemu".into()]), lines);
    }
}
