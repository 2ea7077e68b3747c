//! Owns the people who edit clusters and their standing tasks while nodes work, and those who delete a cluster.

use std::sync::Arc;
use std::time::Duration;

use downbeat_core::backend::Catalogue;
use downbeat_core::cluster::{ClusterRecord, OnRegister};
use downbeat_core::ids::{ClusterId, NodeId, TaskId};
use downbeat_core::standing::edit::{self, Edited, Settings};
use downbeat_core::standing::{RerunScope, TaskFields, read};
use downbeat_core::{Dice, Timestamp};
use downbeat_server::{Class, Error, Service};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::{SIM, ask, submit};
use crate::cluster::{Cluster, Shape, Which};
use crate::jobs::standing_task;
use crate::world::World;

/// The longest list: few tasks, so that nodes finish it now and then.
const TASKS: usize = 6;

/// Who edits what in a seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct People {
    /// Somebody edits the standing tasks of `default`.
    edits_default: bool,
    has_second: bool,
    edits_second: bool,
    /// Somebody submits a run in the second cluster.
    submits: bool,
    /// Somebody deletes the second cluster while its nodes work.
    deletes: bool,
}

impl People {
    pub(crate) fn draw(world: &World, shape: Shape) -> Self {
        let has_second = shape.others > 0;
        Self {
            edits_default: world.below(2) == 0,
            has_second,
            edits_second: has_second && world.below(4) > 0,
            submits: has_second && world.below(2) == 0,
            deletes: has_second && world.below(3) == 0,
        }
    }
}

/// Starts them all. They finish within this time, or as soon as servers respond.
pub(crate) fn start(cluster: &Arc<Cluster>, people: People, within: Duration) -> Vec<JoinHandle<()>> {
    let mut all = Vec::new();
    if people.edits_default {
        all.push(tokio::spawn(edit_list(cluster.clone(), Which::Default, within)));
    }
    if people.has_second {
        all.push(tokio::spawn(keep_second(cluster.clone(), people, within)));
    }
    all
}

async fn keep_second(cluster: Arc<Cluster>, people: People, within: Duration) {
    let begun = Instant::now();
    let world = cluster.world.clone();
    let id = create(&cluster).await;
    let left = within.saturating_sub(begun.elapsed());
    let mut others = Vec::new();
    if people.edits_second {
        others.push(tokio::spawn(edit_list(cluster.clone(), Which::Second, left)));
    }
    if people.submits {
        others.push(tokio::spawn(submit(cluster.clone(), Which::Second, 100, left / 2, false)));
    }
    if people.deletes {
        tokio::time::sleep(left / 3 + world.up_to(left / 2)).await;
        delete(&cluster, id).await;
    }
    for other in others {
        other.await.expect("a client does not panic");
    }
}

/// Creates the second cluster, with retries until a server responds.
async fn create(cluster: &Cluster) -> ClusterId {
    let world = &cluster.world;
    loop {
        let on_register = if world.below(2) == 0 { OnRegister::Reset } else { OnRegister::Resume };
        let settings = Settings {
            name: Some(Which::Second.name().to_owned()),
            on_register: Some(on_register),
            ..Settings::default()
        };
        let created = |service: Service| async move {
            match service.create_cluster(&SIM, settings).await {
                // An earlier attempt succeeded.
                Err(error) if error.class() != Class::Unavailable => {
                    service.cluster_record(&SIM, Which::Second.name()).await
                }
                answer => answer,
            }
        };
        match ask(cluster, created).await {
            Some(Ok(second)) => {
                world.log(format_args!("cluster {} is {}, {:?}", second.name, second.id, second.on_register));
                cluster.is_created(second.id);
                return second.id;
            }
            Some(Err(error)) => world.log(format_args!("the second cluster is not created: {error}")),
            None => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn delete(cluster: &Cluster, id: ClusterId) {
    let world = &cluster.world;
    world.log(format_args!("cluster {id} will be deleted"));
    cluster.is_deleted();
    loop {
        let deleted = |service: Service| async move {
            let record = service.cluster_record(&SIM, &id.to_string()).await?;
            service.delete_cluster(&SIM, &record).await
        };
        match ask(cluster, deleted).await {
            Some(Ok(())) => return,
            // It is gone: an earlier attempt succeeded.
            Some(Err(error)) if error.class() == Class::NotFound => return,
            Some(Err(error)) => world.log(format_args!("cluster {id} is not deleted: {error}")),
            None => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// One edit of a list. Positions are reduced to what the list has when it is applied.
#[derive(Clone, Debug)]
enum Edit {
    Add { task: TaskFields, position: usize },
    Update { at: usize, task: TaskFields },
    Delete { at: usize },
    Reorder { by: usize },
    Apply { tasks: Vec<TaskFields> },
    Rerun { at: usize, scope: RerunScope },
    Reset { agent: usize },
    OnRegister(OnRegister),
}

async fn edit_list(cluster: Arc<Cluster>, which: Which, within: Duration) {
    let world = cluster.world.clone();
    let Some(id) = cluster.id_of(which) else { return };
    let until = Instant::now() + within;
    let pause = Duration::from_secs(1) + world.up_to(Duration::from_secs(15));
    tokio::time::sleep(world.up_to(within / 4)).await;
    for number in 0.. {
        if Instant::now() >= until || cluster.may_be_deleted(which) {
            return;
        }
        let edit = draw(&cluster, which, number);
        let ids: Vec<TaskId> = (0..TASKS).map(|_| TaskId(world.draw(Dice::uuid))).collect();
        let edited = |service: Service| {
            let (edit, ids) = (edit.clone(), ids.clone());
            async move { carry_out(&service, id, edit, ids).await }
        };
        let answer = ask(&cluster, edited).await.map(|answer| answer.map_err(|error| error.to_string()));
        world.log(format_args!("{} of {}: {answer:?}", shown(&edit), which.name()));
        tokio::time::sleep(world.up_to(pause)).await;
    }
}

fn draw(cluster: &Cluster, which: Which, number: u32) -> Edit {
    let world = &cluster.world;
    let at = world.index(TASKS);
    // A list begins with some tasks.
    let kind = if number < 2 { 0 } else { world.below(12) };
    let task = |name: String| world.draw(|dice| fields(&name, dice));
    match kind {
        0..=2 => Edit::Add { task: task(format!("t{number}")), position: at },
        3 => Edit::Update { at, task: task(format!("u{number}")) },
        4 => Edit::Delete { at },
        5 | 6 => Edit::Reorder { by: 1 + at },
        7 => {
            let names = (0..=world.index(4)).map(|index| format!("t{index}"));
            Edit::Apply { tasks: names.map(task).collect() }
        }
        8 => Edit::Rerun { at, scope: RerunScope::All },
        9 => {
            let agent = any_agent(cluster, which);
            let node = cluster.node(agent).filter(|_| world.below(2) == 0);
            Edit::Rerun { at, scope: node.map_or(RerunScope::Failed, |node| RerunScope::Node { node }) }
        }
        10 => Edit::Reset { agent: any_agent(cluster, which) },
        _ => Edit::OnRegister(if world.below(2) == 0 { OnRegister::Reset } else { OnRegister::Resume }),
    }
}

fn any_agent(cluster: &Cluster, which: Which) -> usize {
    match which {
        Which::Default => cluster.world.index(cluster.shape.agents),
        Which::Second => cluster.shape.agents + cluster.world.index(cluster.shape.others),
    }
}

fn fields(name: &str, dice: &mut Dice) -> TaskFields {
    let task = standing_task(name, dice);
    read::task_of_json(&task, &Catalogue::builtin())
        .unwrap_or_else(|problems| panic!("a random standing task is invalid: {problems:?} in {task:#}"))
}

fn shown(edit: &Edit) -> String {
    match edit {
        Edit::Add { task, position } => format!("add {} at {position}", task.name),
        Edit::Update { at, task } => format!("update {at} to {}", task.name),
        Edit::Apply { tasks } => format!("apply {} tasks", tasks.len()),
        other => format!("{other:?}"),
    }
}

/// Carries out an edit; `ids` are for new tasks. Returns the version of the cluster after it, if that is known.
async fn carry_out(
    service: &Service,
    id: ClusterId,
    edit: Edit,
    ids: Vec<TaskId>,
) -> Result<Option<u64>, Error> {
    let edited = match edit {
        Edit::Rerun { at, scope } => {
            let record = service.cluster_record(&SIM, &id.to_string()).await?;
            if let Some(task) = record.list.tasks.get(at % record.list.tasks.len().max(1)) {
                service.rerun(&SIM, id, task.id, &[scope]).await?;
            }
            return Ok(None);
        }
        Edit::Reset { agent } => {
            let node = NodeId::derive(id, &format!("n{agent}"));
            return Ok(Some(service.reset_node(&SIM, id, node).await?.version));
        }
        edit => edit,
    };
    let apply = move |cluster: &ClusterRecord, now: Timestamp| -> Result<(Vec<Edited>, ()), Error> {
        let tasks = &cluster.list.tasks;
        let length = tasks.len();
        let at = |at: usize| tasks[at % length].id;
        let next = match &edited {
            Edit::Add { task, position } if length < TASKS => {
                let position = 1 + position % (length + 1);
                Some(edit::add(cluster, ids[0], task.clone(), Some(position), now)?)
            }
            Edit::Update { at: of, task } if length > 0 => {
                Some(edit::update(cluster, at(*of), task.clone(), now)?)
            }
            Edit::Delete { at: of } if length > 0 => Some(edit::delete(cluster, at(*of), now)?),
            Edit::Reorder { by } if length > 1 => {
                let mut order: Vec<TaskId> = tasks.iter().map(|task| task.id).collect();
                order.rotate_left(by % length);
                Some(edit::reorder(cluster, &order, now)?)
            }
            Edit::Apply { tasks } => {
                let mut new_ids = ids.iter().copied();
                let new_id = || new_ids.next().expect("a list has fewer tasks");
                edit::apply(cluster, tasks.clone(), new_id, now)?.0
            }
            Edit::OnRegister(on_register) => {
                let settings = Settings { on_register: Some(*on_register), ..Settings::default() };
                Some(edit::settings(cluster, settings, now)?)
            }
            _ => None,
        };
        Ok((next.into_iter().collect(), ()))
    };
    Ok(Some(service.edit_cluster(&SIM, id, apply).await?.0.version))
}
