//! Owns who an agent is beyond one life: an id that only this installation knows, and a counter of its starts. Servers
//! let nobody else be a node while it is alive.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use downbeat_proto::message::InstanceId;
use jiff::Timestamp;
use uuid::Uuid;

/// The installation, in one of its lives.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// The id in the data directory and that of the machine's boot: a machine that was cloned with its data directory has
    /// booted another time, and is another installation.
    pub(crate) id: InstanceId,
    /// Rises with each start.
    pub(crate) life: u64,
}

impl Installation {
    /// Reads who this is, or notes it for the first time, and that it has started once more.
    pub(crate) fn open(
        data: &Path,
        boot: Option<Uuid>,
        now: Timestamp,
        draw: impl FnOnce() -> Uuid,
    ) -> io::Result<Self> {
        let file = data.join("instance");
        let id = match read::<Uuid>(&file)? {
            Some(id) => id,
            None => {
                let id = draw();
                write(&file, &id.to_string())?;
                id
            }
        };
        let file = data.join("life");
        // The clock helps a data directory that was brought back from a backup: its lives come after those since then.
        let clock = u64::try_from(now.as_second()).unwrap_or(0);
        let life = read::<u64>(&file)?.map_or(1, |last| last.saturating_add(1)).max(clock);
        write(&file, &life.to_string())?;
        let mut bytes = id.as_bytes().to_vec();
        bytes.extend(boot.iter().flat_map(|boot| boot.as_bytes()));
        Ok(Self { id: InstanceId(bytes), life })
    }
}

/// Nothing: there is no such file, or what it holds is none of ours. A file that cannot be read is an error: whoever makes
/// up another id is another installation.
fn read<T: std::str::FromStr>(file: &Path) -> io::Result<Option<T>> {
    match fs::read_to_string(file) {
        Ok(text) => {
            let value = text.trim().parse().ok();
            if value.is_none() {
                tracing::warn!(file = %file.display(), "cannot make sense of this file; it is made anew");
            }
            Ok(value)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole or not at all, for nobody else to read.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let part = file.with_extension("part");
    // What a crash left there may be open to others.
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    new.write_all(text.as_bytes())?;
    new.sync_all()?;
    fs::rename(&part, file)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const BOOT: Uuid = Uuid::from_u128(1);

    fn open(data: &Path, boot: Uuid, second: i64, number: u128) -> Installation {
        let (now, draw) = (Timestamp::from_second(second).unwrap(), || Uuid::from_u128(number));
        Installation::open(data, Some(boot), now, draw).unwrap()
    }

    #[test]
    fn an_installation_keeps_its_id_and_counts_its_lives() {
        let data = tempfile::tempdir().unwrap();
        let first = open(data.path(), BOOT, 1_000, 1);
        let second = open(data.path(), BOOT, 1_000, 2);
        let third = open(data.path(), BOOT, 500, 3);
        assert_eq!((&first.id, &second.id), (&second.id, &third.id));
        assert_eq!(
            [first.life, second.life, third.life],
            [1_000, 1_001, 1_002],
            "also when the clock goes back"
        );
        let mode = fs::metadata(data.path().join("instance")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn another_directory_or_another_boot_is_another_installation() {
        let (data, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = open(data.path(), BOOT, 1_000, 1);
        assert_ne!(first.id, open(other.path(), BOOT, 1_000, 2).id);
        // A clone of the whole machine.
        assert_ne!(first.id, open(data.path(), Uuid::from_u128(2), 1_000, 3).id);
    }

    #[test]
    fn a_data_directory_from_a_backup_has_newer_lives_than_those_since() {
        let data = tempfile::tempdir().unwrap();
        let before = open(data.path(), BOOT, 1_000, 1);
        let since = open(data.path(), BOOT, 1_010, 2);
        fs::write(data.path().join("life"), before.life.to_string()).unwrap();
        assert!(open(data.path(), BOOT, 1_020, 3).life > since.life);
    }

    #[test]
    fn files_that_hold_something_else_are_made_anew() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("instance"), b"\xff\x00").unwrap();
        fs::write(data.path().join("life"), "many").unwrap();
        let first = open(data.path(), BOOT, 1_000, 1);
        assert_eq!(first.id, open(data.path(), BOOT, 1_000, 2).id);
    }
}
