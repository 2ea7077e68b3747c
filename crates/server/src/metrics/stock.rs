//! Updates the figures that are read off the server's state when somebody asks for them.

use crate::parts::Parts;

/// Brings these figures up to date.
pub(crate) async fn take_stock(parts: &Parts) {
    let metrics = &parts.metrics;
    {
        let board = parts.dispatcher.board();
        metrics.set_queue_depth(board.waiting() as u64);
        metrics.set_parked(board.parked() as u64);
        metrics.set_nodes(board.nodes().map(|node| node.status));
        let named = board.nodes().map(|node| (node.id, node.description.hostname.clone()));
        metrics.name_nodes(named.collect());
        metrics.set_held_nodes(board.held_nodes() as u64);
    }
    metrics.set_runs_waiting(parts.admission.waiting() as u64);
    if let Some(replica) = &parts.replica {
        metrics.set_replica(&replica.lag(parts.clock.now()));
    }
    // Read first: events that are published in between must not look like a negative lag.
    let published = parts.feed.last_seq();
    if let Ok(committed) = parts.store.last_seq().await {
        metrics.set_feed_lag(committed.saturating_sub(published));
    }
}
