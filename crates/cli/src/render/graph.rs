//! Owns how a graph is drawn: a row for each task, with lines on its left that come down from its dependencies.
//!
//! Pure: takes the dependencies, returns rows with their lines. A line connects all of its sources with all tasks that
//! still wait for them, so every line leads down from a dependency to a task that has it, and to no other.

use std::collections::{BTreeMap, BTreeSet};

/// A task that others wait for, and one that no task waits for.
const NEEDED: char = '●';
const UNNEEDED: char = '○';
/// Tasks with the same dependencies and the same dependants: from the first to the last.
const FIRST_OF: char = '┏';
const ONE_OF: char = '┣';
const LAST_OF: char = '┗';

/// The columns of a line and the gap on its right.
const LANE: usize = 2;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Drawing {
    pub(super) rows: Vec<Row>,
    /// The columns of the lines.
    pub(super) width: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The task on this row; a row without one only joins lines.
    pub(super) task: Option<usize>,
    pub(super) lines: String,
    /// The lines on further rows of the same task.
    pub(super) below: String,
}

/// Returns the tasks in layers: each task waits only for tasks in earlier layers.
pub(super) fn layers(after: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut depth: Vec<usize> = vec![0; after.len()];
    for task in order(after, &before(after)) {
        depth[task] = after[task].iter().map(|former| depth[*former] + 1).max().unwrap_or(0);
    }
    let mut layers = vec![Vec::new(); depth.iter().max().map_or(0, |deepest| deepest + 1)];
    for (task, depth) in depth.into_iter().enumerate() {
        layers[depth].push(task);
    }
    layers
}

/// Returns groups of tasks with the same dependencies and the same dependants, ordered by their first task.
pub(super) fn alike(after: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let before = before(after);
    let mut found: BTreeMap<(BTreeSet<usize>, &BTreeSet<usize>), Vec<usize>> = BTreeMap::new();
    for (task, former) in after.iter().enumerate() {
        found.entry((former.iter().copied().collect(), &before[task])).or_default().push(task);
    }
    let mut classes: Vec<Vec<usize>> = found.into_values().collect();
    classes.sort();
    classes
}

/// Returns for each task the tasks that wait for it.
fn before(after: &[Vec<usize>]) -> Vec<BTreeSet<usize>> {
    let mut before = vec![BTreeSet::new(); after.len()];
    for (task, former) in after.iter().enumerate() {
        for former in former {
            before[*former].insert(task);
        }
    }
    before
}

/// Orders each task after its dependencies. Dependants come before unrelated tasks, so that branches stay together.
fn order(after: &[Vec<usize>], before: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut missing: Vec<usize> =
        after.iter().map(|former| former.iter().collect::<BTreeSet<_>>().len()).collect();
    let mut ready: Vec<usize> = (0..after.len()).rev().filter(|task| missing[*task] == 0).collect();
    let mut order = Vec::with_capacity(after.len());
    while let Some(task) = ready.pop() {
        order.push(task);
        for &next in before[task].iter().rev() {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push(next);
            }
        }
    }
    order
}

/// Draws a graph without cycles; `after` holds the dependencies of each task.
pub(super) fn draw(after: &[Vec<usize>]) -> Drawing {
    let classes = alike(after);
    let mut class_of = vec![0; after.len()];
    for (class, tasks) in classes.iter().enumerate() {
        tasks.iter().for_each(|task| class_of[*task] = class);
    }
    // All members of a class wait for all members of another, or for none.
    let after: Vec<Vec<usize>> = classes
        .iter()
        .map(|tasks| {
            let classes: BTreeSet<usize> = after[tasks[0]].iter().map(|task| class_of[*task]).collect();
            classes.into_iter().collect()
        })
        .collect();
    let before = before(&after);
    let order = order(&after, &before);
    let mut lanes = Lanes::default();
    for (index, &class) in order.iter().enumerate() {
        lanes.add(class, &classes[class], &before[class]);
        lanes.join_lines(order.get(index + 1).copied());
    }
    Drawing { rows: lanes.rows, width: lanes.width * LANE }
}

/// The open lines, from the left.
#[derive(Debug, Default)]
struct Lanes {
    /// The tasks that still wait for the sources of each line; empty if the lane has no line.
    waiting: Vec<BTreeSet<usize>>,
    rows: Vec<Row>,
    width: usize,
    /// The lane in which the previous row ends in a bracket that no task waits for.
    ended: Option<usize>,
}

impl Lanes {
    fn add(&mut self, class: usize, tasks: &[usize], before: &BTreeSet<usize>) {
        let from: Vec<usize> =
            (0..self.waiting.len()).filter(|lane| self.waiting[*lane].contains(&class)).collect();
        let above = self.waiting.clone();
        for &lane in &from {
            self.waiting[lane].remove(&class);
        }
        let ends = from.iter().copied().find(|lane| self.waiting[*lane].is_empty());
        let free = || above.iter().position(BTreeSet::is_empty).unwrap_or(above.len());
        let own = ends.unwrap_or_else(free);
        if own == self.waiting.len() {
            self.waiting.push(BTreeSet::new());
        }
        self.width = self.width.max(self.waiting.len());
        if self.ended == Some(own) {
            // Without this row, the next task would seem to depend on the bracket above.
            let lines = lines(&above, None);
            self.rows.push(Row { task: None, below: lines.clone(), lines });
        }
        let begins = self.draw_task_row(&above, &from, own, glyph(0, tasks.len(), before));
        self.waiting[own].clone_from(before);
        let last = tasks.len() - 1;
        for (index, &task) in tasks.iter().enumerate() {
            let here = |glyph| lines(&self.waiting, Some((own, glyph)));
            let lines = if index == 0 { begins.clone() } else { here(glyph(index, tasks.len(), before)) };
            let below = if index < last { here('┃') } else { self::lines(&self.waiting, None) };
            self.rows.push(Row { task: Some(task), lines, below });
        }
        self.ended = (last > 0 && before.is_empty()).then_some(own);
    }

    /// Returns the row in which lines reach a task.
    fn draw_task_row(&self, above: &[BTreeSet<usize>], from: &[usize], own: usize, glyph: char) -> String {
        let first = from.iter().copied().chain([own]).min().unwrap_or(own);
        let last = from.iter().copied().chain([own]).max().unwrap_or(own);
        let mut text = String::new();
        for lane in 0..self.waiting.len() {
            let continues = !self.waiting[lane].is_empty();
            text.push(if lane == own {
                glyph
            } else if from.contains(&lane) {
                match (lane == first, lane == last, continues) {
                    (true, _, true) => '├',
                    (true, _, false) => '└',
                    (_, true, true) => '┤',
                    (_, true, false) => '┘',
                    (false, false, true) => '┼',
                    (false, false, false) => '┴',
                }
            } else if above.get(lane).is_some_and(|waiting| !waiting.is_empty()) {
                '│'
            } else if (first..last).contains(&lane) {
                '─'
            } else {
                ' '
            });
            text.push(if (first..last).contains(&lane) { '─' } else { ' ' });
        }
        text.trim_end().to_owned()
    }

    /// Joins lines to the same tasks, unless they end in the next row.
    fn join_lines(&mut self, next: Option<usize>) {
        let mut same: BTreeMap<&BTreeSet<usize>, Vec<usize>> = BTreeMap::new();
        for (lane, waiting) in self.waiting.iter().enumerate().filter(|(_, waiting)| !waiting.is_empty()) {
            same.entry(waiting).or_default().push(lane);
        }
        let ends = |waiting: &BTreeSet<usize>| waiting.len() == 1 && waiting.first() == next.as_ref();
        let mut groups: Vec<Vec<usize>> = same
            .into_iter()
            .filter(|(waiting, lanes)| lanes.len() > 1 && !ends(waiting))
            .map(|(_, lanes)| lanes)
            .collect();
        groups.sort();
        for group in groups {
            let (first, last) = (group[0], group[group.len() - 1]);
            let mut text = String::new();
            for lane in 0..self.waiting.len() {
                text.push(match group.iter().position(|one| *one == lane) {
                    Some(0) => '├',
                    Some(_) if lane == last => '┘',
                    Some(_) => '┴',
                    None if !self.waiting[lane].is_empty() => '│',
                    None if (first..last).contains(&lane) => '─',
                    None => ' ',
                });
                text.push(if (first..last).contains(&lane) { '─' } else { ' ' });
            }
            group[1..].iter().for_each(|lane| self.waiting[*lane].clear());
            let below = lines(&self.waiting, None);
            self.rows.push(Row { task: None, lines: text.trim_end().to_owned(), below });
            self.ended = None;
        }
        while self.waiting.last().is_some_and(BTreeSet::is_empty) {
            self.waiting.pop();
        }
    }
}

fn glyph(index: usize, count: usize, before: &BTreeSet<usize>) -> char {
    match (index, count) {
        (_, 1) if before.is_empty() => UNNEEDED,
        (_, 1) => NEEDED,
        (0, _) => FIRST_OF,
        (index, count) if index + 1 == count => LAST_OF,
        _ => ONE_OF,
    }
}

/// Returns the lines that continue, with the sign of a task among them.
fn lines(waiting: &[BTreeSet<usize>], own: Option<(usize, char)>) -> String {
    let mut text = String::new();
    for (lane, waiting) in waiting.iter().enumerate() {
        text.push(match own {
            Some((own, glyph)) if own == lane => glyph,
            _ if !waiting.is_empty() => '│',
            _ => ' ',
        });
        text.push(' ');
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use downbeat_core::dice::Dice;

    use super::*;

    /// Reads `a b>a c>a,b`: names and their dependencies.
    fn graph(text: &str) -> (Vec<String>, Vec<Vec<usize>>) {
        let words = || text.split_whitespace().map(|word| word.split_once('>').unwrap_or((word, "")));
        let names: Vec<String> = words().map(|(name, _)| name.to_owned()).collect();
        let index = |name: &str| names.iter().position(|known| known == name).expect("a task of the graph");
        let after =
            words().map(|(_, after)| after.split(',').filter(|name| !name.is_empty()).map(index).collect());
        (names.clone(), after.collect())
    }

    fn drawn(text: &str) -> String {
        let (names, after) = graph(text);
        let Drawing { rows, width } = draw(&after);
        let line = |row: &Row| {
            let name = row.task.map_or("", |task| names[task].as_str());
            format!("{:width$} {name}", row.lines).trim_end().to_owned() + "\n"
        };
        rows.iter().map(line).collect()
    }

    /// Follows every drawn line and returns the dependencies of each task.
    fn followed(drawing: &Drawing, tasks: usize) -> Vec<BTreeSet<usize>> {
        let mut after = vec![BTreeSet::new(); tasks];
        let mut above: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); drawing.width];
        let mut bracket: Option<(usize, BTreeSet<usize>, BTreeSet<usize>)> = None;
        let mut ended = None;
        for row in &drawing.rows {
            let signs: Vec<char> =
                row.lines.chars().chain(std::iter::repeat(' ')).take(drawing.width).collect();
            let is_task = |sign: char| [NEEDED, UNNEEDED, FIRST_OF, ONE_OF, LAST_OF].contains(&sign);
            let own = signs.iter().position(|sign| is_task(*sign));
            assert_eq!(own.is_some(), row.task.is_some(), "{row:?}");
            let mut below: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); drawing.width];
            for (column, sign) in signs.iter().enumerate() {
                assert_eq!(column % LANE == 1, matches!(sign, '─' | ' ') && column % LANE == 1, "{row:?}");
                if "│├┤┼".contains(*sign) {
                    assert!(!above[column].is_empty(), "a line from nowhere: {row:?}");
                    below[column].clone_from(&above[column]);
                } else if !is_task(*sign) && !"└┘┴".contains(*sign) {
                    assert!(above[column].is_empty(), "a line is cut off: {row:?}");
                }
            }
            let joined = |column: usize| "├┤┼└┘┴".contains(signs[column]);
            let mut reached = BTreeSet::new();
            let mut span: Vec<usize> = (0..drawing.width).filter(|column| joined(*column)).collect();
            span.extend(own);
            for column in (0..drawing.width).filter(|column| joined(*column)) {
                reached.extend(above[column].iter().copied());
            }
            // Everything that is joined is joined by one stroke without a gap.
            if let (Some(first), Some(last)) = (span.iter().min(), span.iter().max()) {
                let between = &signs[*first..=*last];
                assert!(between.iter().skip(1).step_by(LANE).all(|sign| *sign == '─'), "{row:?}");
            }
            match (own, row.task) {
                (Some(own), Some(task)) => {
                    let sign = signs[own];
                    if [NEEDED, UNNEEDED, FIRST_OF].contains(&sign) {
                        reached.extend(above[own].iter().copied());
                        assert!(bracket.is_none());
                        bracket = Some((own, reached.clone(), BTreeSet::new()));
                    }
                    let (column, from, members) = bracket.as_mut().expect("a bracket is open");
                    assert_eq!(*column, own, "{row:?}");
                    after[task].clone_from(from);
                    members.insert(task);
                    if sign == NEEDED || sign == LAST_OF {
                        below[own].clone_from(members);
                    }
                    if [NEEDED, UNNEEDED, LAST_OF].contains(&sign) {
                        bracket = None;
                    }
                }
                _ if !reached.is_empty() => {
                    let first = (0..drawing.width).find(|column| joined(*column)).unwrap();
                    assert_eq!(signs[first], '├', "{row:?}");
                    below[first].extend(reached);
                }
                _ => {}
            }
            // A bracket that no task waits for must leave no line, and nothing that looks like one.
            let continues =
                |column: usize| row.below.chars().nth(column).is_some_and(|sign| "│┃".contains(sign));
            if let Some(column) = ended.take() {
                assert!(!is_task(signs[column]), "a task seems to depend on the bracket above: {row:?}");
            }
            if let Some(own) = own.filter(|own| signs[*own] == LAST_OF && !continues(*own)) {
                below[own].clear();
                ended = Some(own);
            }
            for (column, sources) in below.iter().enumerate().filter(|(column, _)| column % LANE == 0) {
                assert_eq!(
                    continues(column),
                    !sources.is_empty() || bracket.as_ref().is_some_and(|open| open.0 == column),
                    "{row:?}"
                );
            }
            above = below;
        }
        assert!(above.iter().all(BTreeSet::is_empty), "a line leads nowhere");
        after
    }

    fn random(seed: u64) -> Vec<Vec<usize>> {
        let mut dice = Dice::new(seed);
        let mut below = |most: u64| dice.next_u64() % most;
        let tasks = usize::try_from(1 + below(if seed.is_multiple_of(10) { 40 } else { 9 })).unwrap();
        let density = 1 + below(6);
        let mut names: Vec<usize> = (0..tasks).collect();
        // Files do not list tasks in the order of their dependencies.
        for index in (1..tasks).rev() {
            names.swap(index, usize::try_from(below(index as u64 + 1)).unwrap());
        }
        let mut after = vec![Vec::new(); tasks];
        for task in 1..tasks {
            for former in 0..task {
                if below(7) < density && below(3) > 0 {
                    after[names[task]].push(names[former]);
                }
            }
        }
        after
    }

    #[test]
    fn every_line_leads_from_a_task_to_those_that_wait_for_it_and_to_no_other() {
        for seed in 0..3_000 {
            let after = random(seed);
            let drawing = draw(&after);
            let expected: Vec<BTreeSet<usize>> =
                after.iter().map(|former| former.iter().copied().collect()).collect();
            let shown: Vec<&str> = drawing.rows.iter().map(|row| row.lines.as_str()).collect();
            assert_eq!(followed(&drawing, after.len()), expected, "seed {seed}\n{}", shown.join("\n"));
            let mut tasks: Vec<usize> = drawing.rows.iter().filter_map(|row| row.task).collect();
            tasks.sort_unstable();
            assert_eq!(tasks, (0..after.len()).collect::<Vec<_>>(), "seed {seed}: each task once");
            assert_eq!(drawing, draw(&after), "seed {seed}: the same each time");
        }
    }

    #[test]
    fn each_task_is_in_a_layer_behind_those_that_it_waits_for() {
        for seed in 0..300 {
            let after = random(seed);
            let mut layer_of = vec![usize::MAX; after.len()];
            for (layer, tasks) in layers(&after).into_iter().enumerate() {
                tasks.into_iter().for_each(|task| layer_of[task] = layer);
            }
            for (task, former) in after.iter().enumerate() {
                let deepest = former.iter().map(|former| layer_of[*former] + 1).max().unwrap_or(0);
                assert_eq!(layer_of[task], deepest, "seed {seed}");
            }
        }
    }

    #[test]
    fn graphs_look_like_this() {
        let cases = [
            ("a chain", "list shard>list report>shard"),
            ("side by side", "build unit>build lint>build docs>build publish>unit,lint,docs"),
            (
                "a diamond with a long edge and two ends",
                "build unit>build lint>build publish>unit,lint alarm>unit,lint clean-up>publish,build",
            ),
            (
                "twelve tasks with two roots",
                "fetch extract>fetch checksum>fetch load-customers>extract load-orders>extract load-items>extract \
                 join>load-customers,load-orders,load-items,checksum report>join mail>report archive>report \
                 cleanup>fetch,mail,archive,metrics metrics",
            ),
            ("lines cross without touching", "a b c d>a,c e>b,d f>a,e g>b"),
            ("no task waits for a bracket", "a b>a c>a d e>d"),
            ("alone", "a"),
            ("apart", "a b c>b"),
        ];
        let text: Vec<String> =
            cases.iter().map(|(what, graph)| format!("# {what}\n{}", drawn(graph))).collect();
        insta::assert_snapshot!(text.join("\n"));
    }
}
