//! The three lanes.

use downbeat_proto::message::{Free, WorkKind};

use crate::fake::{Server, held, noop, shell, start, unique};

#[tokio::test]
async fn fleet_work_runs_one_at_a_time_in_the_order_of_its_arrival() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let log = data.path().join("log");
    let numbers: Vec<u128> = (0..5).map(|_| unique()).collect();
    server.give(numbers.iter().enumerate().map(|(index, number)| {
        // Earlier ones take longer: any other order, or running at once, would show in the log.
        let script = format!(
            "echo begin {index} >> {0}; sleep 0.0{1}; echo end {index} >> {0}",
            log.display(),
            5 - index
        );
        let mut work = shell(*number, &script);
        work.kind = WorkKind::Fleet;
        work
    }));
    server.result(numbers[4]).await;
    let expected: String = (0..5).map(|index| format!("begin {index}\nend {index}\n")).collect();
    assert_eq!(std::fs::read_to_string(log).unwrap(), expected);
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn placed_work_uses_all_slots_at_once_and_what_is_too_much_waits() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let log = data.path().join("log");
    let numbers: Vec<u128> = (0..5).map(|_| unique()).collect();
    // Each of the first four ends only when four have started; the fifth could not have started by then.
    server.give(numbers.iter().map(|number| {
        let script = format!(
            "echo x >> {0}; while [ $(wc -l < {0}) -lt 4 ]; do sleep 0.01; done; wc -l < {0}",
            log.display()
        );
        shell(*number, &script)
    }));
    for number in &numbers {
        server.result(*number).await;
    }
    let fifth = crate::fake::text_of(&server.output_of(numbers[4]).await);
    assert_eq!(fifth.trim(), "5");
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_report_offers_the_slots_that_are_free_for_the_poll_that_is_parked() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let (short, long) = (unique(), unique());
    let mut fleet = crate::fake::sleep(long, "1h");
    fleet.kind = WorkKind::Fleet;
    server.give([fleet]);
    let poll = server
        .until("a poll while it runs", |state| state.polls.iter().find(|poll| poll.free.fleet == 0).cloned())
        .await;
    assert_eq!(poll.free, Free { fleet: 0, placed: 4, debug: Some(4) });
    server.give([noop(short)]);
    server.result(short).await;
    let last = server.state.lock().unwrap().reports.last().unwrap().clone();
    assert_eq!(last.free, Free { fleet: 0, placed: 4, debug: Some(4) });
    server.change(|state| state.stop.push(held(long)));
    server.result(long).await;
    server
        .until("the fleet lane is offered again for the parked poll", |state| {
            let parked = state.polls.last()?.poll;
            let offered = Free { fleet: 1, placed: 4, debug: Some(4) };
            (state.polls.last()?.free == offered
                || state.reports.iter().any(|report| report.poll == parked && report.free == offered))
            .then_some(())
        })
        .await;
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn work_that_is_stopped_before_its_turn_never_runs() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let (first, second) = (unique(), unique());
    let trace = data.path().join("trace");
    let mut running = crate::fake::sleep(first, "1h");
    running.kind = WorkKind::Fleet;
    let mut waiting = shell(second, &format!("touch {}", trace.display()));
    waiting.kind = WorkKind::Fleet;
    server.give([running, waiting]);
    server.until("the first began", |state| (!state.started.is_empty()).then_some(())).await;
    server.change(|state| state.stop.push(held(second)));
    assert_eq!(server.result(second).await.outcome.error.unwrap(), "cancelled before it started");
    server.change(|state| state.stop.push(held(first)));
    server.result(first).await;
    assert!(!trace.exists());
    agent.drain_and_stop().await.unwrap();
}

#[tokio::test]
async fn a_debug_command_runs_while_fleet_work_and_all_slots_are_busy() {
    let (server, data) = (Server::new(), tempfile::tempdir().unwrap());
    let agent = start(&server, data.path());
    let busy: Vec<u128> = (0..6).map(|_| unique()).collect();
    let mut fleet = crate::fake::sleep(busy[0], "1h");
    fleet.kind = WorkKind::Fleet;
    server.give([fleet].into_iter().chain(busy[1..].iter().map(|number| crate::fake::sleep(*number, "1h"))));
    let command = unique();
    let mut debug = shell(command, "echo examined");
    debug.kind = WorkKind::Debug;
    server.give([debug]);
    server.result(command).await;
    assert_eq!(crate::fake::text_of(&server.output_of(command).await).trim(), "examined");
    let last = server.state.lock().unwrap().reports.last().unwrap().clone();
    assert_eq!(last.free, Free { fleet: 0, placed: 0, debug: Some(4) });
    server.change(|state| state.stop.extend(busy.iter().map(|number| held(*number))));
    for number in busy {
        server.result(number).await;
    }
    agent.drain_and_stop().await.unwrap();
}
