//! Owns how deliveries look.

use downbeat_api::Delivery;
use downbeat_core::delivery::DeliveryStatus;
use jiff::Timestamp;

use super::table::{Cell, Table, Tone, facts_within, or_dash};
use super::time::{age, second};

fn status(delivery: &Delivery) -> Cell {
    let tone = match delivery.status {
        DeliveryStatus::Pending => Tone::Busy,
        DeliveryStatus::Delivered => Tone::Good,
        DeliveryStatus::Failed => Tone::Bad,
    };
    Cell::new(delivery.status.as_str(), tone)
}

pub(crate) fn delivery_table(deliveries: &[Delivery], now: Timestamp, width: Option<usize>) -> String {
    if deliveries.is_empty() {
        return "no deliveries".to_owned();
    }
    let columns = ["DELIVERY", "STATUS", "ACTION", "TO", "JOB", "EVENT", "TRIES", "CREATED", "ERROR"];
    let mut table = Table::new(columns).may_cut("ERROR", 20);
    for delivery in deliveries {
        table.row([
            delivery.id.to_string().into(),
            status(delivery),
            delivery.action.as_str().into(),
            delivery.destination.as_str().into(),
            or_dash(delivery.job.clone().unwrap_or_default()),
            delivery.event.as_str().into(),
            delivery.tries.to_string().into(),
            format!("{} ago", age(delivery.created_at, now)).into(),
            or_dash(delivery.error.clone().unwrap_or_default()),
        ]);
    }
    table.draw(width)
}

pub(crate) fn delivery_page(delivery: &Delivery, now: Timestamp, width: Option<usize>) -> String {
    let at = |time: Timestamp| format!("{} ({} ago)", second(time), age(time, now));
    let mut facts: Vec<(&str, Cell)> = vec![
        ("delivery", delivery.id.to_string().into()),
        ("status", status(delivery)),
        ("action", delivery.action.as_str().into()),
        ("to", delivery.destination.as_str().into()),
        ("event", delivery.event.as_str().into()),
        ("run", delivery.run.as_str().into()),
        ("tries", delivery.tries.to_string().into()),
        ("created", at(delivery.created_at).into()),
    ];
    if let Some(due) = delivery.due_at {
        facts.push(("due", second(due).into()));
    }
    if let Some(tried) = delivery.tried_at {
        facts.push(("last try", at(tried).into()));
    }
    if let Some(code) = delivery.code {
        facts.push(("answer", code.to_string().into()));
    }
    if let Some(error) = &delivery.error {
        facts.push(("error", Cell::new(error.as_str(), Tone::Bad)));
    }
    let mut text = facts_within(&facts, width);
    if let Some(body) = &delivery.body {
        text.push_str(&format!("\n\n{body}"));
    }
    text
}
