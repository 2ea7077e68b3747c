//! Random nodes, jobs, placements and limits, compared with a slow reading of the rules after every round.

use std::collections::BTreeSet;

use downbeat_core::place::{self, Rank};
use downbeat_core::spec::{Limit, Limits, Placement, Spread};

use super::*;

/// An execution, as the model knows it.
#[derive(Clone, Debug)]
struct Item {
    id: ExecutionId,
    run: usize,
    pinned: Option<u32>,
    limits: Limits,
}

#[derive(Clone, Debug)]
struct Job {
    id: RunId,
    lane: String,
    priority: i32,
    placement: Placement,
    paused: bool,
}

/// A lease: it counts until it ends.
#[derive(Clone, Debug)]
struct Given {
    item: Item,
    node: u32,
    claim: Change,
}

struct Story {
    world: World,
    chance: Dice,
    jobs: Vec<Job>,
    nodes: u32,
    waiting: Vec<Item>,
    given: Vec<Given>,
    /// When leases with a rate were granted, and until when they count.
    begun: Vec<(ExecutionId, String, Timestamp, Timestamp)>,
    free: BTreeMap<u32, Free>,
    /// Kept, so that assignments can be received.
    polls: Vec<oneshot::Receiver<PollAnswer>>,
}

impl Story {
    fn begin(seed: u64) -> Self {
        let mut chance = Dice::new(seed);
        let nodes = 1 + chance.below(5) as u32;
        let mut world = World::new(0);
        for index in 0..nodes {
            let mut record = record(index, SESSION);
            let zone = ["a", "b", ""][chance.below(3) as usize];
            if !zone.is_empty() {
                record.description.labels.insert("zone".to_owned(), zone.to_owned());
            }
            if chance.below(3) == 0 {
                record.description.backends.retain(|backend| backend.name != "exec");
            }
            world.board.add_node(record);
        }
        let mut story = Self {
            world,
            chance,
            jobs: Vec::new(),
            nodes,
            waiting: Vec::new(),
            given: Vec::new(),
            begun: Vec::new(),
            free: BTreeMap::new(),
            polls: Vec::new(),
        };
        for index in 0..2 + story.chance.below(5) {
            story.add_job(index);
        }
        story
    }

    fn add_job(&mut self, index: u64) {
        let placement = [
            json!({}),
            json!({}),
            json!({"labels": ["zone=a"]}),
            json!({"backends": ["exec"]}),
            json!({"max_per_node": 1 + self.chance.below(2)}),
            json!({"spread": "node", "prefer": [{"labels": ["zone=b"]}]}),
            json!({"spread": {"label": "zone"}}),
            json!({"forbid": ["n0"], "prefer": [{"nodes": ["n1"], "weight": 3}]}),
        ][self.chance.below(8) as usize]
            .clone();
        let priority = [0, 0, 0, 1][self.chance.below(4) as usize];
        let lane = format!("job{}", self.chance.below(4));
        let mut definition = noops(1, &json!({"placement": placement, "priority": priority}));
        if self.chance.below(3) > 0 {
            definition["name"] = json!(lane);
        }
        let id = self.world.run(&format!("run{index}"), definition.clone());
        let lane = definition["name"].as_str().map_or_else(|| id.to_string(), str::to_owned);
        let placement = serde_json::from_value(placement).unwrap();
        self.jobs.push(Job { id, lane, priority, placement, paused: false });
    }

    fn add_work(&mut self) {
        let run = self.chance.below(self.jobs.len() as u64) as usize;
        let limits = [
            json!({}),
            json!({}),
            json!({"db": 1 + self.chance.below(3)}),
            json!({"db": 2, format!("item-{}", self.chance.below(3)): 1}),
            json!({"api": format!("{}/{}s", 1 + self.chance.below(3), 1 + self.chance.below(4))}),
        ][self.chance.below(5) as usize]
            .clone();
        let limits: Limits = serde_json::from_value(limits).unwrap();
        let pinned = (self.chance.below(5) == 0).then(|| self.chance.below(self.nodes.into()) as u32);
        let id = self.jobs[run].id.clone();
        let mut executions = Vec::new();
        for _ in 0..1 + self.chance.below(6) {
            let mut execution = self.world.executions(&id, 1, pinned.map(node_id)).remove(0);
            execution.limits = Some(Arc::new(limits.clone())).filter(|limits| !limits.is_empty());
            self.waiting.push(Item { id: execution.id, run, pinned, limits: limits.clone() });
            executions.push(execution);
        }
        self.world.add(&id, executions);
    }

    /// Performs a random action.
    fn happen(&mut self) {
        match self.chance.below(10) {
            0..4 => self.add_work(),
            4..7 if !self.given.is_empty() => {
                let given = self.given.swap_remove(self.chance.below(self.given.len() as u64) as usize);
                self.world.end(&[given.claim]);
            }
            7 => self.world.now += SignedDuration::from_millis(self.chance.below(2_000).cast_signed()),
            8 => {
                let run = self.chance.below(self.jobs.len() as u64) as usize;
                let job = &mut self.jobs[run];
                job.paused = !job.paused;
                let (run, paused, at) = (job.id.clone(), job.paused, self.world.now);
                self.world.commit(vec![Change::RunPauseSet { run, paused, by: String::new(), at }]);
            }
            _ => {
                let node = self.chance.below(self.nodes.into()) as u32;
                let (draining, at) = (self.chance.below(2) == 0, self.world.now);
                self.world.commit(vec![Change::NodeDrainSet {
                    node: node_id(node),
                    draining,
                    by: String::new(),
                    at,
                }]);
            }
        }
    }

    /// Nodes poll, and pending work is claimed.
    fn turn(&mut self) {
        self.free.clear();
        self.polls.clear();
        for node in 0..self.nodes {
            self.world.polls += 1;
            self.world.board.unpark_any(node_id(node));
            let free =
                Free { fleet: self.chance.below(2) as u32, placed: self.chance.below(4) as u32, debug: None };
            if self.chance.below(4) > 0 {
                let polls = self.world.polls;
                let poll = self.world.park(node, polls, free);
                self.polls.push(poll);
                let record = self.world.board.node(node_id(node)).unwrap();
                self.free.insert(node, if record.draining { Free::default() } else { free });
            }
        }
        let before: BTreeSet<ExecutionId> = self.waiting.iter().map(|item| item.id).collect();
        let claims = self.world.claim();
        let mut served: Vec<(Item, u32)> = Vec::new();
        for claim in claims {
            let Change::ExecutionLeased { execution, lease, .. } = &claim else { panic!("{claim:?}") };
            assert!(before.contains(execution), "given out twice, or from nowhere");
            let node = (0..self.nodes).find(|node| node_id(*node) == lease.node).unwrap();
            let place = self.waiting.iter().position(|item| item.id == *execution).unwrap();
            let item = self.waiting.remove(place);
            self.check_claim(&item, node);
            self.take(&item, node);
            served.push((item.clone(), node));
            self.given.push(Given { item, node, claim });
        }
        self.check_rest(&served);
        self.resolve(served.len());
    }

    /// Commits the claims or not.
    fn resolve(&mut self, count: usize) {
        let mut committed = Vec::new();
        for given in self.given.split_off(self.given.len() - count) {
            match self.chance.below(10) {
                0 => self.world.board.unclaim(&given.claim),
                1 => self.world.board.claims_failed(vec![given.claim.clone()]),
                _ => {
                    committed.push(given.claim.clone());
                    self.given.push(given);
                    continue;
                }
            }
            self.begun.retain(|(execution, ..)| *execution != given.item.id);
            self.waiting.push(given.item);
        }
        self.world.commit(committed);
    }

    fn take(&mut self, item: &Item, node: u32) {
        let free = self.free.get_mut(&node).unwrap();
        match item.pinned {
            Some(_) => free.fleet -= 1,
            None => free.placed -= 1,
        }
        let now = self.world.now;
        for (key, limit) in &item.limits {
            if let Limit::Rate(_, per) = limit {
                let until = now + SignedDuration::try_from(per.0).unwrap();
                self.begun.push((item.id, key.clone(), now, until));
            }
        }
    }

    fn held(&self, run: usize, on: impl Fn(u32) -> bool) -> u32 {
        self.given.iter().filter(|given| given.item.run == run && on(given.node)).count() as u32
    }

    /// Returns whether all limits of an execution have room.
    fn has_slots(&self, item: &Item) -> bool {
        item.limits.iter().all(|(key, limit)| match limit {
            Limit::AtOnce(most) => {
                let taken = self.given.iter().filter(|given| given.item.limits.contains_key(key)).count();
                taken < *most as usize
            }
            Limit::Rate(most, per) => {
                let past = self.world.now - SignedDuration::try_from(per.0).unwrap();
                let counts = |(_, begun, at, until): &&(ExecutionId, String, Timestamp, Timestamp)| {
                    begun == key && *at > past && *until > self.world.now
                };
                let within = self.begun.iter().filter(counts).count();
                within < *most as usize
            }
        })
    }

    /// Returns whether a node fits, apart from its slots.
    fn fits(&self, item: &Item, node: u32) -> bool {
        let (job, record) = (&self.jobs[item.run], self.world.board.node(node_id(node)).unwrap());
        match item.pinned {
            Some(pinned) => pinned == node && !record.draining,
            None => {
                let held = self.held(item.run, |at| at == node);
                place::fits(&job.placement, "test", "noop", record, held).is_ok()
            }
        }
    }

    fn has_slot(&self, item: &Item, node: u32) -> bool {
        let free = self.free.get(&node).copied().unwrap_or_default();
        if item.pinned.is_some() { free.fleet > 0 } else { free.placed > 0 }
    }

    fn rank(&self, item: &Item, node: u32) -> Rank {
        let (job, record) = (&self.jobs[item.run], self.world.board.node(node_id(node)).unwrap());
        let zone =
            |node: u32| self.world.board.node(node_id(node)).unwrap().description.labels.get("zone").cloned();
        let held = match &job.placement.spread {
            Some(Spread::Label(_)) => self.held(item.run, |at| zone(at) == zone(node)),
            Some(Spread::Node) | None => self.held(item.run, |at| at == node),
        };
        place::rank(&job.placement, record, held, self.free.get(&node).copied().unwrap_or_default().placed)
    }

    /// Checks a claim before it counts.
    fn check_claim(&self, item: &Item, node: u32) {
        assert!(!self.jobs[item.run].paused);
        assert!(self.fits(item, node) && self.has_slot(item, node), "{item:?} on {node}");
        assert!(self.has_slots(item), "a limit is exceeded: {item:?}");
        if item.pinned.is_none() {
            let others = (0..self.nodes).filter(|node| self.fits(item, *node) && self.has_slot(item, *node));
            let best = others.map(|node| self.rank(item, node)).max();
            assert_eq!(Some(self.rank(item, node)), best, "a better node was free: {item:?}");
        }
    }

    /// Checks that all work that is still pending has a reason, and that no work was overtaken.
    fn check_rest(&self, served: &[(Item, u32)]) {
        for item in self.waiting.iter().filter(|item| !self.jobs[item.run].paused && self.has_slots(item)) {
            let could = |node: u32| self.fits(item, node) && self.has_slot(item, node);
            assert!(!(0..self.nodes).any(could), "it could have gone: {item:?}");
            let job = &self.jobs[item.run];
            let rivals: Vec<&(Item, u32)> = served
                .iter()
                .filter(|(rival, node)| {
                    rival.pinned.is_some() == item.pinned.is_some() && self.fits(item, *node)
                })
                .collect();
            for (rival, _) in &rivals {
                let other = &self.jobs[rival.run];
                assert!(other.priority >= job.priority, "{rival:?} went before {item:?}");
                let is_one_lane = other.lane == job.lane && other.priority == job.priority;
                assert!(!is_one_lane || rival.id < item.id, "{rival:?} is younger than {item:?}");
            }
            if item.pinned.is_some() {
                continue;
            }
            self.check_turns(item, served, &rivals);
        }
    }

    /// Checks that between two turns of another lane, the lane of pending work had one.
    fn check_turns(&self, item: &Item, served: &[(Item, u32)], rivals: &[&(Item, u32)]) {
        let lane = |run: usize| (self.jobs[run].lane.as_str(), self.jobs[run].priority);
        let mine = lane(item.run);
        let lanes: BTreeSet<(&str, i32)> = rivals
            .iter()
            .map(|(rival, _)| lane(rival.run))
            .filter(|other| *other != mine && other.1 == mine.1)
            .collect();
        for other in lanes {
            let last = rivals.iter().rfind(|(rival, _)| lane(rival.run) == other).unwrap().0.id;
            let until = served.iter().position(|(rival, _)| rival.id == last).unwrap();
            let turns =
                |of: (&str, i32)| served[..=until].iter().filter(|(rival, _)| lane(rival.run) == of).count();
            assert!(
                turns(mine) + 1 >= turns(other),
                "{other:?} had {} turns, {mine:?} {}",
                turns(other),
                turns(mine)
            );
        }
    }
}

#[test]
fn random_events_keep_the_rules() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (first, cases) = match number("DOWNBEAT_TEST_SEED") {
        Some(seed) => (seed, 1),
        None => (1, number("DOWNBEAT_TEST_CASES").unwrap_or(150)),
    };
    let mut given = 0;
    for seed in first..first + cases {
        given += play(seed);
    }
    assert!(given > 0);
}

/// Returns how many leases were granted.
fn play(seed: u64) -> usize {
    let result = std::panic::catch_unwind(|| {
        let mut story = Story::begin(seed);
        let mut given = 0;
        for _ in 0..40 {
            for _ in 0..1 + story.chance.below(4) {
                story.happen();
            }
            story.turn();
            given += story.given.len();
        }
        given
    });
    result.unwrap_or_else(|_| panic!("DOWNBEAT_TEST_SEED={seed} repeats it"))
}
