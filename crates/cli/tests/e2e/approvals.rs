//! Steps that a person approves or rejects.

use downbeat_testbed::{Dev, until};
use serde_json::Value;

/// Submits a job file and waits until its step `ok` waits for an approval.
fn waiting(dev: &Dev, file: &str) -> String {
    let file = dev.write("job.yaml", file);
    let id = dev.submit(&["-f", file.to_str().unwrap()]);
    until("the step to wait", || waits(dev, &id).then_some(()));
    id
}

fn waits(dev: &Dev, id: &str) -> bool {
    let run = dev.json(&["run", "show", id]);
    run["waiting"][0]["nodes"][0]["cause"] == "approval"
}

#[test]
fn a_step_waits_for_its_approval_also_when_the_server_is_killed() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let id = waiting(
        &dev,
        "name: deploy\ntarget: all\ntasks:\n- {name: fetch, backend: test, action: noop}\n\
         - {name: ok, approve: {message: Deploy?}}\n- {name: switch, backend: test, action: noop}\n",
    );
    let page = dev.run(&["run", "show", &id]).ok();
    assert!(page.contains(&format!("waits for a person: `downbeat run approve {id} 1`: Deploy?")), "{page}");
    assert!(page.contains("states") && page.contains(" → running "), "{page}");
    for (step, code, words) in [("fetch", 5, "needs no approval"), ("okk", 4, "did you mean `ok`?")] {
        let refused = dev.run(&["run", "approve", &id, step]);
        assert_eq!(refused.code, code, "{refused:?}");
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    dev.kill();
    dev.serve();
    until("the step to wait again", || waits(&dev, &id).then_some(()));
    let approved = dev.run(&["run", "approve", &id, "ok", "--reason", "tested"]).ok();
    assert!(approved.contains("is approved"), "{approved}");
    assert_eq!(dev.run(&["run", "watch", &id]).code, 0);
    let again = dev.run(&["run", "approve", &id, "ok"]);
    assert_eq!(again.code, 5, "{again:?}");
    let run = dev.whole_run(&id);
    let outputs = &run["results"]["1"]["-"]["outputs"];
    assert_eq!(outputs["reason"], "tested");
    let events = dev.json(&["run", "events", &id]);
    let events = events["data"].as_array().unwrap();
    let decided = events.iter().find(|event| event["kind"] == "approval_decided").unwrap();
    assert_eq!((&decided["by"], &decided["at"]), (&outputs["approved_by"], &outputs["approved_at"]));
    let page = dev.run(&["run", "show", &id]).ok();
    let by = outputs["approved_by"].as_str().unwrap();
    assert!(page.contains(&format!("approved_by={by} reason=tested")), "{page}");
    let metrics = &run["metrics"];
    assert_eq!((&metrics["transitions"], &metrics["attempts"]), (&Value::from(4), &Value::from(1)));
    let states: Vec<&str> =
        run["states"].as_array().unwrap().iter().map(|stay| stay["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["pending", "starting", "running", "terminating", "completed"]);
}

#[test]
fn a_rejected_step_fails_and_so_does_one_that_waits_too_long() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let graph = |timeout: &str| {
        format!(
            "tasks:\n- {{name: ok, approve: {{timeout: {timeout}}}}}\n\
             - {{name: switch, depends_on: [ok], backend: test, action: noop}}\n"
        )
    };
    let file = dev.write("plan.yaml", &graph("1h"));
    let plan = dev.run(&["job", "plan", "-f", file.to_str().unwrap()]).ok();
    assert!(plan.contains("approve") && plan.contains("a person"), "{plan}");
    let id = waiting(&dev, &graph("1h"));
    let rejected = dev.run(&["run", "approve", &id, "ok", "--reject", "--reason", "not today"]).ok();
    assert!(rejected.contains("is rejected"), "{rejected}");
    assert_eq!(dev.run(&["run", "watch", &id]).code, 1);
    let run = dev.whole_run(&id);
    let error = run["results"]["0"]["-"]["error"].as_str().unwrap();
    assert!(error.starts_with("rejected by ") && error.ends_with(": not today"), "{error}");
    assert_eq!(run["results"]["1"]["-"]["status"], "skipped");

    let id = waiting(&dev, &graph("1s"));
    assert_eq!(dev.run(&["run", "watch", &id]).code, 1);
    assert_eq!(dev.whole_run(&id)["results"]["0"]["-"]["error"], "nobody approved it within 1s");

    let id = waiting(&dev, &graph("1h"));
    dev.run(&["run", "cancel", &id]).ok();
    assert_eq!(dev.run(&["run", "watch", &id]).code, 1);
    assert_eq!(dev.run_status(&id), "cancelled");
}
