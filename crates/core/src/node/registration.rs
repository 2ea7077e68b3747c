//! Decides about a registration: the agent gets the node, has to wait, or has to exit.

use std::time::Duration;

use crate::Timestamp;
use crate::ids::SessionId;
use crate::node::{Former, Installation, NodeRecord, NodeStatus};

/// An agent that wants to register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Newcomer {
    pub session: SessionId,
    /// `None` for an agent of a release before installations.
    pub installation: Option<Installation>,
}

/// The rule for registrations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A node that is silent for this long no longer counts as alive.
    pub stale_after: Duration,
    /// Since when this server has been able to accept heartbeats. Earlier silence does not count.
    pub serving_since: Timestamp,
    pub now: Timestamp,
}

/// The decision about a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The registration is committed with this guard.
    Accept(Former),
    /// The node is alive as another installation. The agent retries; the text names the current owner.
    Occupied(String),
    /// A newer session of the same installation has the node. The agent exits.
    Superseded,
    /// This session was deleted with its node. The agent exits.
    NotFound,
}

impl Rule {
    /// Decides about a newcomer. `stored` is the current node; `is_deleted` is true if the node was deleted while it had the
    /// newcomer's session.
    pub fn decide(&self, stored: Option<&NodeRecord>, is_deleted: bool, newcomer: &Newcomer) -> Decision {
        if is_deleted {
            return Decision::NotFound;
        }
        let Some(stored) = stored else { return Decision::Accept(Former::Nobody) };
        let replace =
            |silent_since| Decision::Accept(Former::Session { session: stored.session, silent_since });
        match (&stored.installation, &newcomer.installation) {
            // The stored session has no installation id: the newest session wins, as in older releases. An upgraded agent
            // sends its id for the first time.
            (None, _) => replace(None),
            (Some(own), Some(other)) if own.digest == other.digest => {
                if other.life < own.life {
                    Decision::Superseded
                } else {
                    replace(None)
                }
            }
            (Some(own), _) if self.is_alive(stored) => Decision::Occupied(self.describe_owner(stored, own)),
            (Some(_), _) => replace(Some(stored.seen_at)),
        }
    }

    /// Returns whether the node may have leases that this store does not know. The store may be empty or older, and leases
    /// of another store are valid there until their term ends. Agents without an installation id treat every lease that is
    /// not refused as renewed, so this is false for them.
    pub fn may_hold_of_another_store(&self, stored: &NodeRecord, lease_ttl: Duration) -> bool {
        stored.installation.is_some() && self.passed_since(stored.registered_at) < lease_ttl
    }

    /// Returns how much time has passed since then in which this server could accept heartbeats.
    fn passed_since(&self, then: Timestamp) -> Duration {
        let since = then.max(self.serving_since);
        Duration::try_from(self.now.duration_since(since)).unwrap_or(Duration::ZERO)
    }

    /// Returns whether the stored session counts as alive. A session that signed off does not: it is stale at once.
    fn is_alive(&self, stored: &NodeRecord) -> bool {
        stored.status == NodeStatus::Online && self.passed_since(stored.seen_at) < self.stale_after
    }

    fn describe_owner(&self, stored: &NodeRecord, installation: &Installation) -> String {
        let (hostname, short) = (&stored.description.hostname, installation.short());
        let seconds = self.now.duration_since(stored.seen_at).as_secs().max(0);
        format!(
            "{hostname} is online as installation {short}, last heartbeat {seconds}s ago; stop that agent, or give this \
             one another hostname"
        )
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::ids::{ClusterId, NodeId};
    use crate::node::Description;

    const STALE_AFTER: Duration = Duration::from_secs(30);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn session(number: u128) -> SessionId {
        SessionId(Uuid::from_u128(number))
    }

    fn installation(name: &str, life: u64) -> Option<Installation> {
        (!name.is_empty()).then(|| Installation::new(name.as_bytes(), life))
    }

    /// Session 1, seen at second 100.
    fn stored(status: NodeStatus, name: &str, life: u64) -> NodeRecord {
        NodeRecord {
            id: NodeId(Uuid::from_u128(7)),
            cluster: ClusterId::DEFAULT,
            session: session(1),
            description: Description {
                hostname: "web-01".to_owned(),
                groups: Vec::new(),
                labels: Default::default(),
                capabilities: Default::default(),
                backends: Vec::new(),
                slots: 1,
                version: String::new(),
            },
            status,
            draining: false,
            registered_at: at(0),
            seen_at: at(100),
            installation: installation(name, life),
            undelivered: Vec::new(),
            kept_since: None,
            displaced: None,
            problems: Vec::new(),
        }
    }

    fn decide(stored: Option<&NodeRecord>, second: i64, number: u128, name: &str, life: u64) -> Decision {
        let rule = Rule { stale_after: STALE_AFTER, serving_since: at(0), now: at(second) };
        rule.decide(
            stored,
            false,
            &Newcomer { session: session(number), installation: installation(name, life) },
        )
    }

    #[derive(Debug, PartialEq)]
    enum Short {
        Accept,
        AcceptForSilence,
        Occupied,
        Superseded,
    }

    fn short(decision: &Decision) -> Short {
        match decision {
            Decision::Accept(Former::Session { session: former, silent_since }) => {
                assert_eq!(*former, session(1));
                match silent_since {
                    Some(since) => {
                        assert_eq!(*since, at(100));
                        Short::AcceptForSilence
                    }
                    None => Short::Accept,
                }
            }
            Decision::Occupied(_) => Short::Occupied,
            Decision::Superseded => Short::Superseded,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn who_gets_a_node() {
        use NodeStatus::{Offline, Online, Stale};
        use Short::{Accept, AcceptForSilence, Occupied, Superseded};
        // The stored session, the time, and the newcomer's session, installation and start counter.
        let cases = [
            // The same installation, restarted, or retrying after a lost response.
            (Online, "a", 5, 101, 2, "a", 6, Accept),
            (Online, "a", 5, 101, 1, "a", 5, Accept),
            (Stale, "a", 5, 101, 2, "a", 6, Accept),
            // A delayed call of an earlier start.
            (Online, "a", 5, 101, 2, "a", 4, Superseded),
            (Offline, "a", 5, 900, 2, "a", 4, Superseded),
            // Another installation: a clone, or two machines with one hostname.
            (Online, "a", 5, 101, 2, "b", 9, Occupied),
            (Online, "a", 5, 129, 2, "b", 1, Occupied),
            (Online, "a", 5, 130, 2, "b", 1, AcceptForSilence),
            (Stale, "a", 5, 101, 2, "b", 1, AcceptForSilence),
            (Offline, "a", 5, 101, 2, "b", 1, AcceptForSilence),
            // The session id of another installation proves nothing.
            (Online, "a", 5, 101, 1, "b", 5, Occupied),
            // Agents without an installation id: the newest wins, but not against an agent with an id.
            (Online, "", 0, 101, 2, "", 0, Accept),
            (Online, "a", 5, 101, 2, "", 0, Occupied),
            (Offline, "a", 5, 101, 2, "", 0, AcceptForSilence),
            // An upgrade.
            (Online, "", 0, 101, 2, "b", 1, Accept),
        ];
        for (status, name, life, second, number, newcomer, newcomer_life, expected) in cases {
            let stored = stored(status, name, life);
            let decision = decide(Some(&stored), second, number, newcomer, newcomer_life);
            let case = format!("{status:?} {name}/{life} at {second}: {number} {newcomer}/{newcomer_life}");
            assert_eq!(short(&decision), expected, "{case}");
        }
    }

    #[test]
    fn a_node_that_nobody_has_is_free() {
        assert_eq!(decide(None, 101, 1, "a", 1), Decision::Accept(Former::Nobody));
    }

    #[test]
    fn a_deleted_session_stays_deleted_when_another_has_the_node() {
        let rule = Rule { stale_after: STALE_AFTER, serving_since: at(0), now: at(101) };
        let newcomer = Newcomer { session: session(1), installation: installation("a", 1) };
        assert_eq!(rule.decide(None, true, &newcomer), Decision::NotFound);
        let stored = stored(NodeStatus::Online, "a", 2);
        assert_eq!(rule.decide(Some(&stored), true, &newcomer), Decision::NotFound);
    }

    #[test]
    fn silence_in_which_nobody_could_be_heard_does_not_count() {
        let rule = Rule { stale_after: STALE_AFTER, serving_since: at(900), now: at(910) };
        let newcomer = Newcomer { session: session(2), installation: installation("b", 1) };
        let stored = stored(NodeStatus::Online, "a", 1);
        assert!(matches!(rule.decide(Some(&stored), false, &newcomer), Decision::Occupied(_)));
    }

    #[test]
    fn an_agent_that_has_to_wait_learns_which_installation_has_the_node() {
        let Decision::Occupied(text) = decide(Some(&stored(NodeStatus::Online, "a", 1)), 103, 2, "b", 1)
        else {
            panic!("the node is alive")
        };
        let digest = installation("a", 1).unwrap().digest;
        let expected = format!("web-01 is online as installation {}, last heartbeat 3s ago", &digest[..8]);
        assert!(text.starts_with(&expected), "{text}");
    }
}
