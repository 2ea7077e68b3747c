//! The rules as a table, and a test that no run waits forever.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use super::*;
use crate::dice::Dice;
use crate::ids::ServerId;
use crate::run::{RunStage, RunState};

fn node(number: u32) -> NodeId {
    NodeId(Uuid::from_u128(u128::from(number)))
}

fn reference(number: u32) -> NodeRef {
    NodeRef { id: node(number), hostname: format!("web-{number:02}") }
}

/// A run of the table: its name, its stage, and its nodes if it is exclusive.
#[derive(Clone, Debug)]
struct Run {
    id: RunId,
    live: RunLive,
    priority: i32,
    created: i64,
    nodes: Vec<NodeRef>,
}

fn waiting() -> RunLive {
    RunLive::new(ServerId(Uuid::nil()))
}

/// `name priority [nodes] flags`: `*` is active, `p` is paused, a word of the API is a state. Earlier lines are older runs.
fn runs(lines: &[&str]) -> Vec<Run> {
    let run = |(created, line): (i64, &&str)| {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap();
        let (mut priority, mut nodes, mut live) = (0, Vec::new(), waiting());
        for word in words {
            match word {
                "*" => live.stage = RunStage::Running,
                "p" => live.paused_at = Some(Timestamp::UNIX_EPOCH),
                _ if word.starts_with('[') => {
                    let list = word.trim_matches(['[', ']']);
                    nodes = list.split(',').map(|number| reference(number.parse().unwrap())).collect();
                }
                _ => match RunState::parse(word) {
                    Some(state) => live.stage = RunStage::of(state, true, None).unwrap(),
                    None => priority = word.parse().unwrap(),
                },
            }
        }
        Run { id: RunId::from(name), live, priority, created, nodes }
    };
    (0..).zip(lines).map(run).collect()
}

/// `1:a` means that `a` holds or is busy on node 1.
fn places(text: &str) -> BTreeMap<NodeId, RunId> {
    let place = |word: &str| {
        let (number, run) = word.split_once(':').unwrap();
        (node(number.parse().unwrap()), RunId::from(run))
    };
    text.split_whitespace().map(place).collect()
}

fn decided(
    runs: &[Run],
    held: &BTreeMap<NodeId, RunId>,
    busy: &BTreeMap<NodeId, RunId>,
    limit: Option<u32>,
) -> Decision {
    let applicants: Vec<Applicant<'_>> = runs
        .iter()
        .map(|run| Applicant {
            id: &run.id,
            live: &run.live,
            priority: run.priority,
            created_at: Timestamp::from_second(run.created).unwrap(),
            nodes: &run.nodes,
        })
        .collect();
    let holder = |node: NodeId| held.get(&node).cloned();
    let busy_elsewhere = |node: NodeId, run: &RunId| busy.get(&node).filter(|other| *other != run).cloned();
    decide(&applicants, &Nodes { holder: &holder, busy: &busy_elsewhere, drained: &|_| false }, limit)
}

/// Returns the decision as text: each waiting run, then the nodes that are kept free.
fn outcome(lines: &[&str], held: &str, busy: &str, limit: Option<u32>) -> Vec<String> {
    let decision = decided(&runs(lines), &places(held), &places(busy), limit);
    let runs = decision.runs.iter().map(|(run, decision)| match decision {
        RunDecision::Enter => format!("{run} enters"),
        RunDecision::Wait(reason) => format!("{run}: {reason}"),
    });
    let wanted: BTreeMap<_, _> = decision.wanted.iter().collect();
    let wanted = wanted.iter().map(|(node, run)| format!("{} for {run}", node.0.as_u128()));
    runs.chain(wanted).collect()
}

#[test]
fn runs_enter_by_priority_then_age_while_there_is_room() {
    assert_eq!(
        outcome(&["a", "b 5", "c 5", "d -1"], "", "", None),
        ["b enters", "c enters", "a enters", "d enters"]
    );
    assert_eq!(
        outcome(&["x *", "a", "b 5", "c 5"], "", "", Some(2)),
        [
            "b enters",
            "c: waits for its turn: 1 of 2 runs active, 1 run before it",
            "a: waits for its turn: 1 of 2 runs active, 2 runs before it",
        ]
    );
    assert_eq!(
        outcome(&["x *", "y *", "a"], "", "", Some(2)),
        ["a: waits for its turn: 2 of 2 runs active, next in line"]
    );
    // The limit was lowered.
    assert_eq!(
        outcome(&["x *", "y *", "a"], "", "", Some(1)),
        ["a: waits for its turn: 2 of 1 runs active, next in line"]
    );
}

#[test]
fn only_active_runs_take_room() {
    for state in RunState::ALL.into_iter().filter(|state| !state.is_terminal()) {
        let others = outcome(&[&format!("x {state}"), "a"], "", "", Some(1));
        let is_active = state != RunState::PreRun;
        let expected =
            if is_active { "a: waits for its turn: 1 of 1 runs active, next in line" } else { "a enters" };
        assert_eq!(others, [expected], "{state}");
    }
}

#[test]
fn a_paused_run_is_passed_over_and_keeps_nothing() {
    assert_eq!(outcome(&["a p", "b"], "", "", Some(1)), ["a: waits: the run is paused", "b enters"]);
    assert_eq!(
        outcome(&["a [1] p", "b [1]"], "", "", None),
        ["a: waits: the run is paused", "b enters", "1 for b"]
    );
}

#[test]
fn an_exclusive_run_enters_when_all_its_nodes_are_free() {
    assert_eq!(outcome(&["a [1,2]"], "", "", None), ["a enters", "1 for a", "2 for a"]);
    assert_eq!(
        outcome(&["x *", "a [1,2]"], "", "2:x", None),
        ["a: waits for web-02, busy with run x", "1 for a", "2 for a"]
    );
    // A run's own work does not block it.
    assert_eq!(outcome(&["a [1]"], "1:a", "1:a", None), ["a enters", "1 for a"]);
}

#[test]
fn nothing_is_kept_free_while_another_run_holds_a_node() {
    assert_eq!(
        outcome(&["x [2] *", "a [1,2]"], "2:x", "", None),
        ["a: waits for web-02, held by run x (exclusive)"]
    );
    // However busy the others are.
    assert_eq!(
        outcome(&["x [2] *", "y *", "a [1,2]"], "2:x", "1:y", None),
        ["a: waits for web-02, held by run x (exclusive)"]
    );
}

#[test]
fn exclusive_runs_that_share_a_node_do_not_pass_each_other_and_others_do() {
    assert_eq!(
        outcome(&["x [1] *", "a [1,2]", "b [2,3]", "c [3]", "d [4]", "e"], "1:x", "", None),
        [
            "a: waits for web-01, held by run x (exclusive)",
            "b: waits for web-02, wanted by run a (exclusive), which is before it",
            "c: waits for web-03, wanted by run b (exclusive), which is before it",
            "d enters",
            "e enters",
            "4 for d",
        ]
    );
    // Never both in one decision.
    assert_eq!(
        outcome(&["a [1,2]", "b [2,1]"], "", "", None),
        [
            "a enters",
            "b: waits for web-02, wanted by run a (exclusive), which is before it",
            "1 for a",
            "2 for a"
        ]
    );
}

#[test]
fn room_is_kept_for_the_next_run_and_not_for_a_run_that_waits_for_a_holder() {
    assert_eq!(
        outcome(&["x *", "a [1]", "b"], "", "1:x", Some(2)),
        [
            "a: waits for web-01, busy with run x",
            "b: waits for its turn: 1 of 2 runs active, 1 run before it",
            "1 for a",
        ]
    );
    assert_eq!(
        outcome(&["x [1] *", "a [1]", "b"], "1:x", "", Some(2)),
        ["a: waits for web-01, held by run x (exclusive)", "b enters"]
    );
    // Without room it is not next: an active run needs its nodes to finish.
    assert_eq!(
        outcome(&["x *", "a [1]"], "", "1:x", Some(1)),
        ["a: waits for its turn: 1 of 1 runs active, next in line"]
    );
}

/// A simulated fleet: each run has steps to do on its nodes, one at a time, where the decisions allow it.
struct Fleet {
    runs: Vec<Run>,
    /// For each active run, the nodes on which it still has a step to do.
    left: BTreeMap<RunId, Vec<NodeId>>,
    held: BTreeMap<NodeId, RunId>,
    busy: BTreeMap<NodeId, RunId>,
    wanted: HashMap<NodeId, RunId>,
    entered: BTreeSet<RunId>,
    limit: Option<u32>,
}

impl Fleet {
    fn draw(dice: &mut Dice) -> Self {
        let count = 2 + dice.below(10);
        let run = |number: u64, dice: &mut Dice| {
            let mut wanted: BTreeSet<u32> = BTreeSet::new();
            for _ in 0..1 + dice.below(4) {
                wanted.insert((dice.below(5)) as u32);
            }
            let exclusive = dice.below(2) == 0;
            let nodes = if exclusive { wanted.into_iter().map(reference).collect() } else { Vec::new() };
            let priority = (dice.below(3)) as i32;
            let id = RunId::from(format!("{number:02}"));
            Run { id, live: waiting(), priority, created: number as i64, nodes }
        };
        let limit = [None, Some(1), Some(2), Some(3)][(dice.below(4)) as usize];
        Self {
            runs: (0..count).map(|number| run(number, dice)).collect(),
            left: BTreeMap::new(),
            held: BTreeMap::new(),
            busy: BTreeMap::new(),
            wanted: HashMap::default(),
            entered: BTreeSet::new(),
            limit,
        }
    }

    fn decide(&mut self, dice: &mut Dice) {
        let decision = decided(&self.runs, &self.held, &self.busy, self.limit);
        self.wanted = decision.wanted;
        for (id, decision) in decision.runs {
            if decision == RunDecision::Enter {
                self.enter(&id, dice);
            }
        }
        let active = self.runs.iter().filter(|run| run.live.is_active()).count();
        assert!(self.limit.is_none_or(|limit| active <= limit as usize), "{active} are active");
    }

    fn enter(&mut self, id: &RunId, dice: &mut Dice) {
        let run = self.runs.iter_mut().find(|run| run.id == *id).unwrap();
        run.live.stage = RunStage::Running;
        for node in &run.nodes {
            let before = self.held.insert(node.id, id.clone());
            assert_eq!(before, None, "{} is held twice", node.hostname);
            assert!(!self.busy.contains_key(&node.id), "{} is busy", node.hostname);
        }
        let steps = 1 + dice.below(6);
        let anywhere = |dice: &mut Dice| node((dice.below(5)) as u32);
        let own: Vec<NodeId> = run.nodes.iter().map(|node| node.id).collect();
        let step = |dice: &mut Dice| match own.len() as u64 {
            0 => anywhere(dice),
            count => own[(dice.next_u64() % count) as usize],
        };
        self.left.insert(id.clone(), (0..steps).map(|_| step(dice)).collect());
        self.entered.insert(id.clone());
    }

    /// Starts all steps that may start, then ends some of the running ones.
    fn work(&mut self, dice: &mut Dice) {
        for (id, left) in &mut self.left {
            let Some(&next) = left.last() else { continue };
            let is_others = |place: Option<&RunId>| place.is_some_and(|other| other != id);
            let is_free = !self.busy.contains_key(&next)
                && !is_others(self.held.get(&next))
                && !is_others(self.wanted.get(&next));
            if is_free && !self.busy.values().any(|busy| busy == id) && dice.below(4) > 0 {
                self.busy.insert(next, id.clone());
            }
        }
        let busy_elsewhere: Vec<NodeId> = self.busy.keys().copied().collect();
        for node in busy_elsewhere {
            if dice.below(2) == 0 {
                let run = self.busy.remove(&node).unwrap();
                self.left.get_mut(&run).unwrap().pop();
            }
        }
        let ended: Vec<RunId> =
            self.left.iter().filter(|(_, left)| left.is_empty()).map(|(id, _)| id.clone()).collect();
        for id in ended {
            self.left.remove(&id);
            self.held.retain(|_, holder| *holder != id);
            self.runs.retain(|run| run.id != id);
        }
    }
}

#[test]
fn every_run_enters_and_ends_whatever_they_want() {
    for seed in 0..3_000 {
        let mut dice = Dice::new(seed);
        let mut fleet = Fleet::draw(&mut dice);
        let all = fleet.runs.len();
        let mut turns = 0;
        while !fleet.runs.is_empty() {
            fleet.decide(&mut dice);
            fleet.work(&mut dice);
            turns += 1;
            assert!(turns < 2_000, "seed {seed}: {:?} of {all} wait forever", fleet.runs);
        }
        assert_eq!(fleet.entered.len(), all, "seed {seed}");
    }
}

/// However many others come, as long as they do not come before it.
#[test]
fn an_exclusive_run_is_not_passed_over_forever() {
    for seed in 0..200 {
        let mut dice = Dice::new(seed);
        let mut fleet = Fleet::draw(&mut dice);
        fleet.limit = Some(2);
        fleet.runs = runs(&["a [0,1,2,3]"]);
        let first = fleet.runs[0].id.clone();
        let mut turns = 0;
        while !fleet.entered.contains(&first) {
            // New runs arrive all the time, exclusive or not, that come after it.
            let id = RunId::from(format!("new-{turns:05}"));
            let nodes = if dice.below(3) == 0 { vec![reference((dice.below(5)) as u32)] } else { vec![] };
            fleet.runs.push(Run { id, live: waiting(), priority: 0, created: 10 + turns, nodes });
            // Runs that were active before it was created.
            if turns == 0 {
                fleet.runs[0].live.paused_at = Some(Timestamp::UNIX_EPOCH);
                fleet.decide(&mut dice);
                fleet.runs[0].live.paused_at = None;
            }
            fleet.work(&mut dice);
            fleet.decide(&mut dice);
            turns += 1;
            assert!(turns < 500, "seed {seed}: it never enters");
        }
    }
}

#[test]
fn an_exclusive_run_that_wants_a_drained_node_is_passed_over_and_says_so() {
    let id = |name: &str| RunId::from(name);
    let (first, second) = (id("first"), id("second"));
    let nodes = [reference(1), reference(2)];
    let live = waiting();
    let run = |id, second| Applicant {
        id,
        live: &live,
        priority: 0,
        created_at: Timestamp::from_second(second).unwrap(),
        nodes: &nodes[..],
    };
    let both = [run(&first, 1), Applicant { nodes: &nodes[..1], ..run(&second, 2) }];
    let drained = |node: NodeId| node == nodes[1].id;
    let known = Nodes { holder: &|_| None, busy: &|_, _| None, drained: &drained };
    let decision = decide(&both, &known, Some(1));
    let hostname = nodes[1].hostname.clone();
    assert_eq!(
        decision.runs,
        [
            (first.clone(), RunDecision::Wait(Reason::Drained { hostname })),
            (second.clone(), RunDecision::Enter)
        ]
    );
    assert_eq!(decision.wanted.keys().copied().collect::<Vec<_>>(), [nodes[0].id]);
}
