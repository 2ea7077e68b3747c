//! Tests how nodes carry out standing tasks: a table for each rule, and random histories against a slow interpreter of
//! `docs/clusters.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use downbeat_core::backend::Catalogue;
use downbeat_core::change::EndOf;
use downbeat_core::cluster::ClusterRecord;
use downbeat_core::execution::{Execution, Lease, Outcome, State, Status, Verdict};
use downbeat_core::ids::{ClusterId, ExecutionId, LeaseToken, NodeId, RunId, ServerId, SessionId, TaskId};
use downbeat_core::node::{Description, NodeRecord, NodeStatus};
use downbeat_core::select::Selector;
use downbeat_core::standing::{
    Cell, LastAttempt, Next, Rerun, RerunScope, StandingList, StandingTask, Step, Walked, Walks, edit,
};
use downbeat_core::work::{Origin, Parent};
use downbeat_core::{Change, Dice, Span, Timestamp};
use uuid::Uuid;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

fn task(number: u32, blocking: bool) -> StandingTask {
    StandingTask {
        id: TaskId(Uuid::from_u128(u128::from(number) + 1)),
        number,
        name: format!("task-{number}"),
        blocking,
        backend: "test".to_owned(),
        action: "noop".to_owned(),
        params: Arc::default(),
        timeout: Span::from_secs(1_800),
        selector: None,
        created_at: at(0),
        updated_at: at(0),
        deleted_at: None,
        reruns: Vec::new(),
    }
}

/// A list of tasks; `!` marks a blocking one.
fn list(tasks: &str) -> StandingList {
    let tasks: Vec<StandingTask> =
        tasks.split_whitespace().zip(0..).map(|(sign, number)| task(number, sign == "!")).collect();
    StandingList { next_number: tasks.len() as u32, tasks, ..StandingList::default() }
}

/// A node that registered at second 100.
fn node(number: u32) -> NodeRecord {
    let hostname = format!("n{number}");
    let backends = Catalogue::builtin().backends().to_vec();
    NodeRecord {
        id: NodeId::derive(ClusterId::DEFAULT, &hostname),
        cluster: ClusterId::DEFAULT,
        session: SessionId(Uuid::from_u128(1)),
        description: Description {
            hostname,
            groups: vec!["web".to_owned()],
            labels: BTreeMap::new(),
            capabilities: BTreeMap::new(),
            backends,
            slots: 1,
            version: String::new(),
        },
        status: NodeStatus::Online,
        draining: false,
        registered_at: at(100),
        seen_at: at(100),
        installation: None,
        undelivered: Vec::new(),
        kept_since: None,
        displaced: None,
        problems: Vec::new(),
    }
}

fn attempt(number: u32, status: Status, second: i64) -> LastAttempt {
    let execution = ExecutionId(Uuid::from_u128(u128::from(number) + 1));
    LastAttempt { execution, attempt: 1, status, created_at: at(second), lost_before: 0 }
}

fn walked(list: &StandingList, node: &NodeRecord, attempts: &BTreeMap<u32, LastAttempt>) -> Walked {
    let open: Vec<(u32, LastAttempt)> =
        attempts.iter().filter(|(_, last)| last.status.is_open()).map(|(of, last)| (*of, *last)).collect();
    Walked::new(list, node, |number| attempts.get(&number), &open)
}

/// Attempts that were created at second 101; `.` stands for none.
fn attempts(signs: &str) -> BTreeMap<u32, LastAttempt> {
    let status = |sign| match sign {
        "s" => Status::Succeeded,
        "f" => Status::Failed,
        "l" => Status::Lost,
        "c" => Status::Cancelled,
        "p" => Status::Pending,
        "r" => Status::Running,
        "g" => Status::Leased,
        "w" => Status::Skipped,
        other => panic!("{other}"),
    };
    let known = signs.split_whitespace().zip(0..).filter(|(sign, _)| *sign != ".");
    known.map(|(sign, number)| (number, attempt(number, status(sign), 101))).collect()
}

fn shown(walked: &Walked) -> String {
    let sign = |cell: &Cell| match cell {
        Cell::Pending => "p",
        Cell::Running => "r",
        Cell::Succeeded => "s",
        Cell::Failed => "f",
        Cell::Lost => "l",
        Cell::Skipped => "k",
        Cell::NotSelected => "-",
    };
    let cells: Vec<&str> = walked.cells.iter().map(sign).collect();
    let next = match walked.next {
        Next::Nothing => "nothing".to_owned(),
        Next::Wait => "wait".to_owned(),
        Next::Start { position } => format!("start {position}"),
    };
    format!("{} | {next} | {}", cells.join(" "), walked.withdrawals.len())
}

#[test]
fn a_node_walks_the_list_in_order_and_stops_at_a_blocking_failure() {
    let mut lossy = list("! -");
    for task in &mut lossy.tasks {
        // Not idempotent: its loss counts as a failure.
        (task.backend, task.action) = ("exec".to_owned(), "shell".to_owned());
    }
    let cases = [
        // An empty list.
        (list(""), "", " | nothing | 0"),
        // Nothing is done: the first task starts.
        (list("- -"), ". .", "p p | start 0 | 0"),
        // What succeeded is skipped.
        (list("- -"), "s .", "s p | start 1 | 0"),
        (list("- -"), "s s", "s s | nothing | 0"),
        // One at a time: what is pending, leased or running is waited for.
        (list("- -"), "p .", "p p | wait | 0"),
        (list("- -"), "g .", "r p | wait | 0"),
        (list("- -"), "r .", "r p | wait | 0"),
        // A failed task that does not block is passed over.
        (list("- -"), "f .", "f p | start 1 | 0"),
        (list("- -"), "c .", "f p | start 1 | 0"),
        // A failed blocking task stops the rest.
        (list("! - -"), "f . .", "f k k | nothing | 0"),
        (list("- ! -"), "f f .", "f f k | nothing | 0"),
        // What succeeded after it stays: the list was reordered.
        (list("! - -"), "f s .", "f s k | nothing | 0"),
        // A withdrawn execution is not a result.
        (list("- -"), "w .", "p p | start 0 | 0"),
        // The loss of an action that is not idempotent is a failure, and that of an idempotent one is repeated.
        (lossy, "l .", "l k | nothing | 0"),
        (list("! -"), "l .", "p p | start 0 | 0"),
        // A pending execution of a task that is not the next one is withdrawn.
        (list("- -"), ". p", "p p | start 0 | 1"),
        (list("! -"), "f p", "f k | nothing | 1"),
    ];
    for (list, given, expected) in cases {
        assert_eq!(shown(&walked(&list, &node(1), &attempts(given))), expected, "{given}");
    }
}

#[test]
fn an_idempotent_task_is_sent_three_times_at_most() {
    let (list, node) = (list("!"), node(1));
    for (lost_before, expected) in [(0, "p | start 0 | 0"), (1, "p | start 0 | 0"), (2, "l | nothing | 0")] {
        let last = LastAttempt { lost_before, ..attempt(0, Status::Lost, 101) };
        assert_eq!(shown(&walked(&list, &node, &BTreeMap::from([(0, last)]))), expected, "{lost_before}");
    }
}

#[test]
fn only_results_of_the_session_count_unless_the_node_resumes() {
    let list = list("- -");
    let (reset, resume) = (node(1), NodeRecord { kept_since: Some(at(50)), ..node(1) });
    // Status, the second of its creation, and the cell with reset and with resume.
    let cases = [
        (Status::Succeeded, 101, "s", "s"),
        (Status::Succeeded, 100, "s", "s"),
        (Status::Succeeded, 99, "p", "s"),
        (Status::Succeeded, 49, "p", "p"),
        (Status::Failed, 101, "f", "f"),
        (Status::Failed, 99, "p", "p"),
        (Status::Lost, 99, "p", "p"),
        // Its result may still be delivered: the node waits for it before it starts over.
        (Status::Running, 99, "r", "r"),
    ];
    for (status, second, with_reset, with_resume) in cases {
        let attempts = BTreeMap::from([(0, attempt(0, status, second))]);
        let cell = |node| shown(&walked(&list, node, &attempts))[..1].to_owned();
        assert_eq!(cell(&reset), with_reset, "{status} at {second}");
        assert_eq!(cell(&resume), with_resume, "{status} at {second}");
    }
    // A pending execution from before is withdrawn.
    let old = BTreeMap::from([(0, attempt(0, Status::Pending, 99))]);
    assert_eq!(shown(&walked(&list, &reset, &old)), "p p | start 0 | 1");
}

#[test]
fn a_rerun_voids_the_results_before_it() {
    let node = node(1);
    let other = NodeId::derive(ClusterId::DEFAULT, "other");
    let cases = [
        (RerunScope::All, Status::Succeeded, "p p | start 0 | 0"),
        (RerunScope::All, Status::Failed, "p p | start 0 | 0"),
        (RerunScope::Failed, Status::Succeeded, "s p | start 1 | 0"),
        (RerunScope::Failed, Status::Failed, "p p | start 0 | 0"),
        (RerunScope::Node { node: node.id }, Status::Succeeded, "p p | start 0 | 0"),
        (RerunScope::Node { node: other }, Status::Failed, "f k | nothing | 0"),
    ];
    for (scope, status, expected) in cases {
        let mut list = list("! -");
        list.tasks[0].reruns = vec![Rerun { at: at(110), scope }];
        let result = |second| walked(&list, &node, &BTreeMap::from([(0, attempt(0, status, second))]));
        assert_eq!(shown(&result(101)), expected, "{scope:?} {status}");
        // A result from after the request counts.
        let after = if status == Status::Succeeded { "s p | start 1 | 0" } else { "f k | nothing | 0" };
        assert_eq!(shown(&result(110)), after, "{scope:?} {status}");
    }
}

#[test]
fn a_reset_node_does_everything_again() {
    let node = node(1);
    let mut list = list("- -");
    list.resets.insert(node.id, at(110));
    assert_eq!(shown(&walked(&list, &node, &attempts("s f"))), "p p | start 0 | 0");
}

#[test]
fn a_task_applies_to_the_nodes_that_its_selector_matches() {
    let mut list = list("! - -");
    list.tasks[0].selector = Some(Selector::parse("group:db").unwrap());
    list.tasks[1].selector = Some(Selector::parse("group:web").unwrap());
    assert_eq!(shown(&walked(&list, &node(1), &BTreeMap::new())), "- p p | start 1 | 0");
    // A failure from before the selector was changed does not block.
    assert_eq!(shown(&walked(&list, &node(1), &attempts("f . ."))), "- p p | start 1 | 0");
}

/// One node of a random history, as the slow interpreter knows it: everything that ever happened.
#[derive(Default)]
struct History {
    /// All attempts of each task, in order.
    attempts: BTreeMap<u32, Vec<(ExecutionId, Status, Timestamp)>>,
}

/// What the docs say of a task on a node, word for word and slowly.
fn naive(list: &StandingList, node: &NodeRecord, history: &History) -> (Vec<Cell>, Option<u32>) {
    let is_open = |status: Status| matches!(status, Status::Pending | Status::Leased | Status::Running);
    let busy = history.attempts.values().flatten().any(|(_, status, _)| is_open(*status));
    let (mut cells, mut start, mut stopped) = (Vec::new(), None, false);
    for task in &list.tasks {
        if task.selector.as_ref().is_some_and(|selector| !selector.matches(node)) {
            cells.push(Cell::NotSelected);
            continue;
        }
        let all = history.attempts.get(&task.number).map_or(&[][..], Vec::as_slice);
        let last = all.last();
        let cell = match last {
            Some((_, Status::Leased | Status::Running, _)) => Some(Cell::Running),
            Some((_, status, created)) if !is_open(*status) && *status != Status::Skipped => {
                let mut valid = *created >= node.registered_at;
                if *status == Status::Succeeded
                    && let Some(kept) = node.kept_since
                {
                    valid = *created >= kept;
                }
                for rerun in &task.reruns {
                    let mine = match rerun.scope {
                        RerunScope::All => true,
                        RerunScope::Failed => *status != Status::Succeeded,
                        RerunScope::Node { node: of } => of == node.id,
                    };
                    if mine && *created < rerun.at {
                        valid = false;
                    }
                }
                if list.resets.get(&node.id).is_some_and(|reset| created < reset) {
                    valid = false;
                }
                let lost = all.iter().rev().take_while(|(_, status, _)| *status == Status::Lost).count();
                match status {
                    _ if !valid => None,
                    Status::Succeeded => Some(Cell::Succeeded),
                    // `test noop` is idempotent.
                    Status::Lost if lost < 3 => None,
                    Status::Lost => Some(Cell::Lost),
                    _ => Some(Cell::Failed),
                }
            }
            _ => None,
        };
        let cell = cell.unwrap_or(if stopped { Cell::Skipped } else { Cell::Pending });
        if cell == Cell::Pending && start.is_none() {
            start = Some(task.number);
        }
        stopped |= task.blocking && matches!(cell, Cell::Failed | Cell::Lost);
        cells.push(cell);
    }
    let works = node.status == NodeStatus::Online && !node.draining;
    (cells, start.filter(|_| works && !busy))
}

struct World {
    dice: Dice,
    walks: Walks,
    nodes: Vec<NodeRecord>,
    histories: Vec<History>,
    second: i64,
    executions: u128,
    /// Starts that were decided before the end that they follow was committed.
    early: u32,
}

impl World {
    fn pick(&mut self, below: u64) -> usize {
        (self.dice.next_u64() % below) as usize
    }

    fn edit(&mut self, edit: impl FnOnce(&mut StandingList)) {
        let mut cluster = ClusterRecord::clone(self.walks.cluster());
        let mut list = StandingList::clone(&cluster.list);
        edit(&mut list);
        cluster.list = Arc::new(list);
        cluster.version += 1;
        self.walks.set_cluster(Arc::new(cluster));
    }

    fn observe(&mut self, of: usize, number: u32, change: &Change, status: Status) {
        self.walks.observe(change);
        let attempts = self.histories[of].attempts.get_mut(&number).unwrap();
        attempts.last_mut().unwrap().1 = status;
    }

    /// Starts what is decided for a node, and withdraws what is not needed.
    fn decide(&mut self, of: usize) {
        let id = self.nodes[of].id;
        let expected = naive(&self.walks.cluster().list, &self.nodes[of], &self.histories[of]).1;
        let Some(step) = self.walks.step(id, at(self.second)) else {
            assert_eq!(expected, None, "second {}", self.second);
            return;
        };
        for withdrawal in &step.withdrawals {
            let open = self.histories[of].attempts.iter();
            let number = open
                .filter(|(_, all)| all.last().is_some_and(|last| last.0 == withdrawal.execution))
                .map(|(number, _)| *number)
                .next()
                .unwrap();
            let change = Change::ExecutionSkipped {
                run: RunId::standing(ClusterId::DEFAULT),
                execution: withdrawal.execution,
                epoch: 1,
                reason: withdrawal.reason.to_owned(),
                at: at(self.second),
            };
            self.observe(of, number, &change, Status::Skipped);
        }
        let Some(start) = step.start else { return };
        assert_eq!(Some(start.number), expected, "second {}", self.second);
        self.executions += 1;
        let execution = Execution {
            id: ExecutionId(Uuid::from_u128(self.executions)),
            of: Origin::Step { run: RunId::standing(ClusterId::DEFAULT), step: start.number, item: None },
            pinned: Some(id),
            attempt: start.attempt,
            former: start.former,
            params: None,
            reused: None,
            limits: None,
            cache_key: None,
            failed_for_good: None,
            round: 1,
            created_at: start.created_at,
            state: State::Pending { not_before: None },
        };
        let all = self.histories[of].attempts.entry(start.number).or_default();
        assert_eq!(start.attempt as usize, all.len() + 1);
        all.push((execution.id, Status::Pending, start.created_at));
        let run = RunId::standing(ClusterId::DEFAULT);
        let executions = vec![execution];
        let (rollout, version) = (None, Some(self.walks.cluster().version));
        self.walks.observe(&Change::ExecutionsAdded {
            run,
            epoch: 1,
            executions,
            rollout,
            version,
            after: None,
            sessions: vec![start.session],
            at: at(self.second),
        });
    }

    /// Moves an open execution of a node on.
    fn advance(&mut self, of: usize) {
        let open = self.histories[of].attempts.iter().find_map(|(number, all)| {
            let (id, status, _) = all.last()?;
            status.is_open().then_some((*number, *id, *status))
        });
        let Some((number, execution, status)) = open else { return };
        let of_run = Parent::Run(RunId::standing(ClusterId::DEFAULT));
        let token = LeaseToken(Uuid::nil());
        let (node, session) = (self.nodes[of].id, self.nodes[of].session);
        let now = at(self.second);
        let (change, next) = match (status, self.pick(6)) {
            (Status::Pending, _) => {
                let lease = Lease { token, node, session, granted_at: now };
                (Change::ExecutionLeased { of: of_run, execution, lease }, Status::Leased)
            }
            (Status::Leased, 0) => (
                Change::ExecutionStarted { of: of_run, execution, token, at: now, received_at: None },
                Status::Running,
            ),
            (_, 1 | 2) => {
                let reason = "lost".to_owned();
                (
                    Change::ExecutionLost { of: of_run, execution, token, silence: None, reason, at: now },
                    Status::Lost,
                )
            }
            (_, draw) => {
                let (verdict, status) = match draw {
                    3 => (Verdict::Failed, Status::Failed),
                    4 if self.second % 7 == 0 => (Verdict::Cancelled, Status::Cancelled),
                    _ => (Verdict::Succeeded, Status::Succeeded),
                };
                let outcome = Outcome {
                    verdict,
                    exit_code: None,
                    error: None,
                    outputs: BTreeMap::new(),
                    started_at: now,
                    finished_at: now,
                    received_at: Some(now),
                };
                (Change::ExecutionFinished { of: of_run, execution, token, outcome }, status)
            }
        };
        let early = self.walks.start_after(node, EndOf { execution, status: next }, now);
        self.observe(of, number, &change, next);
        if next.is_open() {
            return;
        }
        // A start that is decided before the end is committed is the one that is decided afterwards.
        let late = self.walks.step(node, now);
        match early {
            Some(start) => {
                self.early += 1;
                assert_eq!(late, Some(Step { node, withdrawals: Vec::new(), start: Some(start) }));
            }
            None => assert!(late.is_none_or(|step| {
                !step.withdrawals.is_empty() || step.start.is_none_or(|start| start.number == number)
            })),
        }
    }

    fn alter_node(&mut self, of: usize) {
        let draw = self.pick(5);
        let node = &mut self.nodes[of];
        match draw {
            0 => node.draining = !node.draining,
            1 => node.status = NodeStatus::Stale,
            2 => {
                node.status = NodeStatus::Online;
                node.registered_at = at(self.second);
                node.kept_since = None;
            }
            3 => {
                node.status = NodeStatus::Online;
                node.kept_since = Some(node.kept_since.unwrap_or(node.registered_at));
                node.registered_at = at(self.second);
            }
            _ => (node.status, node.draining) = (NodeStatus::Online, false),
        }
        self.walks.set_node(Arc::new(self.nodes[of].clone()));
    }

    fn alter_list(&mut self) {
        let (draw, first, second, blocking) = (self.pick(7), self.pick(8), self.pick(8), self.pick(2) == 0);
        let now = at(self.second);
        let node = self.nodes[first % self.nodes.len()].id;
        self.edit(|list| {
            let length = list.tasks.len();
            match draw {
                0 | 1 if length < 6 => {
                    let mut new = task(list.next_number, blocking);
                    if second == 0 {
                        new.selector = Some(Selector::parse("group:db").unwrap());
                    }
                    list.tasks.insert(first.min(length), new);
                    list.next_number += 1;
                }
                2 if length > 1 => {
                    let gone = list.tasks.remove(first % length);
                    list.deleted.insert(0, gone);
                }
                3 if length > 1 => list.tasks.swap(first % length, second % length),
                4 if length > 0 => {
                    let scope = match second % 3 {
                        0 => RerunScope::All,
                        1 => RerunScope::Failed,
                        _ => RerunScope::Node { node },
                    };
                    list.tasks[first % length].reruns.push(Rerun { at: now, scope });
                }
                5 => _ = list.resets.insert(node, now),
                _ if length > 0 => list.tasks[first % length].blocking = blocking,
                _ => {}
            }
        });
    }

    fn check(&self) {
        let list = &self.walks.cluster().list;
        let mut totals: Vec<BTreeMap<Cell, u64>> = vec![BTreeMap::new(); list.tasks.len()];
        let (mut complete, mut active) = (0, 0);
        let is_met = |node, task, since| self.walks.was_tried_since(node, task, since);
        let shorter = edit::without_met(self.walks.cluster(), is_met);
        let shorter =
            edit::without_met_resets(&shorter, |node, since| self.walks.tried_all_since(node, since));
        for (node, history) in self.nodes.iter().zip(&self.histories) {
            let (cells, start) = naive(list, node, history);
            assert_eq!(naive(&shorter.list, node, history), (cells.clone(), start), "met requests");
            let view = self.walks.walk(node.id).unwrap();
            assert_eq!(view.cells, cells, "{} at second {}", node.description.hostname, self.second);
            for (cell, totals) in cells.iter().zip(&mut totals) {
                *totals.entry(*cell).or_default() += 1;
            }
            complete +=
                u64::from(cells.iter().all(|cell| matches!(cell, Cell::Succeeded | Cell::NotSelected)));
            active += u64::from(node.status == NodeStatus::Online);
            let open = history.attempts.values().flatten().filter(|(_, status, _)| status.is_open()).count();
            assert!(open <= 1, "{open} executions are open at once");
        }
        let status = self.walks.status();
        let counted = status.cells.iter().map(|cells| {
            cells.iter().filter(|(_, total)| **total > 0).map(|(cell, total)| (*cell, *total)).collect()
        });
        assert_eq!(counted.collect::<Vec<BTreeMap<Cell, u64>>>(), totals);
        assert_eq!(
            (status.nodes, status.active, status.complete),
            (self.nodes.len() as u64, active, complete)
        );
    }
}

#[test]
fn only_open_attempts_are_kept_of_a_node_that_does_not_exist() {
    let cluster = ClusterRecord { list: Arc::new(list("- -")), ..ClusterRecord::default_cluster() };
    let mut walks = Walks::new(Arc::new(cluster));
    let node = node(1);
    walks.set_node(Arc::new(node.clone()));
    let open = LastAttempt { attempt: 2, ..attempt(1, Status::Running, 102) };
    walks.load(node.id, 0, LastAttempt { attempt: 3, ..attempt(0, Status::Succeeded, 101) });
    walks.load(node.id, 1, open);
    let known = |walks: &mut Walks| {
        walks.forget_strangers();
        [0, 1].map(|number| walks.last_attempt(node.id, number).map(|last| last.status))
    };
    assert_eq!(known(&mut walks), [Some(Status::Succeeded), Some(Status::Running)]);
    walks.remove_node(node.id);
    assert_eq!(known(&mut walks), [None, Some(Status::Running)]);
    walks.observe(&Change::ExecutionLost {
        of: Parent::Run(RunId::standing(ClusterId::DEFAULT)),
        execution: open.execution,
        token: LeaseToken(Uuid::nil()),
        silence: None,
        reason: "the node was deleted".to_owned(),
        at: at(103),
    });
    assert_eq!(known(&mut walks), [None, None]);
    // The numbers go on when the node returns.
    walks.returned(node.id, &[(0, 3), (1, 2)]);
    walks.set_node(Arc::new(NodeRecord { registered_at: at(200), ..node.clone() }));
    let start = walks.step(node.id, at(201)).unwrap().start.unwrap();
    assert_eq!((start.number, start.attempt), (0, 4));
}

#[test]
fn what_a_deleted_node_left_is_forgotten_when_another_server_has_withdrawn_it() {
    let cluster = ClusterRecord { list: Arc::new(list("- -")), ..ClusterRecord::default_cluster() };
    let mut walks = Walks::new(Arc::new(cluster));
    let left = attempt(0, Status::Pending, 101);
    for number in [1, 2] {
        let node = node(number);
        walks.set_node(Arc::new(node.clone()));
        let execution = ExecutionId(Uuid::from_u128(u128::from(number)));
        walks.load(node.id, 0, LastAttempt { execution, ..left });
        walks.remove_node(node.id);
    }
    walks.observe(&Change::ExecutionSkipped {
        run: RunId::standing(ClusterId::DEFAULT),
        execution: ExecutionId(Uuid::from_u128(1)),
        epoch: 1,
        reason: "the node was deleted".to_owned(),
        at: at(103),
    });
    assert!(walks.take_left().into_iter().eq([ExecutionId(Uuid::from_u128(2))]));
}

#[test]
fn a_rerun_concerns_the_nodes_that_will_do_the_task_again() {
    let mut tasks = list("-");
    tasks.tasks[0].selector = Some("group:web".parse().unwrap());
    let task = tasks.tasks[0].clone();
    let cluster = ClusterRecord { list: Arc::new(tasks), ..ClusterRecord::default_cluster() };
    let mut walks = Walks::new(Arc::new(cluster));
    let statuses = [Some(Status::Succeeded), Some(Status::Failed), Some(Status::Running), None, None];
    for (number, status) in (0..).zip(statuses) {
        let mut node = node(number);
        if number == 4 {
            node.description.groups.clear();
        }
        walks.set_node(Arc::new(node.clone()));
        if let Some(status) = status {
            let execution = ExecutionId(Uuid::from_u128(u128::from(number) + 1));
            walks.load(node.id, 0, LastAttempt { execution, ..attempt(0, status, 101) });
        }
    }
    let cells: Vec<Cell> = (0..5).map(|number| walks.walk(node(number).id).unwrap().cells[0]).collect();
    assert_eq!(cells, [Cell::Succeeded, Cell::Failed, Cell::Running, Cell::Pending, Cell::NotSelected]);
    assert_eq!(walks.concerned(&task, RerunScope::All), 3);
    assert_eq!(walks.concerned(&task, RerunScope::Failed), 1);
    let named = |number| walks.concerned(&task, RerunScope::Node { node: node(number).id });
    assert_eq!([0, 1, 2, 3, 4].map(named), [1, 1, 1, 1, 0]);
}

#[test]
fn random_histories_agree_with_a_slow_interpreter() {
    let cases: u64 =
        std::env::var("DOWNBEAT_TEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let only: Option<u64> = std::env::var("DOWNBEAT_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let (mut executions, mut early) = (0, 0);
    for seed in only.map_or(0..cases, |seed| seed..seed + 1) {
        let cluster = ClusterRecord { list: Arc::new(list("- !")), ..ClusterRecord::default_cluster() };
        let mut walks = Walks::new(Arc::new(cluster));
        walks.set_owner(ServerId(Uuid::nil()), 1);
        let nodes: Vec<NodeRecord> = (0..3).map(node).collect();
        nodes.iter().for_each(|node| walks.set_node(Arc::new(node.clone())));
        let histories = nodes.iter().map(|_| History::default()).collect();
        let mut world =
            World { dice: Dice::new(seed), walks, nodes, histories, second: 200, executions: 0, early: 0 };
        for _ in 0..200 {
            world.second += 1;
            let of = world.pick(3);
            match world.pick(12) {
                0 => world.alter_list(),
                1 => world.alter_node(of),
                2..=5 => world.decide(of),
                _ => world.advance(of),
            }
            world.check();
        }
        executions += world.executions;
        early += world.early;
    }
    assert!(only.is_some() || executions > u128::from(cases) * 10, "only {executions} executions");
    assert!(only.is_some() || u64::from(early) > cases, "only {early} starts were decided before an end");
}
