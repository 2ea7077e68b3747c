//! Cases about deliveries of messages.

use std::sync::Arc;

use downbeat_core::change::{Change, Refusal};
use downbeat_core::delivery::{Delivery, DeliveryState, DeliveryStatus, LastTry, Message};
use downbeat_core::ids::{ClusterId, DeliveryId, RunId};
use downbeat_core::run::{RunMade, RunState};
use downbeat_core::{Span, limits};

use super::copies::{copy, dump};
use super::make::*;
use crate::port::{DeliveryFilter, DeliveryKey, DueKey, Store};

pub fn delivery_in(cluster: ClusterId, run: &RunId, number: u32) -> Delivery {
    let url = "https://hooks.example/x".to_owned();
    let (body, timeout) = (r#"{"a":1}"#.to_owned(), Span::from_secs(10));
    Delivery {
        id: DeliveryId::derive(cluster, run, &number.to_string()),
        cluster,
        run: run.clone(),
        job: Some(Arc::from("deploy")),
        event: "failed".to_owned(),
        message: Arc::new(Message::Webhook { url, body, secret: None, timeout }),
        created_at: at(i64::from(number)),
        tries: 0,
        state: DeliveryState::Pending { due_at: at(i64::from(number)) },
        last: None,
    }
}

pub fn delivery(run: u32, number: u32) -> Delivery {
    delivery_in(ClusterId::DEFAULT, &run_id(run), number)
}

pub fn queued(run: u32, number: u32) -> Change {
    Change::DeliveryQueued { delivery: delivery(run, number), epoch: 1 }
}

pub fn taken(run: u32, number: u32, attempt: u32, second: i64, until: i64) -> Change {
    let (run, delivery) = (run_id(run), delivery(run, number).id);
    Change::DeliveryTaken { run, delivery, attempt, until: at(until), at: at(second) }
}

pub fn tried(run: u32, number: u32, attempt: u32, state: DeliveryState) -> Change {
    let error = (state.status() != DeliveryStatus::Delivered).then(|| "no answer".to_owned());
    let (run, delivery) = (run_id(run), delivery(run, number).id);
    Change::DeliveryTried { run, delivery, attempt, code: Some(503), error, state, at: at(50) }
}

fn requested(run: u32, number: u32, second: i64) -> Change {
    let (run, delivery, by) = (run_id(run), delivery(run, number).id, "ada".to_owned());
    Change::DeliveryRequested { run, delivery, by, at: at(second) }
}

async fn read(store: &Arc<dyn Store>, run: u32, number: u32) -> Option<Delivery> {
    store.delivery(delivery(run, number).id).await.unwrap()
}

pub async fn a_delivery_is_queued_once_and_read_back_whole(store: Arc<dyn Store>) {
    refuse(&store, queued(1, 1), Refusal::NotFound).await;
    apply(&store, &[created(1)]).await;
    let stale = Change::DeliveryQueued { delivery: delivery(1, 1), epoch: 2 };
    refuse(&store, stale, Refusal::StaleEpoch).await;
    apply(&store, &[queued(1, 1), queued(1, 2)]).await;
    refuse(&store, queued(1, 1), Refusal::WrongState).await;
    assert_eq!(read(&store, 1, 1).await, Some(delivery(1, 1)));
    assert_eq!(read(&store, 1, 3).await, None);
}

pub async fn a_run_and_its_delivery_are_created_together(store: Arc<dyn Store>) {
    apply(&store, &[queued(1, 1), created(1)]).await;
    assert_eq!(read(&store, 1, 1).await, Some(delivery(1, 1)));
}

pub async fn a_due_delivery_is_taken_by_one_server(store: Arc<dyn Store>) {
    apply(&store, &[created(1), queued(1, 10)]).await;
    refuse(&store, taken(1, 10, 1, 9, 40), Refusal::WrongState).await;
    refuse(&store, taken(1, 10, 2, 11, 40), Refusal::WrongState).await;
    refuse(&store, tried(1, 10, 1, DeliveryState::Delivered { at: at(50) }), Refusal::WrongState).await;
    apply(&store, &[taken(1, 10, 1, 10, 40)]).await;
    refuse(&store, taken(1, 10, 1, 11, 40), Refusal::WrongState).await;
    refuse(&store, taken(1, 10, 2, 39, 60), Refusal::WrongState).await;
    // Its server reported nothing.
    apply(&store, &[taken(1, 10, 2, 40, 70)]).await;
    refuse(&store, tried(1, 10, 1, DeliveryState::Delivered { at: at(50) }), Refusal::WrongState).await;
    apply(&store, &[tried(1, 10, 2, DeliveryState::Pending { due_at: at(90) })]).await;
    let last = Some(LastTry { at: at(50), code: Some(503), error: Some("no answer".to_owned()) });
    let state = DeliveryState::Pending { due_at: at(90) };
    assert_eq!(read(&store, 1, 10).await, Some(Delivery { tries: 2, state, last, ..delivery(1, 10) }));
}

pub async fn an_ended_delivery_is_tried_again_only_on_request(store: Arc<dyn Store>) {
    apply(&store, &[created(1), queued(1, 10), queued(1, 11)]).await;
    refuse(&store, requested(1, 10, 12), Refusal::WrongState).await;
    refuse(&store, requested(1, 12, 12), Refusal::NotFound).await;
    apply(&store, &[taken(1, 10, 1, 11, 40), taken(1, 11, 1, 11, 40)]).await;
    apply(&store, &[tried(1, 10, 1, DeliveryState::Delivered { at: at(50) })]).await;
    apply(&store, &[tried(1, 11, 1, DeliveryState::Failed { at: at(50) })]).await;
    refuse(&store, taken(1, 10, 2, 60, 70), Refusal::WrongState).await;
    assert_eq!(store.due_deliveries(None, 9).await.unwrap(), []);
    apply(&store, &[requested(1, 10, 60), requested(1, 11, 61)]).await;
    let due = store.due_deliveries(None, 9).await.unwrap();
    assert_eq!(
        due.iter().map(|each| (each.id, each.tries)).collect::<Vec<_>>(),
        [(delivery(1, 10).id, 0), (delivery(1, 11).id, 0)]
    );
    apply(&store, &[taken(1, 10, 1, 62, 70)]).await;
}

pub async fn due_deliveries_are_read_in_order(store: Arc<dyn Store>) {
    apply(&store, &[created(1), queued(1, 30), queued(1, 10), queued(1, 20)]).await;
    let seconds = |found: Vec<Delivery>| -> Vec<_> { found.iter().map(|each| each.created_at).collect() };
    assert_eq!(seconds(store.due_deliveries(None, 9).await.unwrap()), [at(10), at(20), at(30)]);
    let first = store.due_deliveries(None, 1).await.unwrap();
    let after = DueKey::of(&first[0]);
    assert_eq!(seconds(store.due_deliveries(after, 1).await.unwrap()), [at(20)]);
    apply(&store, &[taken(1, 10, 1, 12, 25)]).await;
    assert_eq!(seconds(store.due_deliveries(None, 9).await.unwrap()), [at(20), at(10), at(30)]);
}

pub async fn deliveries_are_listed_newest_first_by_filter(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), queued(1, 10), queued(2, 20), queued(1, 30)]).await;
    apply(&store, &[taken(1, 10, 1, 12, 25), tried(1, 10, 1, DeliveryState::Delivered { at: at(50) })]).await;
    let all = DeliveryFilter::default();
    for (filter, expected) in [
        (all.clone(), vec![30, 20, 10]),
        (DeliveryFilter { run: Some(run_id(1)), ..all.clone() }, vec![30, 10]),
        (DeliveryFilter { job: Some("deploy".to_owned()), ..all.clone() }, vec![30, 20, 10]),
        (DeliveryFilter { job: Some("other".to_owned()), ..all.clone() }, vec![]),
        (DeliveryFilter { status: Some(DeliveryStatus::Pending), ..all.clone() }, vec![30, 20]),
        (DeliveryFilter { status: Some(DeliveryStatus::Delivered), ..all.clone() }, vec![10]),
        (DeliveryFilter { status: Some(DeliveryStatus::Failed), ..all.clone() }, vec![]),
        (DeliveryFilter { cluster: Some(ClusterId::DEFAULT), ..all.clone() }, vec![30, 20, 10]),
        (DeliveryFilter { cluster: Some(cluster_id(1)), ..all.clone() }, vec![]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(at).collect();
        let found = store.deliveries(&filter, None, 9).await.unwrap();
        assert_eq!(found.iter().map(|each| each.created_at).collect::<Vec<_>>(), expected, "{filter:?}");
        let mut after = None;
        for at in expected {
            let page = store.deliveries(&filter, after, 1).await.unwrap();
            assert_eq!(page[0].created_at, at, "{filter:?}");
            after = Some(DeliveryKey::of(&page[0]));
        }
        assert_eq!(
            store.deliveries(&filter, after, 9).await.unwrap().len(),
            found.len() * usize::from(after.is_none())
        );
    }
}

pub async fn deliveries_go_with_their_run(store: Arc<dyn Store>) {
    apply(&store, &[created(1), created(2), queued(1, 10), queued(2, 20)]).await;
    apply(&store, &[moved(1, &[RunState::Failed], 40)]).await;
    assert_eq!(store.prune(at(50), 10).await.unwrap(), 1);
    assert_eq!(read(&store, 1, 10).await, None);
    assert_eq!(read(&store, 2, 20).await, Some(delivery(2, 20)));
    refuse(&store, taken(1, 10, 1, 60, 70), Refusal::NotFound).await;
}

pub async fn the_newest_deliveries_of_a_cluster_are_kept(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1), created(1)]).await;
    let other = made_as(RunMade { cluster: cluster_id(1), ..made(2) });
    let delivery = delivery_in(cluster_id(1), &run_id(2), 1);
    apply(&store, &[created_as(other), Change::DeliveryQueued { delivery: delivery.clone(), epoch: 1 }])
        .await;
    let most = limits::DELIVERIES;
    let changes: Vec<Change> = (1..=most + 3).map(|number| queued(1, number)).collect();
    for some in changes.chunks(2_000) {
        apply(&store, some).await;
    }
    let filter = DeliveryFilter { cluster: Some(ClusterId::DEFAULT), ..DeliveryFilter::default() };
    let kept = store.deliveries(&filter, None, most + 9).await.unwrap();
    assert_eq!(kept.len(), most as usize);
    assert_eq!(kept.last().map(|last| last.created_at), Some(at(4)));
    assert_eq!(store.delivery(delivery.id).await.unwrap(), Some(delivery));
}

pub async fn a_delivery_needs_its_cluster_and_goes_with_it(store: Arc<dyn Store>) {
    apply(&store, &[cluster_created(1)]).await;
    apply(&store, &[created_as(made_as(RunMade { cluster: cluster_id(1), ..made(1) }))]).await;
    let delivery = delivery_in(cluster_id(1), &run_id(1), 1);
    let queue = |delivery: &Delivery| Change::DeliveryQueued { delivery: delivery.clone(), epoch: 1 };
    apply(&store, &[queue(&delivery)]).await;
    apply(&store, &[cluster_deleted(1)]).await;
    refuse(&store, queue(&delivery_in(cluster_id(1), &run_id(1), 2)), Refusal::NotFound).await;
    assert_eq!(store.due_deliveries(None, 9).await.unwrap(), []);
    while store.remove_cluster(cluster_id(1), 3).await.unwrap() > 0 {}
    assert_eq!(store.delivery(delivery.id).await.unwrap(), None);
}

pub async fn deliveries_are_part_of_a_copy(store: Arc<dyn Store>) {
    apply(&store, &[created(1), queued(1, 10), queued(1, 20), taken(1, 10, 1, 12, 25)]).await;
    apply(&store, &[tried(1, 10, 1, DeliveryState::Failed { at: at(50) })]).await;
    let copy = copy(&store).await;
    assert_eq!(dump(&copy).await, dump(&store).await);
    let all = DeliveryFilter::default();
    let read = async |store: &Arc<dyn Store>| store.deliveries(&all, None, 9).await.unwrap();
    let copy: Arc<dyn Store> = copy;
    assert_eq!(read(&copy).await, read(&store).await);
}
