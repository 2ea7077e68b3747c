//! Owns the actions: everything that can happen next, in any order. An action that healthy components never cause is a
//! fault, and the number of faults is bounded.

use downbeat_core::Change;
use downbeat_core::execution::{Execution, Outcome, State, Status, Verdict};
use downbeat_core::ids::LeaseToken;
use downbeat_core::node::NodeStatus;
use downbeat_core::work::Parent;
use stateright::{Model, Property};

use super::owner::{Answer, Birth, lease};
use super::rules;
use super::setup::{Broken, Protocol, Sighting, registered, run_id, time};
use super::world::{Attempt, Memory, NODES, Phase, SERVERS, Server, World, node_id, node_index, session_id};

/// A lease as it is shown in a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    attempt: Attempt,
    node: usize,
    session: u8,
    token: Token,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token(LeaseToken);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}", self.0.0.as_u128() & 0xffff)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A server raises the epoch: because the run has no owner, or because it wrongly believes so (a fault).
    Take {
        server: usize,
        answer: Answer,
        fault: bool,
    },
    Load {
        server: usize,
        answer: Answer,
    },
    Observe {
        server: usize,
        answer: Answer,
        birth: Birth,
    },
    TryAgain {
        server: usize,
    },
    /// A server crashes and restarts with empty memory.
    Crash {
        server: usize,
    },
    /// A server claims for a node; if its board is outdated (a fault), the session is an old one.
    Lease {
        attempt: Attempt,
        node: usize,
        session: u8,
        fault: bool,
    },
    /// A sweep, a registration or a board ends a lease. It is a fault if the agent is alive: clocks drift.
    EndLease {
        held: Held,
        fault: bool,
    },
    Begin {
        held: Held,
    },
    Work {
        held: Held,
        verdict: Verdict,
    },
    /// A report arrives at a server, for the first time or again.
    ReportStart {
        held: Held,
    },
    Report {
        held: Held,
    },
    /// The response to a report arrives at the agent.
    Receipt {
        held: Held,
    },
    /// An agent crashes and restarts with the data on its disk.
    Restart {
        node: usize,
    },
    Register {
        node: usize,
    },
    /// A node was not seen for long. Its agent may be alive.
    Silence {
        node: usize,
    },
    /// The node is seen again.
    Heartbeat {
        node: usize,
    },
    Cancel,
    /// Only with a deliberate defect: an owner receives a result that is not committed.
    Rumour {
        held: Held,
    },
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![self.beginning()]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let state = world.run().state();
        let ended = state.is_terminal();
        let faults = world.faults > 0;
        (0..SERVERS).for_each(|server| self.server_actions(world, server, ended, actions));
        world.tables.executions.values().for_each(|execution| claims(world, execution, actions));
        self.agent_actions(world, actions);
        for node in 0..NODES {
            if faults && !ended {
                actions.push(Action::Restart { node });
            }
            if self.detail.silence && !ended {
                let offline = world.is_offline(node);
                actions.push(if offline { Action::Heartbeat { node } } else { Action::Silence { node } });
            }
            if self.may_register(world, node) {
                actions.push(Action::Register { node });
            }
        }
        if self.detail.cancel && faults && !ended {
            actions.push(Action::Cancel);
        }
    }

    fn next_state(&self, last: &World, action: Action) -> Option<World> {
        let mut world = last.clone();
        world.faults = world.faults.checked_sub(action.cost())?;
        self.perform(&mut world, action)?;
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        rules::properties(self)
    }
}

impl Action {
    fn cost(&self) -> u8 {
        let lost = |answer: &Answer| u8::from(*answer == Answer::Lost);
        match self {
            Action::Take { answer, fault, .. } => lost(answer) + u8::from(*fault),
            Action::Load { answer, .. } | Action::Observe { answer, .. } => lost(answer),
            Action::Crash { .. }
            | Action::Restart { .. }
            | Action::Silence { .. }
            | Action::Cancel
            | Action::Rumour { .. } => 1,
            Action::Lease { fault, .. } | Action::EndLease { fault, .. } => u8::from(*fault),
            Action::Work { verdict, .. } => u8::from(*verdict == Verdict::Failed),
            Action::TryAgain { .. }
            | Action::Begin { .. }
            | Action::ReportStart { .. }
            | Action::Report { .. }
            | Action::Receipt { .. }
            | Action::Register { .. }
            | Action::Heartbeat { .. } => 0,
        }
    }
}

/// Returns the nodes that an execution may be leased to, each with its current session and the one before.
fn claims(world: &World, execution: &Execution, actions: &mut Vec<Action>) {
    let grants = world.grants.iter().filter(|grant| grant.execution == execution.id).count();
    if !execution.state.status().is_open() || grants > 1 {
        return;
    }
    let attempt = Attempt::of(execution);
    for node in (0..NODES).filter(|node| execution.pinned.is_none_or(|id| node_index(id) == Some(*node))) {
        let session = world.registered(node);
        actions.push(Action::Lease { attempt, node, session, fault: world.is_offline(node) });
        if session > 1 && execution.state.status() == Status::Pending {
            actions.push(Action::Lease { attempt, node, session: session - 1, fault: true });
        }
    }
}

impl Protocol {
    fn server_actions(&self, world: &World, server: usize, ended: bool, actions: &mut Vec<Action>) {
        let answers = [Answer::Heard, Answer::Lost];
        match &world.servers[server] {
            Server::Idle => {}
            Server::Taken { .. } => {
                actions.extend(answers.map(|answer| Action::Load { server, answer }));
            }
            Server::Owner(owner) if !owner.retry.is_empty() => actions.push(Action::TryAgain { server }),
            Server::Owner(owner) if owner.mailbox.is_empty() => {}
            Server::Owner(_) => {
                let observe = |birth| answers.map(|answer| Action::Observe { server, answer, birth });
                actions.extend(observe(Birth::Pending));
                if self.detail.born_leased {
                    (0..NODES).for_each(|node| actions.extend(observe(Birth::Leased(node))));
                }
            }
        }
        if ended {
            return;
        }
        let epoch = world.run().epoch;
        let current = Some(epoch);
        if !matches!(world.servers[server], Server::Idle) {
            actions.push(Action::Crash { server });
        }
        if world.servers[server].epoch() != current && self.broken != Broken::NoTakeOver {
            let fault = world.servers.iter().any(|other| other.epoch() == current);
            actions.extend(answers.map(|answer| Action::Take { server, answer, fault }));
        }
    }

    fn agent_actions(&self, world: &World, actions: &mut Vec<Action>) {
        for grant in &world.grants {
            let execution = world.execution(grant.execution);
            let attempt = Attempt::of(execution);
            let held = Held { attempt, node: grant.node, session: grant.session, token: Token(grant.token) };
            let current = world.is_current(grant);
            if current {
                let alive = grant.session == world.registered(grant.node) && !world.is_offline(grant.node);
                actions.push(Action::EndLease { held, fault: alive });
            }
            let alive = grant.session == world.agents[grant.node];
            match grant.phase {
                Phase::Sent if alive && self.detail.starts => actions.push(Action::Begin { held }),
                Phase::Sent | Phase::Running if alive && (current || self.detail.late_work) => {
                    actions.push(Action::Work { held, verdict: Verdict::Succeeded });
                    actions.push(Action::Work { held, verdict: Verdict::Failed });
                    if current && has_stop_request(&execution.state) {
                        actions.push(Action::Work { held, verdict: Verdict::Cancelled });
                    }
                }
                Phase::Finished(_) if self.detail.receipts => actions.push(Action::Receipt { held }),
                Phase::Sent | Phase::Running | Phase::Finished(_) | Phase::Gone(..) => {}
            }
            if self.detail.starts && grant.phase != Phase::Sent {
                actions.push(Action::ReportStart { held });
            }
            if grant.verdict().is_some() {
                actions.push(Action::Report { held });
                if self.broken == Broken::ActsOnRumours && current {
                    actions.push(Action::Rumour { held });
                }
            }
        }
    }

    /// A new session registers after the results of the earlier one are delivered.
    fn may_register(&self, world: &World, node: usize) -> bool {
        let mut left = world.grants.iter().filter(|grant| grant.node == node);
        world.agents[node] != world.registered(node)
            && left.all(|grant| match grant.phase {
                Phase::Finished(_) => !self.detail.receipts && !world.is_current(grant),
                Phase::Sent | Phase::Running | Phase::Gone(..) => true,
            })
    }

    fn perform(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Take { server, answer, .. } => self.take(world, server, answer),
            Action::Load { server, answer } => self.load(world, server, answer)?,
            Action::Observe { server, answer, birth } => self.observe(world, server, answer, birth)?,
            Action::TryAgain { server } => self.try_again(world, server)?,
            Action::Crash { server } => world.servers[server] = Server::Idle,
            Action::Lease { attempt, node, session, .. } => {
                let lease = lease(attempt.id, node, session, &world.grants);
                let change =
                    Change::ExecutionLeased { of: Parent::Run(run_id()), execution: attempt.id, lease };
                self.one(world, change, Sighting::SecondClaimRefused)?;
            }
            Action::EndLease { held, .. } => {
                self.commit(world, vec![lost(&held)]);
            }
            Action::Begin { held } => world.grant_mut(held.token.0).phase = Phase::Running,
            Action::Work { held, verdict } => world.grant_mut(held.token.0).phase = Phase::Finished(verdict),
            Action::ReportStart { held } => {
                let Held { attempt, token, .. } = held;
                let change = Change::ExecutionStarted {
                    of: Parent::Run(run_id()),
                    execution: attempt.id,
                    token: token.0,
                    at: time(1),
                    received_at: None,
                };
                self.one(world, change, self.second_look(world, &held))?;
            }
            Action::Report { held } => {
                let sighting = self.second_look(world, &held);
                self.one(world, finished(world, &held), sighting)?;
            }
            Action::Receipt { held } => self.receipt(world, &held)?,
            Action::Restart { node } => self.restart(world, node),
            Action::Register { node } => {
                self.commit(world, vec![registered(node, world.agents[node])]);
            }
            Action::Silence { node } => self.move_node(world, node, NodeStatus::Offline),
            Action::Heartbeat { node } => self.move_node(world, node, NodeStatus::Online),
            Action::Cancel => {
                let change =
                    Change::RunCancelRequested { run: run_id(), by: "model".to_owned(), at: time(1) };
                self.commit(world, vec![change]).remove(0).ok()?;
            }
            Action::Rumour { held } => {
                let rumour = finished(world, &held);
                let World { servers, tables, .. } = world;
                servers.iter_mut().for_each(|server| server.receive(&rumour, tables));
            }
        }
        Some(())
    }

    fn move_node(&self, world: &mut World, node: usize, to: NodeStatus) {
        let (node, session) = (node_id(node), session_id(world.registered(node)));
        let from = world.tables.nodes[&node].status;
        self.commit(
            world,
            vec![Change::NodeMoved { node, session, from, to, silent_since: None, at: time(1) }],
        );
    }

    /// Commits one change. If it is refused nothing has happened, and the refusal is recorded.
    fn one(&self, world: &mut World, change: Change, refused: Sighting) -> Option<()> {
        if self.commit(world, vec![change])[0].is_err() {
            self.seen.note(refused);
            return None;
        }
        Some(())
    }

    /// Returns why a report has no effect: it was applied before, or its lease is outdated.
    fn second_look(&self, world: &World, held: &Held) -> Sighting {
        if is_recorded(world, held) { Sighting::RepeatedReportAbsorbed } else { Sighting::LateReportRefused }
    }

    fn receipt(&self, world: &mut World, held: &Held) -> Option<()> {
        let grant = world.grant(held.token.0);
        let early = self.broken == Broken::EarlyReceipt;
        if world.is_current(grant) && !early {
            return None;
        }
        let memory = if early || is_recorded(world, held) { Memory::Recorded } else { Memory::Refused };
        let verdict = grant.verdict();
        world.grant_mut(held.token.0).phase = Phase::Gone(verdict, memory);
        Some(())
    }

    fn restart(&self, world: &mut World, node: usize) {
        world.agents[node] += 1;
        for grant in world.grants.iter_mut().filter(|grant| grant.node == node) {
            grant.phase = match grant.phase {
                Phase::Running => Phase::Gone(None, Memory::Forgotten),
                Phase::Finished(verdict) if self.broken == Broken::NoOutbox => {
                    Phase::Gone(Some(verdict), Memory::Forgotten)
                }
                phase => phase,
            };
        }
    }
}

fn is_recorded(world: &World, held: &Held) -> bool {
    let state = &world.execution(held.attempt.id).state;
    let same = state.lease().is_some_and(|lease| lease.token == held.token.0);
    same && !matches!(state, State::Lost { .. } | State::Leased { .. })
}

fn has_stop_request(state: &State) -> bool {
    matches!(state, State::Leased { stop: true, .. } | State::Running { stop: true, .. })
}

fn lost(held: &Held) -> Change {
    Change::ExecutionLost {
        of: Parent::Run(run_id()),
        execution: held.attempt.id,
        token: held.token.0,
        silence: None,
        reason: String::new(),
        at: time(1),
    }
}

fn finished(world: &World, held: &Held) -> Change {
    let verdict = world.grant(held.token.0).verdict().expect("only ended work is reported");
    let outcome = Outcome {
        verdict,
        exit_code: None,
        error: None,
        started_at: time(1),
        finished_at: time(1),
        outputs: Default::default(),
        received_at: None,
    };
    Change::ExecutionFinished {
        of: Parent::Run(run_id()),
        execution: held.attempt.id,
        token: held.token.0,
        outcome,
    }
}
