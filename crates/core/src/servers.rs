//! Decides from the servers' heartbeats which servers are alive and which runs have lost their owner.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use crate::ids::{RunId, ServerId};
use crate::{Timestamp, level};

/// How long a server that is gone stays listed.
const FORGET_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// A server's last heartbeat.
#[derive(Clone, Copy, Debug)]
pub struct Sign<'s> {
    pub id: ServerId,
    pub name: &'s str,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
    pub level: u32,
}

/// When a server counts as gone.
#[derive(Clone, Copy, Debug)]
pub struct SilenceRule {
    /// Silence before this does not count: it may have been the store's.
    pub since: Timestamp,
    pub gone_after: SignedDuration,
}

/// The conclusions of one server from the heartbeats of all servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Look {
    /// The servers that are alive. Work is divided among them in this order.
    pub alive: BTreeSet<ServerId>,
    /// The level that all live servers have in common.
    pub level: u32,
    /// A server that was started later with this server's name. The earlier one sends no more heartbeats: otherwise the two
    /// would replace each other forever.
    pub replaced_by: Option<ServerId>,
    /// Servers that have been silent for so long that they do not return under their ids: their records are removed.
    pub forgotten: Vec<ServerId>,
    /// Open runs whose owner is gone, and runs of this server without an actor: this server did not learn that the commit
    /// which made it the owner took effect, or a later action failed.
    pub ownerless: Vec<RunId>,
}

/// Evaluates the heartbeats of all servers. `open` are the open runs with their owners; `has_actor` is called for
/// runs of this server.
pub fn look(
    own: &Sign<'_>,
    servers: &[Sign<'_>],
    open: Vec<(RunId, ServerId)>,
    has_actor: impl Fn(&RunId) -> bool,
    silence: SilenceRule,
    now: Timestamp,
) -> Look {
    let lives = |sign: &&Sign<'_>| now.duration_since(sign.seen_at.max(silence.since)) < silence.gone_after;
    let alive: BTreeSet<ServerId> = servers.iter().filter(lives).map(|sign| sign.id).collect();
    let is_later =
        |sign: &&Sign<'_>| sign.id != own.id && sign.name == own.name && sign.started_at > own.started_at;
    let is_forgotten = |sign: &&Sign<'_>| now.duration_since(sign.seen_at) > FORGET_AFTER;
    let is_ownerless = |(run, owner): &(RunId, ServerId)| {
        if *owner == own.id { !has_actor(run) } else { !alive.contains(owner) }
    };
    Look {
        level: level::common(servers.iter().filter(lives).map(|sign| sign.level)),
        replaced_by: servers.iter().find(is_later).map(|sign| sign.id),
        forgotten: servers.iter().filter(is_forgotten).map(|sign| sign.id).collect(),
        ownerless: open.into_iter().filter(is_ownerless).map(|(run, _)| run).collect(),
        alive,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const NOW: i64 = 1_000_000;
    const SILENCE: SilenceRule =
        SilenceRule { since: Timestamp::UNIX_EPOCH, gone_after: SignedDuration::from_secs(8) };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn server(id: u128, name: &str, silent_s: i64) -> Sign<'_> {
        let id = ServerId(Uuid::from_u128(id));
        Sign { id, name, started_at: at(1), seen_at: at(NOW - silent_s), level: level::LEVEL }
    }

    fn looked(own: &Sign<'_>, others: &[Sign<'_>], open: &[(&str, u128)], silence: SilenceRule) -> Look {
        let servers = [&[*own], others].concat();
        let owner = |owner: u128| ServerId(Uuid::from_u128(owner));
        let open = open.iter().map(|(run, of)| (RunId::from(*run), owner(*of))).collect();
        look(own, &servers, open, |run| run.as_str() == "acted", silence, at(NOW))
    }

    #[test]
    fn runs_of_silent_servers_and_own_runs_without_an_actor_are_ownerless() {
        let own = server(1, "one", 0);
        let open = [("acted", 1), ("idle", 1), ("alive", 2), ("silent", 3), ("unknown", 4)];
        for (silent_s, ownerless) in
            [(7, ["idle", "unknown"].as_slice()), (8, ["idle", "silent", "unknown"].as_slice())]
        {
            let look = looked(&own, &[server(2, "two", 0), server(3, "three", silent_s)], &open, SILENCE);
            let runs: Vec<&str> = look.ownerless.iter().map(RunId::as_str).collect();
            assert_eq!(runs, ownerless, "silent for {silent_s} s");
            assert_eq!(look.alive.len(), if silent_s < 8 { 3 } else { 2 });
        }
    }

    #[test]
    fn silence_before_this_servers_own_rhythm_does_not_count() {
        let silence = SilenceRule { since: at(NOW - 5), ..SILENCE };
        let look = looked(&server(1, "one", 0), &[server(2, "two", 60)], &[("run", 2)], silence);
        assert_eq!((look.alive.len(), look.ownerless.len()), (2, 0));
    }

    #[test]
    fn only_live_servers_lower_the_common_level() {
        for (silent_s, level) in [(0, level::FIRST), (60, level::LEVEL)] {
            let older = Sign { level: level::FIRST, ..server(2, "two", silent_s) };
            assert_eq!(looked(&server(1, "one", 0), &[older], &[], SILENCE).level, level);
        }
    }

    #[test]
    fn a_server_that_was_started_later_replaces_one_of_the_same_name() {
        let own = Sign { started_at: at(10), ..server(1, "one", 0) };
        for (name, started_at, replaces) in
            [("one", 11, true), ("one", 10, false), ("one", 9, false), ("two", 11, false)]
        {
            let other = Sign { started_at: at(started_at), ..server(2, name, 0) };
            assert_eq!(looked(&own, &[other], &[], SILENCE).replaced_by, replaces.then_some(other.id));
        }
    }

    #[test]
    fn a_server_is_forgotten_after_a_day_of_silence() {
        const DAY_S: i64 = 24 * 3600;
        for (silent_s, forgotten) in [(DAY_S, 0), (DAY_S + 1, 1)] {
            let look = looked(&server(1, "one", 0), &[server(2, "two", silent_s)], &[], SILENCE);
            assert_eq!(look.forgotten.len(), forgotten, "{silent_s} s");
        }
    }
}
