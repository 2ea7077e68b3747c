//! Updates the metrics that are read from the server's state on request.

use super::Figure;
use crate::parts::Parts;

pub(crate) async fn update(parts: &Parts) {
    let metrics = &parts.metrics;
    {
        let board = parts.dispatcher.board();
        metrics.set(Figure::QueueDepth, board.waiting() as u64);
        metrics.set(Figure::PollsParked, board.parked() as u64);
        metrics.set_nodes(board.nodes().map(|node| node.status));
        let named = board.nodes().map(|node| (node.id, node.description.hostname.clone()));
        metrics.name_nodes(named.collect());
        metrics.set(Figure::NodesHeld, board.held_nodes() as u64);
    }
    metrics.set(Figure::RunsWaiting, parts.admission.waiting() as u64);
    if let Some(replica) = &parts.replica {
        metrics.set_replica(&replica.lag(parts.clock.now()));
    }
    // Read first: events that are published in between must not look like a negative lag.
    let published = parts.feed.last_seq();
    if let Ok(committed) = parts.store.last_seq().await {
        metrics.set(Figure::FeedLag, committed.saturating_sub(published));
    }
}
