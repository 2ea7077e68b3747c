//! Owns the identity of an agent across restarts: a secret id of the installation and a counter of its
//! starts. Servers refuse other installations for a node while its agent is alive.

use std::path::Path;
use std::{fs, io};

use downbeat_proto::message::InstanceId;
use jiff::Timestamp;
use uuid::Uuid;

use crate::private;

/// The installation and the number of this start.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    /// The id in the data directory plus the machine's boot id: a machine that was cloned with its data
    /// directory has another boot id, and is another installation.
    pub(crate) id: InstanceId,
    pub(crate) life: u64,
    /// The file that could not be written, for users.
    pub(crate) problem: Option<String>,
}

impl Installation {
    /// Reads or creates the id, and counts this start. A disk that refuses writes does not prevent the start:
    /// the clock keeps the counter increasing, and an id that was not written is valid for this run. Only an
    /// existing id that cannot be read is an error.
    pub(crate) fn open(data: &Path, boot: Option<Uuid>, now: Timestamp, drawn: Uuid) -> io::Result<Self> {
        let file = data.join("instance");
        let mut problem = None;
        let id = match read::<Uuid>(&file)? {
            Some(id) => id,
            None => {
                problem = note(&file, &drawn.to_string());
                drawn
            }
        };
        let file = data.join("life");
        // The clock helps a data directory that was restored from a backup: its counter must exceed those
        // used since.
        let clock = u64::try_from(now.as_second()).unwrap_or(0);
        let last = read::<u64>(&file).unwrap_or_else(|error| {
            tracing::warn!(file = %file.display(), %error, "cannot read how often this agent was started");
            None
        });
        let life = last.map_or(1, |last| last.saturating_add(1)).max(clock);
        let problem = problem.or(note(&file, &life.to_string()));
        let mut bytes = id.as_bytes().to_vec();
        bytes.extend(boot.iter().flat_map(|boot| boot.as_bytes()));
        Ok(Self { id: InstanceId(bytes), life, problem })
    }
}

/// Returns `None` if the file is missing or its content is invalid. A file that cannot be read is an error: a
/// new id would make this another installation.
fn read<T: std::str::FromStr>(file: &Path) -> io::Result<Option<T>> {
    match fs::read_to_string(file) {
        Ok(text) => {
            let value = text.trim().parse().ok();
            if value.is_none() {
                tracing::warn!(file = %file.display(), "this file is not valid; creating it again");
            }
            Ok(value)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the problem if the file cannot be written.
fn note(file: &Path, text: &str) -> Option<String> {
    let error = private::write(file, text).err()?;
    let file = file.display();
    tracing::warn!(%file, %error, "cannot write the agent's identity; continuing without");
    Some(format!(
        "cannot write {file}: {error}; a restart of the agent may be taken for another installation"
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const BOOT: Uuid = Uuid::from_u128(1);

    fn open(data: &Path, boot: Uuid, second: i64, number: u128) -> Installation {
        let now = Timestamp::from_second(second).unwrap();
        Installation::open(data, Some(boot), now, Uuid::from_u128(number)).unwrap()
    }

    #[test]
    fn an_installation_keeps_its_id_and_counts_its_starts() {
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
    fn a_data_directory_from_a_backup_continues_after_the_starts_since() {
        let data = tempfile::tempdir().unwrap();
        let before = open(data.path(), BOOT, 1_000, 1);
        let since = open(data.path(), BOOT, 1_010, 2);
        fs::write(data.path().join("life"), before.life.to_string()).unwrap();
        assert!(open(data.path(), BOOT, 1_020, 3).life > since.life);
    }

    #[test]
    fn a_disk_that_takes_no_writes_does_not_hold_up_the_start() {
        let data = tempfile::tempdir().unwrap();
        let written = open(data.path(), BOOT, 1_000, 1);
        // The agent cannot write `*.part` where a directory of that name exists.
        for part in ["instance.part", "life.part"] {
            fs::create_dir(data.path().join(part)).unwrap();
        }
        let unwritten = open(data.path(), BOOT, 1_010, 2);
        assert_eq!((&unwritten.id, unwritten.life), (&written.id, 1_010));
        assert!(unwritten.problem.is_some_and(|problem| problem.contains("life")));
        fs::remove_file(data.path().join("instance")).unwrap();
        let first = open(data.path(), BOOT, 1_020, 3);
        assert_ne!(first.id, written.id);
        assert!(first.problem.is_some_and(|problem| problem.contains("instance")));
    }

    #[test]
    fn an_id_that_cannot_be_read_is_not_replaced() {
        let data = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("instance")).unwrap();
        let now = Timestamp::from_second(1_000).unwrap();
        assert!(Installation::open(data.path(), Some(BOOT), now, Uuid::from_u128(1)).is_err());
    }

    #[test]
    fn files_with_invalid_content_are_created_again() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("instance"), b"\xff\x00").unwrap();
        fs::write(data.path().join("life"), "many").unwrap();
        let first = open(data.path(), BOOT, 1_000, 1);
        assert_eq!(first.id, open(data.path(), BOOT, 1_000, 2).id);
    }
}
