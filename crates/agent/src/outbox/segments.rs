//! Owns the files of the outbox: results are appended to the newest, and a file is removed when all of its results are
//! acknowledged.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use downbeat_proto::message::{Finished, LeaseRef};

use super::record::{self, Rest};
use crate::private;

/// A file larger than this gets a successor: one result that is never acknowledged keeps at most this much.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// A file whose results are all acknowledged is emptied when it is this large or the outbox is idle: emptying it after
/// each batch would cost a journal commit of the file system each time.
const EMPTY_AT_BYTES: u64 = 1024 * 1024;
/// How much a failed disk must accept before it counts as working.
const PROBE_BYTES: usize = 4 * 1024;

/// The content that an earlier run of the agent left.
#[derive(Debug, Default)]
pub(super) struct Former {
    pub(super) results: Vec<Finished>,
    /// Files that cannot be read completely, and why.
    pub(super) damaged: Vec<String>,
}

#[derive(Debug)]
pub(super) struct Segments {
    dir: PathBuf,
    /// The number of unacknowledged results per file; a file that is not listed does not exist.
    live: BTreeMap<u64, usize>,
    whereabouts: HashMap<LeaseRef, u64>,
    active: Option<Active>,
    next: u64,
}

#[derive(Debug)]
struct Active {
    number: u64,
    file: File,
    bytes: u64,
}

impl Active {
    /// Returns whether the file was deleted, so that writes to it are lost.
    fn is_removed(&self) -> bool {
        self.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
    }
}

impl Segments {
    /// Reads the files of earlier runs. New results go to a new file.
    pub(super) fn open(dir: &Path) -> io::Result<(Self, Former)> {
        private::create_dir(dir)?;
        let mut numbers: Vec<u64> = fs::read_dir(dir)?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".log")?.parse().ok())
            .collect();
        numbers.sort_unstable();
        let mut segments = Self {
            dir: dir.to_owned(),
            live: BTreeMap::new(),
            whereabouts: HashMap::new(),
            active: None,
            next: numbers.last().map_or(1, |last| last + 1),
        };
        let mut former = Former::default();
        for number in numbers {
            let path = segments.path(number);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                // The file stays, for the person who repairs the disk.
                Err(error) => {
                    former.damaged.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            let (records, rest) = record::read(&bytes);
            match rest {
                Rest::Nothing => {}
                Rest::Torn(bytes) => {
                    tracing::warn!(file = %path.display(), bytes, "the outbox ends in an incomplete record; ignoring it");
                }
                Rest::Damaged(bytes) => {
                    former.damaged.push(format!("{}: {bytes} bytes cannot be read", path.display()));
                }
            }
            segments.live.insert(number, 0);
            for finished in records {
                segments.count_in(finished.held, number);
                former.results.push(finished);
            }
            segments.tidy(number);
        }
        Ok((segments, former))
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:08}.log"))
    }

    fn count_in(&mut self, held: LeaseRef, number: u64) {
        *self.live.entry(number).or_default() += 1;
        // Kept twice: only the newer copy counts.
        if let Some(former) = self.whereabouts.insert(held, number) {
            self.count_out(former);
        }
    }

    fn count_out(&mut self, number: u64) {
        let Some(live) = self.live.get_mut(&number) else { return };
        match live.checked_sub(1) {
            Some(fewer) => *live = fewer,
            None => tracing::error!(number, "more results of an outbox file were removed than it contains"),
        }
        self.tidy(number);
    }

    /// Writes all of them durably, or none.
    pub(super) fn append(&mut self, results: &[Finished]) -> io::Result<()> {
        let mut buffer = Vec::new();
        for finished in results {
            record::append(&mut buffer, finished);
        }
        if self.active.as_ref().is_some_and(Active::is_removed) {
            tracing::warn!(outbox = %self.dir.display(), "a file of the outbox was removed; continuing in a new one");
            self.retire_active();
        }
        if self.active.as_ref().is_none_or(|active| active.bytes >= SEGMENT_BYTES) {
            self.begin_segment()?;
        }
        let active = self.active.as_mut().expect("a segment was begun");
        let written = active.file.write_all(&buffer).and_then(|()| active.file.sync_data());
        if let Err(error) = written {
            // Half a record in the middle would hide all that follow. A file that cannot be truncated is given up.
            if active.file.set_len(active.bytes).is_err() {
                self.retire_active();
            }
            return Err(error);
        }
        active.bytes += buffer.len() as u64;
        let number = active.number;
        for finished in results {
            self.count_in(finished.held, number);
        }
        Ok(())
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        // Each attempt has its own number, so that a file of a failed attempt is not in the way.
        let number = self.next;
        self.next += 1;
        private::create_dir(&self.dir)?;
        let path = self.path(number);
        let mut new = OpenOptions::new();
        let file = new.append(true).create_new(true).mode(private::FILE_MODE).open(&path)?;
        // The file's name has to survive a crash too.
        if let Err(error) = File::open(&self.dir).and_then(|dir| dir.sync_all()) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        self.retire_active();
        self.live.insert(number, 0);
        self.active = Some(Active { number, file, bytes: 0 });
        Ok(())
    }

    fn retire_active(&mut self) {
        if let Some(active) = self.active.take() {
            self.tidy(active.number);
        }
    }

    pub(super) fn forget(&mut self, results: &[LeaseRef]) {
        for held in results {
            if let Some(number) = self.whereabouts.remove(held) {
                self.count_out(number);
            }
        }
    }

    fn tidy(&mut self, number: u64) {
        if self.live.get(&number) != Some(&0) {
            return;
        }
        match &mut self.active {
            Some(active) if active.number == number => {
                if active.bytes >= EMPTY_AT_BYTES && active.file.set_len(0).is_ok() {
                    active.bytes = 0;
                }
            }
            Some(_) | None => {
                let _ = fs::remove_file(self.path(number));
                self.live.remove(&number);
            }
        }
    }

    /// Checks whether the disk accepts writes again.
    pub(super) fn probe(&self) -> io::Result<()> {
        private::create_dir(&self.dir)?;
        let path = self.dir.join("probe");
        let probed = private::create(&path)
            .and_then(|mut file| file.write_all(&[0; PROBE_BYTES]).and_then(|()| file.sync_data()))
            .and_then(|()| File::open(&self.dir)?.sync_all());
        let _ = fs::remove_file(&path);
        probed
    }

    /// Empties the current file while the outbox is idle.
    pub(super) fn rest(&mut self) {
        if let Some(active) = &mut self.active
            && active.bytes > 0
            && self.live.get(&active.number) == Some(&0)
            && active.file.set_len(0).is_ok()
        {
            active.bytes = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::result;
    use super::*;

    fn former(dir: &Path) -> Vec<Finished> {
        Segments::open(dir).unwrap().1.results
    }

    #[test]
    fn results_are_there_after_a_crash_until_they_are_acknowledged() {
        let dir = tempfile::tempdir().unwrap();
        let (mut segments, none) = Segments::open(dir.path()).unwrap();
        assert_eq!(none.results, vec![]);
        segments.append(&[result(1), result(2)]).unwrap();
        segments.append(&[result(3)]).unwrap();
        drop(segments);

        let (mut segments, found) = Segments::open(dir.path()).unwrap();
        assert_eq!(found.results, [result(1), result(2), result(3)]);
        segments.append(&[result(4)]).unwrap();
        segments.forget(&[result(1).held, result(2).held, result(3).held]);
        drop(segments);
        assert_eq!(former(dir.path()), [result(4)], "the older file is gone, the newer is not");
    }

    #[test]
    fn a_resting_outbox_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let (mut segments, _) = Segments::open(dir.path()).unwrap();
        segments.append(&[result(1), result(2)]).unwrap();
        segments.forget(&[result(1).held]);
        segments.rest();
        assert_eq!(former(dir.path()).len(), 2, "one is still wanted");
        segments.forget(&[result(2).held]);
        segments.rest();
        drop(segments);
        assert_eq!(former(dir.path()), vec![]);
    }

    #[test]
    fn a_torn_tail_costs_only_the_record_that_was_being_written() {
        let dir = tempfile::tempdir().unwrap();
        let (mut segments, _) = Segments::open(dir.path()).unwrap();
        segments.append(&[result(1), result(2)]).unwrap();
        let path = segments.path(1);
        drop(segments);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let (mut segments, found) = Segments::open(dir.path()).unwrap();
        assert_eq!((found.results, found.damaged), (vec![result(1)], vec![]));
        segments.append(&[result(3)]).unwrap();
        drop(segments);
        assert_eq!(former(dir.path()), [result(1), result(3)]);
    }

    #[test]
    fn a_result_that_is_kept_twice_is_forgotten_once() {
        let dir = tempfile::tempdir().unwrap();
        let (mut segments, _) = Segments::open(dir.path()).unwrap();
        segments.append(&[result(1)]).unwrap();
        drop(segments);
        let (mut segments, _) = Segments::open(dir.path()).unwrap();
        segments.append(&[result(1), result(1), result(2)]).unwrap();
        segments.forget(&[result(1).held, result(2).held, result(1).held]);
        segments.rest();
        drop(segments);
        assert_eq!(former(dir.path()), vec![]);
    }
    /// Runs `what` as a user who is bound by file modes. Root becomes one, in a thread of its own.
    fn as_somebody(dir: &Path, what: impl FnOnce() + Send) {
        use nix::unistd::{Gid, Uid, chown, geteuid, setfsuid};
        const NOBODY: u32 = 65_534;
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                if geteuid().is_root() {
                    chown(dir, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY))).unwrap();
                    setfsuid(Uid::from_raw(NOBODY));
                }
                what();
            });
            done.join().unwrap();
        });
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }

    #[test]
    fn results_are_kept_again_after_a_directory_could_not_be_synced_for_a_while() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path();
        as_somebody(dir, || {
            let (mut segments, _) = Segments::open(dir).unwrap();
            // The directory can be written, but cannot be opened to be synced.
            set_mode(dir, 0o300);
            for _ in 0..3 {
                assert_eq!(
                    segments.append(&[result(1)]).unwrap_err().kind(),
                    io::ErrorKind::PermissionDenied
                );
            }
            assert!(segments.probe().is_err());
            set_mode(dir, 0o700);
            segments.probe().unwrap();
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0, "attempts that failed leave nothing");
            segments.append(&[result(2)]).unwrap();
            segments.append(&[result(3)]).unwrap();
            assert_eq!(former(dir), [result(2), result(3)]);
        });
    }

    #[test]
    fn a_directory_that_was_removed_is_created_again() {
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("outbox");
        let (mut segments, _) = Segments::open(&dir).unwrap();
        segments.append(&[result(1)]).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        segments.append(&[result(2)]).unwrap();
        assert_eq!(former(&dir), [result(2)]);
        segments.forget(&[result(1).held, result(2).held]);
        segments.rest();
        assert_eq!(former(&dir), vec![]);
    }

    #[test]
    fn a_damaged_file_is_reported_and_others_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (mut segments, _) = Segments::open(dir.path()).unwrap();
        segments.append(&[result(1)]).unwrap();
        let path = segments.path(1);
        drop(segments);
        let (mut segments, _) = Segments::open(dir.path()).unwrap();
        segments.append(&[result(2)]).unwrap();
        drop(segments);
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, &bytes).unwrap();
        // A file that cannot be read at all.
        fs::create_dir(dir.path().join("00000099.log")).unwrap();
        let found = Segments::open(dir.path()).unwrap().1;
        assert_eq!(found.results, [result(2)]);
        assert_eq!(found.damaged.len(), 2, "{:?}", found.damaged);
        assert!(found.damaged[0].contains("00000001.log"), "{:?}", found.damaged);
    }

    #[test]
    fn only_the_owner_can_read_results() {
        use std::os::unix::fs::PermissionsExt;
        let temporary = tempfile::tempdir().unwrap();
        let dir = temporary.path().join("outbox");
        let (mut segments, _) = Segments::open(&dir).unwrap();
        segments.append(&[result(1)]).unwrap();
        for (path, mode) in [(dir.clone(), 0o700), (segments.path(1), 0o600)] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
    }
}
