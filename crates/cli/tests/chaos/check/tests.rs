//! Checks the checker: true evidence, forged in one place, is found.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::check;
use crate::book::Book;
use crate::evidence::{Event, Evidence, Execution, Run, Submission, steps};

const NODES: [&str; 2] = ["web-1", "web-2"];

fn definition() -> Value {
    json!({"name": "key", "target": "all", "tasks": [
        {"name": "a", "retry": {"max": 1}, "delivery": "at_least_once"},
        {"name": "walk", "tasks": [{"name": "b"}, {"name": "c"}]},
        {"name": "undo", "condition": "on_failure"},
    ]})
}

fn id(step: usize, node: usize, attempt: u32) -> String {
    format!("e{step}{node}-{attempt}")
}

fn line(verb: &str, step: usize, node: usize, attempt: u32, code: i32) -> String {
    let name = ["a", "b", "c", "undo"][step];
    format!("{verb} {}.{attempt} {name} {} 1.5 {code}\n", id(step, node, attempt), NODES[node])
}

fn event(feed: &mut Vec<Event>, kind: &str, execution: Option<&str>, data: Value) {
    let seq = feed.len() as u64 + 1;
    let execution = execution.map(str::to_owned);
    feed.push(Event { seq, kind: kind.to_owned(), run: Some("r1".to_owned()), execution, data });
}

/// Returns evidence without violations: one run on two nodes, in which `a` failed once on web-1.
fn truth() -> Evidence {
    let mut text = String::new();
    let mut executions = Vec::new();
    let mut feed = Vec::new();
    event(&mut feed, "run_created", None, json!({"state": "running", "owner": "s1"}));
    event(&mut feed, "run_taken", None, json!({"owner": "s2", "epoch": 2}));
    let mut record = |step: usize, node: usize, attempt: u32, status: &str| {
        let id = id(step, node, attempt);
        let exit_code = match status {
            "succeeded" => Some(0),
            "failed" => Some(3),
            _ => None,
        };
        let added = if status == "skipped" { "skipped" } else { "pending" };
        event(&mut feed, "executions_added", None, json!({"executions": [{"id": id, "status": added}]}));
        if let Some(code) = exit_code {
            event(&mut feed, "execution_leased", Some(&id), json!({}));
            event(&mut feed, "execution_started", Some(&id), json!({}));
            event(&mut feed, "execution_finished", Some(&id), json!({"verdict": status}));
            text.push_str(&line("begin", step, node, attempt, 0));
            text.push_str(&line("end", step, node, attempt, code));
        }
        executions.push(Execution {
            id,
            step: u32::try_from(step).unwrap(),
            node: Some(NODES[node].to_owned()),
            attempt,
            status: status.to_owned(),
            exit_code: exit_code.map(i64::from),
            error: None,
        });
    };
    record(0, 0, 1, "failed");
    record(0, 1, 1, "succeeded");
    record(0, 0, 2, "succeeded");
    for node in 0..2 {
        record(1, node, 1, "succeeded");
        record(2, node, 1, "succeeded");
        record(3, node, 1, "skipped");
    }
    event(&mut feed, "run_moved", None, json!({"state": "completed"}));
    let run = Run {
        id: "r1".to_owned(),
        job: "key".to_owned(),
        state: "completed".to_owned(),
        status: "completed".to_owned(),
        owner: "s2".to_owned(),
        steps: steps(&definition()),
        executions,
        ..Run::default()
    };
    let listing = [("r1".to_owned(), "completed".to_owned())];
    let watched: Vec<(u64, String)> = feed.iter().map(|event| (event.seq, event.kind.clone())).collect();
    Evidence {
        book: Book::parse(&text),
        submissions: vec![Submission {
            key: "key".to_owned(),
            answered: BTreeSet::from(["r1".to_owned()]),
            cancel_asked: false,
        }],
        runs: [("r1".to_owned(), run)].into(),
        feeds: vec![feed.clone(), feed],
        watched: vec![watched],
        listings: vec![listing.clone().into(), listing.into()],
        open: vec![[("runs running".to_owned(), 0)].into()],
        ..Evidence::default()
    }
}

fn run(evidence: &mut Evidence) -> &mut Run {
    evidence.runs.get_mut("r1").unwrap()
}

fn execution<'a>(evidence: &'a mut Evidence, id: &str) -> &'a mut Execution {
    run(evidence).executions.iter_mut().find(|execution| execution.id == id).unwrap()
}

/// Moves a line of the book.
fn move_line(evidence: &mut Evidence, from: usize, to: usize) {
    let line = evidence.book.lines.remove(from);
    evidence.book.lines.insert(to, line);
}

fn place(evidence: &Evidence, id: &str) -> usize {
    evidence.book.lines.iter().position(|line| line.execution == id).unwrap()
}

fn in_feeds(evidence: &mut Evidence, mut forge: impl FnMut(&mut Vec<Event>)) {
    evidence.feeds.iter_mut().for_each(&mut forge);
    for feed in &mut evidence.feeds {
        feed.iter_mut().zip(1..).for_each(|(event, seq)| event.seq = seq);
    }
    let feed = &evidence.feeds[0];
    evidence.watched = vec![feed.iter().map(|event| (event.seq, event.kind.clone())).collect()];
}

#[track_caller]
fn finds(rule: &str, forge: impl FnOnce(&mut Evidence)) {
    let mut evidence = truth();
    forge(&mut evidence);
    let found = check(&evidence);
    assert!(found.iter().any(|violation| violation.rule == rule), "`{rule}` is not among {found:#?}");
}

#[test]
fn the_truth_is_found_to_be_true() {
    assert_eq!(check(&truth()), []);
}

#[test]
fn an_acknowledged_run_that_does_not_exist_is_found() {
    finds("an acknowledged run exists", |evidence| {
        evidence.submissions[0].answered = BTreeSet::from(["r0".to_owned()]);
    });
}

#[test]
fn two_runs_of_one_key_are_found() {
    finds("one key, one run", |evidence| {
        let twin = Run { id: "r2".to_owned(), ..evidence.runs["r1"].clone() };
        evidence.runs.insert("r2".to_owned(), twin);
    });
    finds("one key, one run", |evidence| {
        evidence.submissions[0].answered.insert("r2".to_owned());
    });
}

#[test]
fn a_run_that_nobody_asked_for_is_found() {
    finds("only what was submitted runs", |evidence| evidence.submissions.clear());
}

#[test]
fn a_run_cancelled_by_nobody_is_found() {
    finds("only what was cancelled is", |evidence| run(evidence).status = "cancelled".to_owned());
}

#[test]
fn a_response_that_no_client_may_get_is_found() {
    finds("clients get correct responses", |evidence| evidence.complaints.push("500".to_owned()));
}

#[test]
fn a_run_that_never_ends_is_found() {
    finds("every run ends", |evidence| {
        let run = run(evidence);
        (run.state, run.status) = ("running".to_owned(), "running".to_owned());
    });
}

#[test]
fn what_stays_open_is_found() {
    finds("nothing stays open", |evidence| execution(evidence, "e20-1").status = "leased".to_owned());
    finds("nothing stays open", |evidence| {
        evidence.open[0].insert("executions leased".to_owned(), 1);
    });
}

#[test]
fn servers_that_show_different_runs_are_found() {
    finds("all servers show the same", |evidence| {
        evidence.listings[1].insert("r1".to_owned(), "running".to_owned());
    });
}

#[test]
fn a_process_that_is_left_is_found() {
    finds("no process is left", |evidence| evidence.processes.push("7 of e20-1.1".to_owned()));
}

#[test]
fn a_run_that_completed_with_a_failed_or_missing_step_is_found() {
    finds("a run ends as its steps did", |evidence| {
        execution(evidence, "e20-1").status = "failed".to_owned();
    });
    finds("a run ends as its steps did", |evidence| run(evidence).partial = true);
    finds("a run ends as its steps did", |evidence| {
        run(evidence).budget = 1;
        execution(evidence, "e20-1").status = "failed".to_owned();
    });
    finds("a run ends as its steps did", |evidence| {
        run(evidence).executions.retain(|execution| execution.step != 3);
    });
    finds("a run ends as its steps did", |evidence| {
        run(evidence).status = "failed".to_owned();
        run(evidence).executions.retain(|execution| execution.status != "failed");
    });
}

#[test]
fn a_torn_book_is_found() {
    finds("the book can be read", |evidence| evidence.book = Book::parse("begin e00-1"));
}

#[test]
fn an_execution_that_was_carried_out_twice_is_found() {
    finds("no execution is carried out twice", |evidence| {
        let line = evidence.book.lines[0].clone();
        evidence.book.lines.push(line);
    });
}

#[test]
fn a_success_that_was_never_done_or_not_to_its_end_is_found() {
    finds("what succeeded was done to its end", |evidence| {
        evidence.book.lines.retain(|line| line.execution != "e20-1");
    });
    finds("what succeeded was done to its end", |evidence| {
        let end = place(evidence, "e20-1") + 1;
        evidence.book.lines.remove(end);
    });
    finds("what succeeded was done to its end", |evidence| {
        let end = place(evidence, "e20-1") + 1;
        evidence.book.lines[end].code = 3;
    });
}

#[test]
fn a_failure_that_was_never_done_is_found() {
    finds("what failed by itself was done to its end", |evidence| {
        evidence.book.lines.retain(|line| line.execution != "e00-1");
    });
}

#[test]
fn what_was_done_and_is_not_recorded_is_found() {
    finds("what was done is recorded", |evidence| {
        run(evidence).executions.retain(|execution| execution.id != "e20-1");
    });
    finds("what was done is recorded", |evidence| execution(evidence, "e20-1").status = "skipped".to_owned());
}

#[test]
fn an_execution_that_is_recorded_twice_is_found() {
    finds("an execution is recorded once", |evidence| {
        let twin = run(evidence).executions[0].clone();
        run(evidence).executions.push(twin);
    });
}

#[test]
fn work_done_elsewhere_than_recorded_is_found() {
    finds("attempt, step and node are as recorded", |evidence| {
        execution(evidence, "e20-1").node = Some("web-2".to_owned());
    });
}

#[test]
fn attempts_with_a_gap_are_found() {
    finds("attempts are numbered one by one", |evidence| execution(evidence, "e00-2").attempt = 3);
}

#[test]
fn two_successes_of_an_instance_are_found() {
    finds("at most one success", |evidence| execution(evidence, "e00-1").status = "succeeded".to_owned());
    finds("nothing follows a success", |evidence| {
        execution(evidence, "e00-1").status = "succeeded".to_owned();
        execution(evidence, "e00-2").status = "failed".to_owned();
    });
}

#[test]
fn more_retries_than_allowed_are_found() {
    finds("retries are bounded", |evidence| {
        run(evidence).steps[0].retries = 0;
        execution(evidence, "e00-2").status = "failed".to_owned();
    });
}

#[test]
fn more_resends_than_allowed_are_found() {
    finds("resends are bounded", |evidence| {
        let lost: Vec<Execution> = (1..=5)
            .map(|attempt| {
                let status = "lost".to_owned();
                Execution {
                    id: format!("x{attempt}"),
                    attempt,
                    status,
                    ..execution(evidence, "e00-1").clone()
                }
            })
            .collect();
        run(evidence).executions.extend(lost);
    });
}

#[test]
fn an_attempt_without_a_reason_is_found() {
    finds("a new attempt has a reason", |evidence| {
        run(evidence).steps[0].resend = false;
        execution(evidence, "e00-1").status = "lost".to_owned();
    });
    finds("a new attempt has a reason", |evidence| run(evidence).steps[0].retries = 0);
}

#[test]
fn attempts_that_overlap_are_found() {
    finds("attempts do not overlap", |evidence| {
        let (end, second) = (place(evidence, "e00-1") + 1, place(evidence, "e00-2"));
        move_line(evidence, end, second);
    });
}

#[test]
fn lost_attempts_may_overlap_where_an_agent_was_cut_off() {
    let mut evidence = truth();
    for step in &mut run(&mut evidence).steps {
        // Placed: another node may do it in the meantime.
        step.placed = true;
    }
    execution(&mut evidence, "e00-1").status = "lost".to_owned();
    let (end, second) = (place(&evidence, "e00-1") + 1, place(&evidence, "e00-2"));
    move_line(&mut evidence, end, second);
    let found = check(&evidence);
    assert!(!found.iter().any(|violation| violation.rule == "attempts do not overlap"), "{found:#?}");
}

#[test]
fn two_pieces_of_fleet_work_at_once_are_found() {
    finds("fleet work is done one at a time", |evidence| {
        let (end, next) = (place(evidence, "e10-1") + 1, place(evidence, "e20-1"));
        move_line(evidence, end, next);
    });
}

#[test]
fn a_broken_barrier_is_found() {
    finds("barriers hold", |evidence| {
        let (late, early) = (place(evidence, "e10-1"), place(evidence, "e00-2"));
        move_line(evidence, late, early);
    });
    finds("barriers hold", |evidence| execution(evidence, "e00-2").status = "running".to_owned());
}

#[test]
fn a_node_that_walks_out_of_order_is_found() {
    finds("a node walks in order", |evidence| {
        let (late, early) = (place(evidence, "e20-1"), place(evidence, "e10-1"));
        move_line(evidence, late, early);
    });
}

#[test]
fn a_step_for_failures_without_a_failure_is_found() {
    finds("on_failure has a failure", |evidence| {
        execution(evidence, "e00-1").status = "succeeded".to_owned();
        execution(evidence, "e30-1").status = "succeeded".to_owned();
        evidence.book.lines.extend(Book::parse(&line("begin", 3, 0, 1, 0)).lines);
    });
}

#[test]
fn a_step_that_the_definition_does_not_have_is_found() {
    finds("steps are the definition's", |evidence| execution(evidence, "e20-1").step = 9);
}

#[test]
fn a_gap_in_the_feed_is_found() {
    finds("the feed has no gap", |evidence| {
        evidence.feeds[0].remove(3);
    });
    finds("the feed can be read", |evidence| evidence.feeds.clear());
}

#[test]
fn servers_with_different_feeds_are_found() {
    finds("the feed is the same everywhere", |evidence| evidence.feeds[1][2].kind = "run_moved".to_owned());
    finds("the feed is the same everywhere", |evidence| {
        evidence.feeds[1].pop();
    });
}

#[test]
fn a_stream_with_a_gap_a_repetition_or_another_story_is_found() {
    finds("streams resume without gap or repetition", |evidence| {
        evidence.watched[0].remove(3);
    });
    finds("streams resume without gap or repetition", |evidence| {
        let again = evidence.watched[0][3].clone();
        evidence.watched[0].insert(3, again);
    });
    finds("streams are complete", |evidence| {
        evidence.watched[0].pop();
    });
    finds("streams match the records", |evidence| evidence.watched[0][3].1 = "run_taken".to_owned());
}

#[test]
fn a_record_that_the_feed_does_not_explain_is_found() {
    let rule = "the feed explains the records";
    finds(rule, |evidence| execution(evidence, "e20-1").status = "failed".to_owned());
    finds(rule, |evidence| run(evidence).owner = "s1".to_owned());
    finds(rule, |evidence| in_feeds(evidence, |feed| feed.retain(|event| event.kind != "run_moved")));
    finds(rule, |evidence| run(evidence).executions.retain(|execution| execution.step != 3));
    finds(rule, |evidence| in_feeds(evidence, Vec::clear));
}

#[test]
fn events_that_do_not_follow_from_each_other_are_found() {
    let rule = "events follow from each other";
    let again = |evidence: &mut Evidence, kind: &str| {
        in_feeds(evidence, |feed| {
            let event = feed.iter().find(|event| event.kind == kind).unwrap().clone();
            feed.push(event);
        });
    };
    for kind in [
        "run_created",
        "run_taken",
        "run_moved",
        "executions_added",
        "execution_leased",
        "execution_started",
        "execution_finished",
    ] {
        finds(rule, |evidence| again(evidence, kind));
    }
    finds(rule, |evidence| in_feeds(evidence, |feed| feed[1].data["epoch"] = json!(3)));
    finds(rule, |evidence| in_feeds(evidence, |feed| drop(feed.remove(0))));
}

#[test]
fn what_a_definition_waits_for_is_read_from_it() {
    let list = steps(&definition());
    let barriers: Vec<Vec<u32>> = list.iter().map(|step| step.barrier.iter().copied().collect()).collect();
    assert_eq!(barriers, [vec![], vec![0], vec![0], vec![0, 1, 2]]);
    assert_eq!(list[2].per_node, BTreeSet::from([1]));
    let graph = steps(&json!({"tasks": [
        {"name": "a"},
        {"name": "b", "depends_on": ["a"]},
        {"name": "c"},
        {"name": "d", "depends_on": ["b"]},
    ]}));
    let barriers: Vec<Vec<u32>> = graph.iter().map(|step| step.barrier.iter().copied().collect()).collect();
    assert_eq!(barriers, [vec![], vec![0], vec![], vec![0, 1]]);
    assert!(graph.iter().all(|step| step.placed && step.resend));
}

#[test]
fn a_wave_that_begins_early_is_found() {
    finds("a wave ends before the next", |evidence| {
        run(evidence).waves = [("web-1".to_owned(), 0), ("web-2".to_owned(), 1)].into();
    });
}

#[test]
fn somebody_else_on_the_nodes_of_an_exclusive_run_is_found() {
    finds("an exclusive run has its nodes to itself", |evidence| {
        let run = run(evidence);
        run.exclusive = true;
        let place = run.executions.iter().position(|execution| execution.id == "e10-1").unwrap();
        let stranger = run.executions.remove(place);
        let other = Run { id: "r2".to_owned(), executions: vec![stranger], ..run.clone() };
        evidence.runs.insert("r2".to_owned(), Run { exclusive: false, ..other });
    });
}
