//! Tests the files of the SQLite store: their permissions, and the errors when they are missing, foreign or damaged.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;

use downbeat_core::Change;
use downbeat_core::job::JobKey;
use downbeat_core::limits;
use downbeat_core::run::RunState;
use downbeat_store::conformance::fill;
use downbeat_store::conformance::make::{
    ALL_EVENTS, SERVER, added, apply, at, chunk, cluster_created, cluster_deleted, cluster_id, created,
    execution, job_version, moved, pending, run_id,
};
use downbeat_store::{Error, EventFilter, Store};

async fn open(path: &Path) -> Result<Arc<dyn Store>, Error> {
    downbeat_store::open(&format!("sqlite:{}", path.display())).await
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn nobody_else_reads_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data/downbeat.db");
    let files = ["", "-wal", "-shm", ".lock"].map(|end| dir.path().join(format!("data/downbeat.db{end}")));
    let store = open(&path).await.unwrap();
    apply(&store, &[created(1)]).await;
    let modes = || (mode(path.parent().unwrap()), files.each_ref().map(|file| mode(file)));
    assert_eq!(modes(), (0o700, [0o600; 4]), "new");
    store.close().await;

    // The permissions of an earlier release.
    fs::set_permissions(path.parent().unwrap(), Permissions::from_mode(0o755)).unwrap();
    for file in files.iter().filter(|file| file.exists()) {
        fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    let store = open(&path).await.unwrap();
    apply(&store, &[created(2)]).await;
    assert_eq!(modes(), (0o700, [0o600; 4]), "of an earlier release");
}

#[tokio::test]
async fn the_file_shrinks_when_much_was_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    // Two connections that close at the same time leave the log, which the next one moves to the file.
    let size = || {
        let next = rusqlite::Connection::open(&path).unwrap();
        next.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        fs::metadata(&path).unwrap().len()
    };
    let store = open(&path).await.unwrap();
    let executions = (1..=16).map(|number| execution(number, 1, pending())).collect();
    apply(&store, &[created(1), added(1, executions)]).await;
    let text = "x".repeat(limits::OUTPUT_CHUNK_BYTES);
    for number in 1..=16 {
        let offsets = (0..limits::OUTPUT_BYTES as u64).step_by(limits::OUTPUT_CHUNK_BYTES);
        let chunks: Vec<_> = offsets.map(|offset| chunk(number, offset, &text)).collect();
        store.append_output(&chunks, u64::MAX).await.unwrap();
    }
    apply(&store, &[moved(1, &[RunState::Cancelled], 100)]).await;
    store.close().await;
    let before = size();
    assert!(before > 16 * limits::OUTPUT_BYTES as u64, "{before}");

    let store = open(&path).await.unwrap();
    assert_eq!(store.prune(at(1_000), 10).await.unwrap(), 1);
    store.close().await;
    let after = size();
    // Some free pages stay for what comes next.
    assert!(after < before / 3, "{before} bytes before, {after} after");
    let store = open(&path).await.unwrap();
    apply(&store, &[created(2)]).await;
    assert!(store.run(&run_id(2)).await.unwrap().is_some());
}

/// The clock stands still, except for pauses.
#[tokio::test(start_paused = true)]
async fn cleaning_leaves_most_of_the_time_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir.path().join("downbeat.db")).await.unwrap();
    let executions = |first| (first..first + 500).map(|number| execution(number, 1, pending())).collect();
    apply(&store, &[created(1), added(1, executions(1))]).await;
    for first in [501, 1_001, 1_501] {
        apply(&store, &[added(1, executions(first))]).await;
    }
    apply(&store, &[moved(1, &[RunState::Cancelled], 100)]).await;
    let begun = tokio::time::Instant::now();
    assert_eq!(store.prune(at(1_000), 10).await.unwrap(), 1);
    assert!(begun.elapsed() > std::time::Duration::ZERO, "there are pauses");
    store.close().await;
}

#[tokio::test]
async fn a_directory_that_others_use_as_well_keeps_its_mode() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    fs::write(dir.path().join("neighbour"), "").unwrap();
    let path = dir.path().join("downbeat.db");
    let _store = open(&path).await.unwrap();
    assert_eq!((mode(dir.path()), mode(&path)), (0o755, 0o600));
}

#[tokio::test]
async fn what_belongs_to_another_user_or_is_shared_with_a_group_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    open(&path).await.unwrap().close().await;
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o775)).unwrap();
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(dir.path(), Some(65_534), None).unwrap();
    } else {
        fs::write(dir.path().join("neighbour"), "").unwrap();
    }
    open(&path).await.unwrap().close().await;
    assert_eq!((mode(dir.path()), mode(&path)), (0o775, 0o640));
}

#[tokio::test]
async fn the_database_of_another_program_is_refused_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.db");
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("CREATE TABLE photos (name TEXT)").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
    let before = (fs::read(&path).unwrap(), mode(&path));
    let error = open(&path).await.unwrap_err();
    assert!(matches!(&error, Error::Misused(text) if text.contains("another program")), "{error}");
    assert_eq!((fs::read(&path).unwrap(), mode(&path)), before);
    // A program that sets SQLite's application id.
    other.execute_batch("DROP TABLE photos; PRAGMA application_id = 7").unwrap();
    let error = open(&path).await.unwrap_err();
    assert!(matches!(&error, Error::Misused(_)), "{error}");
}

#[tokio::test]
async fn a_database_of_an_earlier_release_gets_the_mark() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store = open(&path).await.unwrap();
    apply(&store, &[created(1)]).await;
    store.close().await;
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "application_id", 0).unwrap();
    let store = open(&path).await.unwrap();
    assert!(store.run(&run_id(1)).await.unwrap().is_some());
    store.close().await;
    let id: i64 = rusqlite::Connection::open(&path)
        .unwrap()
        .pragma_query_value(None, "application_id", |row| row.get(0))
        .unwrap();
    assert_eq!(id, 0x646f_776e);
}

#[tokio::test]
async fn a_file_that_is_gone_takes_no_commit_until_it_is_back() {
    for end in ["", "-wal"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("downbeat.db");
        let store = open(&path).await.unwrap();
        apply(&store, &[created(1)]).await;
        assert!(store.health().await.is_ok());

        let file = dir.path().join(format!("downbeat.db{end}"));
        let away = dir.path().join("away");
        fs::rename(&file, &away).unwrap();
        for error in
            [store.commit(SERVER, &[created(2)]).await.unwrap_err(), store.health().await.unwrap_err()]
        {
            assert!(
                matches!(&error, Error::Unavailable(text) if text.contains("removed or replaced")),
                "{end}: {error}"
            );
        }
        // Another file at the same path is not accepted.
        fs::copy(&away, &file).unwrap();
        assert!(store.commit(SERVER, &[created(2)]).await.is_err(), "{end}");
        fs::rename(&away, &file).unwrap();
        assert!(store.health().await.is_ok(), "{end}");
        apply(&store, &[created(2)]).await;
    }
}

#[tokio::test]
async fn a_damaged_database_is_said_to_be_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store = open(&path).await.unwrap();
    fill(&store).await;
    store.close().await;
    // The first page is intact, so that SQLite can open the file; all others are garbage.
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let length = file.metadata().unwrap().len();
    for page in 1..length / 4096 {
        file.write_all_at(&[0xab; 4096], page * 4096).unwrap();
    }
    let error = match open(&path).await {
        Err(error) => error,
        Ok(store) => {
            let error = store.events(&EventFilter::default(), ALL_EVENTS).await.unwrap_err();
            assert!(matches!(store.health().await, Err(Error::Damaged(_))), "it is remembered");
            error
        }
    };
    let text = error.to_string();
    assert!(matches!(error, Error::Damaged(_)) && text.contains("is damaged"), "{text}");
    assert!(text.contains("restore a backup"), "{text}");
}

#[tokio::test]
async fn versions_of_jobs_of_a_deleted_cluster_are_removed_few_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("downbeat.db");
    let store = open(&path).await.unwrap();
    let key = || JobKey::new(cluster_id(7), "job-1");
    apply(&store, &[cluster_created(7)]).await;
    for version in 1..=10 {
        apply(&store, &[Change::JobApplied { job: job_version(key(), version), triggers_seen: None }]).await;
    }
    apply(&store, &[cluster_deleted(7)]).await;
    let other = rusqlite::Connection::open(&path).unwrap();
    let mut left = Vec::new();
    // A version may have a mebibyte: no transaction removes many of them.
    while left.last() != Some(&0) {
        assert!(store.remove_cluster(cluster_id(7), 1_000).await.unwrap() > 0);
        left.push(other.query_row("SELECT count(*) FROM job_versions", [], |row| row.get(0)).unwrap());
    }
    assert_eq!(left, [6, 2, 0]);
}
