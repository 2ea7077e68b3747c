use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::span::Span;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn id(number: u128) -> TaskId {
    TaskId(Uuid::from_u128(number))
}

fn node(number: u128) -> NodeId {
    NodeId(Uuid::from_u128(number))
}

fn cluster() -> ClusterRecord {
    ClusterRecord::new(ClusterId(Uuid::from_u128(9)), "web".to_owned(), String::new(), at(0))
}

/// Returns a cluster whose tasks have these letters as names, and the ids 1, 2, …
fn cluster_of(names: &str) -> ClusterRecord {
    names.chars().zip(1..).fold(cluster(), |cluster, (name, number)| {
        add(&cluster, id(number), TaskFields::shell(name, "true"), None, at(0)).unwrap().cluster
    })
}

fn names(cluster: &ClusterRecord) -> String {
    cluster.list.tasks.iter().map(|task| task.name.as_str()).collect()
}

fn nothing(_: NodeId, _: Timestamp) -> bool {
    false
}

#[test]
fn a_task_is_added_at_the_end_or_at_its_position() {
    let cases: [(Option<usize>, std::result::Result<&str, EditError>); 6] = [
        (None, Ok("abx")),
        (Some(1), Ok("xab")),
        (Some(2), Ok("axb")),
        (Some(3), Ok("abx")),
        (Some(0), Err(EditError::Position { given: 0, most: 3 })),
        (Some(4), Err(EditError::Position { given: 4, most: 3 })),
    ];
    for (position, expected) in cases {
        let before = cluster_of("ab");
        let edited = add(&before, id(7), TaskFields::shell("x", "true"), position, at(5));
        match expected {
            Err(error) => assert_eq!(edited, Err(error)),
            Ok(expected) => {
                let Edited { cluster, edit } = edited.unwrap();
                assert_eq!(names(&cluster), expected, "{position:?}");
                assert_eq!(edit, ClusterEdit::TaskAdded { task: id(7) });
                assert_eq!((cluster.version, cluster.updated_at), (before.version + 1, at(5)));
            }
        }
    }
}

#[test]
fn names_of_tasks_are_unique_until_one_is_deleted() {
    let cluster = cluster_of("ab");
    let twice = add(&cluster, id(7), TaskFields::shell("a", "true"), None, at(1)).unwrap_err();
    assert_eq!(twice, EditError::NameInUse { name: "a".to_owned(), task: id(1) });
    let renamed = update(&cluster, id(2), TaskFields::shell("a", "true"), at(1)).unwrap_err();
    assert_eq!(renamed, EditError::NameInUse { name: "a".to_owned(), task: id(1) });
    let deleted = delete(&cluster, id(1), at(1)).unwrap().cluster;
    assert!(add(&deleted, id(7), TaskFields::shell("a", "true"), None, at(2)).is_ok());
}

#[test]
fn an_update_keeps_what_a_task_is_besides_its_fields() {
    let before = cluster_of("ab");
    let before = rerun(&before, id(1), RerunScope::All, nothing, at(3)).unwrap().cluster;
    let fields = TaskFields { timeout: Span::from_secs(60), ..TaskFields::shell("c", "false") };
    let Edited { cluster, edit } = update(&before, id(1), fields.clone(), at(5)).unwrap();
    let (former, task) = (&before.list.tasks[0], &cluster.list.tasks[0]);
    assert_eq!(edit, ClusterEdit::TaskUpdated { task: id(1) });
    assert_eq!(TaskFields::of(task), fields);
    assert_eq!((task.id, task.number, &task.reruns), (former.id, former.number, &former.reruns));
    assert_eq!((task.created_at, task.updated_at), (at(0), at(5)));
    let missing = update(&cluster, id(8), TaskFields::shell("x", "true"), at(5)).unwrap_err();
    assert_eq!(missing.to_string(), format!("cluster `web` has no task {}", id(8)));
}

#[test]
fn a_deleted_task_is_kept_and_the_gap_closes() {
    let Edited { cluster, edit } = delete(&cluster_of("abc"), id(2), at(4)).unwrap();
    assert_eq!((names(&cluster).as_str(), edit), ("ac", ClusterEdit::TaskDeleted { task: id(2) }));
    assert_eq!(cluster.list.deleted[0].deleted_at, Some(at(4)));
    assert_eq!(cluster.list.by_number(1).unwrap().name, "b");
    assert_eq!(
        delete(&cluster, id(2), at(5)).unwrap_err(),
        EditError::NoTask { task: id(2), cluster: "web".to_owned() }
    );
    let next = add(&cluster, id(7), TaskFields::shell("d", "true"), None, at(5)).unwrap().cluster;
    assert_eq!(next.list.tasks[2].number, 3, "a number is never used again");
}

#[test]
fn an_order_names_each_task_once_and_the_error_names_what_is_wrong() {
    let cluster = cluster_of("abc");
    let Edited { cluster: next, edit } = reorder(&cluster, &[id(3), id(1), id(2)], at(1)).unwrap();
    assert_eq!((names(&next).as_str(), edit), ("cab", ClusterEdit::TasksReordered));
    let wrong = reorder(&cluster, &[id(3), id(3), id(9)], at(1)).unwrap_err();
    assert_eq!(
        wrong.to_string(),
        format!(
            "the order must name every task of the list once; missing: {} (`a`), {} (`b`); not in the list: {}; twice: {}",
            id(1),
            id(2),
            id(9),
            id(3)
        )
    );
    assert_eq!(names(&reorder(&cluster_of(""), &[], at(1)).unwrap().cluster), "");
}

#[test]
fn a_file_replaces_the_list_and_tasks_of_equal_names_are_the_same() {
    let before = cluster_of("abc");
    let wanted = ["c", "x", "a"].map(|name| TaskFields::shell(name, "true")).to_vec();
    let (edited, changes) = apply(&before, wanted.clone(), || id(50), at(5)).unwrap();
    let Edited { cluster, edit } = edited.unwrap();
    assert_eq!((names(&cluster).as_str(), edit), ("cxa", ClusterEdit::TasksApplied));
    let ids: Vec<TaskId> = cluster.list.tasks.iter().map(|task| task.id).collect();
    assert_eq!(ids, [id(3), id(50), id(1)]);
    assert_eq!(cluster.list.tasks[0].updated_at, at(0), "a task that only moves is not updated");
    assert_eq!(cluster.list.deleted[0].name, "b");
    assert_eq!(changes.len(), 4);
    let (again, changes) = apply(&cluster, wanted, || id(51), at(6)).unwrap();
    assert_eq!(again, None, "a second time changes nothing");
    assert!(changes.iter().all(|change| change.kind == ChangeKind::Keep));
    let twice = ["x", "x"].map(|name| TaskFields::shell(name, "true")).to_vec();
    assert!(matches!(apply(&before, twice, || id(52), at(5)), Err(EditError::NameInUse { .. })));
}

#[test]
fn a_request_to_do_a_task_again_replaces_those_that_it_covers() {
    use RerunScope::{All, Failed, Node};
    let one = Node { node: node(1) };
    let other = Node { node: node(2) };
    let cases: [(&[RerunScope], &[RerunScope]); 6] = [
        (&[All, All], &[All]),
        (&[Failed, one, All], &[All]),
        (&[All, Failed], &[All, Failed]),
        (&[one, Failed], &[one, Failed]),
        (&[one, other, one], &[other, one]),
        (&[Failed, Failed], &[Failed]),
    ];
    for (scopes, expected) in cases {
        let cluster = scopes.iter().zip(1..).fold(cluster_of("a"), |cluster, (scope, second)| {
            rerun(&cluster, id(1), *scope, nothing, at(second)).unwrap().cluster
        });
        let left: Vec<RerunScope> = cluster.list.tasks[0].reruns.iter().map(|rerun| rerun.scope).collect();
        assert_eq!(left, expected, "{scopes:?}");
    }
}

#[test]
fn requests_without_effect_are_dropped() {
    let one = RerunScope::Node { node: node(1) };
    let cluster = rerun(&cluster_of("ab"), id(1), one, nothing, at(1)).unwrap().cluster;
    let cluster = reset_node(&cluster, node(2), nothing, at(2)).unwrap().cluster;
    assert_eq!(cluster.list.resets, BTreeMap::from([(node(2), at(2))]));
    let Edited { cluster: reset, edit } = reset_node(&cluster, node(1), nothing, at(3)).unwrap();
    assert_eq!(edit, ClusterEdit::NodeReset { node: node(1) });
    assert!(reset.list.tasks[0].reruns.is_empty(), "the reset of a node covers its reruns");
    assert_eq!(reset.list.resets.len(), 2);
    // Node 2 has registered since.
    let registered = |node_id, _| node_id == node(2);
    let cluster = rerun(&reset, id(2), RerunScope::Failed, registered, at(4)).unwrap().cluster;
    assert_eq!(cluster.list.resets, BTreeMap::from([(node(1), at(3))]));
    let cluster = reset_node(&cluster, node(2), registered, at(5)).unwrap().cluster;
    assert_eq!(cluster.list.resets[&node(2)], at(5), "a new reset stays");
}

#[test]
fn settings_are_checked_and_absent_ones_stay() {
    let named = |name: &str| Settings { name: Some(name.to_owned()), ..Settings::default() };
    let next = settings(&cluster(), named("db"), at(1)).unwrap();
    assert_eq!((next.cluster.name.as_str(), next.edit), ("db", ClusterEdit::Settings));
    assert_eq!(next.cluster.on_register, OnRegister::Reset);
    let resume = Settings { on_register: Some(OnRegister::Resume), ..Settings::default() };
    let next = settings(&cluster(), resume, at(1)).unwrap().cluster;
    assert_eq!((next.name.as_str(), next.on_register), ("web", OnRegister::Resume));
    assert_eq!(settings(&cluster(), named("a:b"), at(1)), Err(BadName::Character(':').into()));
    let long = "d".repeat(limits::CLUSTER_DESCRIPTION_BYTES + 1);
    let described = Settings { description: Some(long.clone()), ..Settings::default() };
    assert_eq!(settings(&cluster(), described, at(1)), Err(EditError::Description(long.len())));
    let default = ClusterRecord::default_cluster();
    assert_eq!(settings(&default, named("x"), at(1)), Err(EditError::DefaultName));
    assert!(settings(&default, named("default"), at(1)).is_ok());
    assert_eq!(create(cluster().id, named(""), at(1)), Err(BadName::Empty.into()));
    assert_eq!(create(cluster().id, named("web"), at(0)).unwrap(), cluster());
}

#[test]
fn a_list_has_bounds_and_deleted_tasks_make_room() {
    let large = || TaskFields::shell("large", "x".repeat(limits::STANDING_LIST_BYTES * 2 / 3));
    let cluster = add(&cluster(), id(1), large(), None, at(0)).unwrap().cluster;
    let second = TaskFields { name: "second".to_owned(), ..large() };
    let beyond = add(&cluster, id(2), second.clone(), None, at(1)).unwrap_err();
    assert!(matches!(beyond, EditError::TooLarge(_)), "{beyond}");
    let cluster = delete(&cluster, id(1), at(1)).unwrap().cluster;
    assert_eq!(cluster.list.deleted.len(), 1);
    let cluster = add(&cluster, id(2), second, None, at(2)).unwrap().cluster;
    assert_eq!(cluster.list.deleted.len(), 0);
    let many: Vec<TaskFields> =
        (0..=limits::STANDING_TASKS).map(|number| TaskFields::shell(number.to_string(), "x")).collect();
    let mut number = 100;
    let new_id = || {
        number += 1;
        id(number)
    };
    assert_eq!(apply(&cluster, many, new_id, at(3)), Err(EditError::TooMany(limits::STANDING_TASKS + 1)));
}

#[derive(Clone, Debug)]
enum Edit {
    Add { name: u8, position: Option<usize> },
    Update { task: usize, name: u8 },
    Delete { task: usize },
    Rotate { by: usize },
    Apply { names: Vec<u8> },
    Rerun { task: usize, node: Option<u8> },
    Reset { node: u8 },
}

fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (0..12_u8, prop::option::of(0..12_usize)).prop_map(|(name, position)| Edit::Add { name, position }),
        2 => (0..12_usize, 0..12_u8).prop_map(|(task, name)| Edit::Update { task, name }),
        2 => (0..12_usize).prop_map(|task| Edit::Delete { task }),
        1 => (0..12_usize).prop_map(|by| Edit::Rotate { by }),
        1 => prop::collection::vec(0..12_u8, 0..6).prop_map(|names| Edit::Apply { names }),
        1 => (0..12_usize, prop::option::of(0..3_u8)).prop_map(|(task, node)| Edit::Rerun { task, node }),
        1 => (0..3_u8).prop_map(|node| Edit::Reset { node }),
    ];
    prop::collection::vec(edit, 0..60)
}

proptest! {
    #[test]
    fn any_sequence_of_edits_keeps_numbers_and_ids_unique(edits in edits()) {
        let mut cluster = cluster();
        let mut next = 1000;
        // Every number that a task ever had, with its task.
        let mut owners: BTreeMap<u32, TaskId> = BTreeMap::new();
        for (edit, second) in edits.into_iter().zip(1..) {
            let at = at(second);
            let task = |place: usize| cluster.list.tasks.get(place).map_or(id(1), |task| task.id);
            let mut new_id = || { next += 1; id(next) };
            let fields = |name: u8| TaskFields::shell(name.to_string(), second.to_string());
            let edited = match edit {
                Edit::Add { name, position } => add(&cluster, new_id(), fields(name), position, at),
                Edit::Update { task: place, name } => update(&cluster, task(place), fields(name), at),
                Edit::Delete { task: place } => delete(&cluster, task(place), at),
                Edit::Rotate { by } => {
                    let mut order: Vec<TaskId> = cluster.list.tasks.iter().map(|task| task.id).collect();
                    let by = by % order.len().max(1);
                    order.rotate_left(by);
                    reorder(&cluster, &order, at)
                }
                Edit::Apply { names } => {
                    let wanted = names.into_iter().map(fields).collect();
                    match apply(&cluster, wanted, new_id, at) {
                        Ok((Some(edited), _)) => Ok(edited),
                        Ok((None, _)) => continue,
                        Err(error) => Err(error),
                    }
                }
                Edit::Rerun { task: place, node: of } => {
                    let scope = of.map_or(RerunScope::All, |of| RerunScope::Node { node: node(of.into()) });
                    rerun(&cluster, task(place), scope, nothing, at)
                }
                Edit::Reset { node: of } => reset_node(&cluster, node(of.into()), nothing, at),
            };
            let Ok(Edited { cluster: edited, .. }) = edited else { continue };
            prop_assert_eq!(edited.version, cluster.version + 1);
            cluster = edited;
            let list = &cluster.list;
            let all = || list.tasks.iter().chain(&list.deleted);
            let numbers: BTreeSet<u32> = all().map(|task| task.number).collect();
            let ids: BTreeSet<TaskId> = all().map(|task| task.id).collect();
            let names: BTreeSet<&str> = list.tasks.iter().map(|task| task.name.as_str()).collect();
            prop_assert_eq!(numbers.len(), all().count());
            prop_assert_eq!(ids.len(), all().count());
            prop_assert_eq!(names.len(), list.tasks.len());
            prop_assert!(numbers.iter().all(|number| *number < list.next_number));
            for task in all() {
                prop_assert_eq!(*owners.entry(task.number).or_insert(task.id), task.id);
                prop_assert_eq!(task.deleted_at.is_some(), list.by_id(task.id).is_none());
                prop_assert!(task.reruns.len() <= 4);
            }
        }
    }
}

#[test]
fn an_edit_that_changes_nothing_is_known() {
    let before = cluster_of("ab");
    let same = Settings { name: Some("web".to_owned()), ..Settings::default() };
    let other = Settings { description: Some("other".to_owned()), ..Settings::default() };
    let cases = [
        (settings(&before, Settings::default(), at(5)), false),
        (settings(&before, same, at(5)), false),
        (settings(&before, other, at(5)), true),
        (update(&before, id(1), TaskFields::shell("a", "true"), at(5)), false),
        (update(&before, id(1), TaskFields::shell("a", "false"), at(5)), true),
        (reorder(&before, &[id(1), id(2)], at(5)), false),
        (reorder(&before, &[id(2), id(1)], at(5)), true),
        (rerun(&before, id(1), RerunScope::All, nothing, at(5)), true),
        (reset_node(&before, node(1), nothing, at(5)), true),
        (delete(&before, id(1), at(5)), true),
    ];
    for (place, (edited, is_change)) in cases.into_iter().enumerate() {
        assert_eq!(edited.unwrap().is_change(&before), is_change, "case {place}");
    }
}

#[test]
fn requests_that_have_been_met_are_dropped() {
    let asked = |cluster: &ClusterRecord, number, of, second| {
        rerun(cluster, id(number), RerunScope::Node { node: node(of) }, nothing, at(second)).unwrap().cluster
    };
    let cluster = asked(&asked(&asked(&cluster_of("ab"), 1, 1, 1), 1, 2, 2), 2, 1, 3);
    let cluster = rerun(&cluster, id(2), RerunScope::Failed, nothing, at(4)).unwrap().cluster;
    // Node 1 has done the first task at second 1, and the second one before it was asked to.
    let left = without_met(&cluster, |of, number, since| of == node(1) && number == 0 && since <= at(1));
    let reruns = |place: usize| -> Vec<RerunScope> {
        left.list.tasks[place].reruns.iter().map(|rerun| rerun.scope).collect()
    };
    assert_eq!(reruns(0), [RerunScope::Node { node: node(2) }]);
    assert_eq!(reruns(1), [RerunScope::Node { node: node(1) }, RerunScope::Failed]);
    assert_eq!(left.version, cluster.version, "it is the same version until it is edited");
}

#[test]
fn resets_that_have_been_met_are_dropped() {
    let reset = |cluster: &ClusterRecord, of, second| {
        reset_node(cluster, node(of), nothing, at(second)).unwrap().cluster
    };
    let cluster = reset(&reset(&cluster_of("ab"), 1, 1), 2, 2);
    let left = without_met_resets(&cluster, |of, since| of == node(1) && since == at(1));
    assert_eq!(left.list.resets, BTreeMap::from([(node(2), at(2))]));
}
