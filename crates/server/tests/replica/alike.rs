//! A replica returns the same as its primary for every read.

use downbeat_testbed::Database;
use downbeat_testbed::in_process::{Setup, settings};

use crate::load::Load;
use crate::site::{alike, caught_up, replica, replica_settings, sqlite, url};

/// Half of the load runs before the replica exists, the rest while it copies and follows.
async fn under_load(primary: &Setup, copy: &str, seed: u64) {
    let mut load = Load::start(primary, seed).await;
    load.submit(primary, 8).await;
    let replica = replica(primary, copy).await;
    load.submit(primary, 12).await;
    load.end(primary).await;
    let compared = alike(primary, &replica).await;
    assert!(compared > 150, "{compared}");
    assert_eq!(caught_up(primary, &replica).await, 1, "one copy is enough");
    replica.server.stop().await;
}

#[tokio::test]
async fn every_read_answers_alike_from_memory() {
    let primary = Setup::new().await;
    under_load(&primary, "memory:", 1).await;
}

#[tokio::test]
async fn every_read_answers_alike_from_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let primary = Setup::on(&sqlite(&dir, "primary.db")).await;
    under_load(&primary, &sqlite(&dir, "copy.db"), 2).await;
}

#[tokio::test]
async fn every_read_answers_alike_from_postgres() {
    let (dir, database) = (tempfile::tempdir().unwrap(), Database::create().await);
    let primary = Setup::on(&database.url).await;
    under_load(&primary, &sqlite(&dir, "copy.db"), 3).await;
    primary.server.stop().await;
    database.drop().await;
}

/// The replica follows one server, agents and clients use the other; then the first one stops.
#[tokio::test]
async fn what_another_server_takes_reaches_the_replica_and_any_of_them_is_followed() {
    let (dir, database) = (tempfile::tempdir().unwrap(), Database::create().await);
    let followed = Setup::with(settings(&database.url, "one")).await;
    let other = Setup::with(settings(&database.url, "two")).await;
    let of = [url(&followed), url(&other)];
    let replica = Setup::with(replica_settings(&of, &sqlite(&dir, "copy.db"))).await;
    let mut load = Load::start(&other, 4).await;
    load.submit(&other, 10).await;
    caught_up(&other, &replica).await;
    followed.server.stop().await;
    load.submit(&other, 10).await;
    load.end(&other).await;
    alike(&other, &replica).await;
    assert_eq!(crate::site::standing(&replica).await["primary"], of[1]);
    assert_eq!(caught_up(&other, &replica).await, 1, "numbers are the same at every server");
    replica.server.stop().await;
    other.server.stop().await;
    database.drop().await;
}
