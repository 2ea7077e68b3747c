//! How much output of a real process is kept: at the bound, around it and far beyond it.

use std::time::Duration;

use downbeat_testbed::{Site, eventually, within};
use serde_json::{Value, json};

const KEPT_BYTES: usize = 1024 * 1024;
/// Output is dropped in chunks of this size, agent and server each up to one.
const CHUNK_BYTES: usize = 16 * 1024;
/// A gibibyte passes through three processes of a debug build on a busy machine.
const LONG: Duration = Duration::from_secs(600);

fn shell(command: &str) -> Value {
    json!({"backend": "exec", "action": "shell", "params": {"command": command}})
}

struct Kept {
    text: String,
    offset: usize,
    is_truncated: bool,
}

/// Reads all kept output of an execution.
async fn kept(site: &Site, execution: &Value) -> Kept {
    let id = execution["id"].as_str().unwrap();
    let mut kept: Option<Kept> = None;
    let mut next = 0;
    loop {
        let path = format!("executions/{id}/output?offset={next}");
        let page = eventually("output is shown", || site.get(&path)).await;
        let number = |field: &str| usize::try_from(page[field].as_u64().unwrap()).unwrap();
        let text = page["text"].as_str().unwrap();
        let (offset, is_truncated) = (number("offset"), page["truncated"] == true);
        match &mut kept {
            Some(kept) => kept.text.push_str(text),
            None => kept = Some(Kept { text: text.to_owned(), offset, is_truncated }),
        }
        next = number("next");
        if page["complete"] == true {
            return kept.unwrap();
        }
    }
}

#[tokio::test]
async fn output_is_kept_whole_up_to_1_mib_and_its_tail_beyond() {
    let site = Site::build().lease_ttl("60s").agents(&["web-1"]).start().await;
    // Three bytes of a character, one byte that is not UTF-8, and a line feed: most cuts are inside of a character.
    let line = b"\xe2\x82\xac\xff\n";
    let raw: Vec<u8> = line.iter().copied().cycle().take(KEPT_BYTES + 1).collect();
    let broken = String::from_utf8_lossy(&raw).into_owned();
    assert!(broken.ends_with('€') || broken.ends_with('\u{fffd}') || broken.ends_with('\n'));
    let x = |count: usize| format!("head -c {count} /dev/zero | tr '\\0' x");
    let broken_script = format!(r"yes $'\xe2\x82\xac\xff' | head -c {}", KEPT_BYTES + 1);
    let cases = [
        (x(KEPT_BYTES), "x".repeat(KEPT_BYTES)),
        (x(KEPT_BYTES + 1), "x".repeat(KEPT_BYTES + 1)),
        (broken_script, broken),
    ];
    let tasks: Vec<Value> = cases.iter().map(|(script, _)| shell(script)).collect();
    let run = site.submit(&json!({"target": "all", "tasks": tasks}), "k").await;
    assert_eq!(site.ended(&run).await["status"], "completed");
    let mut executions = site.executions(&run).await;
    executions.sort_by_key(|execution| execution["step"].as_u64());
    for (execution, (script, written)) in executions.iter().zip(&cases) {
        let Kept { text, offset, is_truncated } = kept(&site, execution).await;
        assert_eq!(is_truncated, written.len() > KEPT_BYTES, "{script}");
        assert_eq!(is_truncated, offset > 0, "the offset shows how much was dropped: {script}");
        assert!(text == written[offset..], "the tail is kept: {script}");
        let least = written.len().min(KEPT_BYTES - 2 * CHUNK_BYTES);
        assert!(text.len() <= KEPT_BYTES && text.len() >= least, "{} of {script}", text.len());
    }
    let logs = site.server.run(&["run", "logs", &run, "--step", "1"]);
    assert!(logs.stdout.contains("bytes are no longer kept"), "the cut is marked");
}

#[tokio::test]
async fn a_gibibyte_of_output_leaves_its_tail_and_does_not_grow_the_agent() {
    let site = Site::build().lease_ttl("60s").agents(&["web-1"]).start().await;
    let script = "head -c 1G /dev/zero | tr '\\0' x; echo; echo the end";
    let run = site.submit(&json!({"target": "all", "tasks": [shell(script)]}), "k").await;
    let path = format!("runs/{run}");
    let ended =
        within(LONG, || async { site.get(&path).await.filter(|view| view["finished_at"].is_string()) });
    let view = ended.await.expect("the run ends");
    assert_eq!(view["status"], "completed", "{view:#}");
    let executions = site.executions(&run).await;
    let Kept { text, offset, is_truncated } = kept(&site, &executions[0]).await;
    assert!(is_truncated && text.ends_with("x\nthe end\n"));
    assert_eq!(offset + text.len(), (1 << 30) + "\nthe end\n".len(), "all of it was counted");
    assert!(text.len() <= KEPT_BYTES && text.len() >= KEPT_BYTES - 2 * CHUNK_BYTES, "{}", text.len());
    let most_mib = peak_mib(site.agent("web-1").pid());
    assert!(most_mib < 200, "the agent had {most_mib} MiB in memory");
}

/// Returns the largest resident memory that a process ever had.
fn peak_mib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}
