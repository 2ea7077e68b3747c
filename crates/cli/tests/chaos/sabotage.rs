//! Checks that the whole test can fail: it finds records that were corrupted behind the servers.

use downbeat_testbed::{DEADLINE, eventually};
use serde_json::json;

use crate::book::task;
use crate::check::{Violation, check};
use crate::cluster::{Cluster, Plan};
use crate::evidence::{Evidence, Submission};
use crate::gather::{all_ended, gather};

async fn look(cluster: &Cluster, run: &str) -> Vec<Violation> {
    let answered = [run.to_owned()].into();
    let submissions = vec![Submission { key: "k".to_owned(), answered, cancel_asked: false }];
    check(&Evidence { submissions, ..gather(cluster).await })
}

fn rules(violations: &[Violation]) -> Vec<&'static str> {
    let mut rules: Vec<&'static str> = violations.iter().map(|violation| violation.rule).collect();
    rules.dedup();
    rules
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_that_were_tampered_with_are_found() {
    let cluster = Cluster::start(Plan { servers: 2, agents: 2, special: false }).await;
    let book = cluster.book();
    let tasks = json!([task(&book, "a", 0.1, 1), task(&book, "b", 3.0, 1)]);
    let run = cluster.submit(0, &json!({"name": "k", "target": "all", "tasks": tasks}), "k").await;
    let sql = cluster.postgres.client().await.unwrap();

    // A finished execution is put back, and both servers restart: it is really executed again.
    eventually("the second step runs", || async {
        let count = "SELECT count(*) FROM executions WHERE step = 1 AND status = 2";
        (sql.query_one(count, &[]).await.unwrap().get::<_, i64>(0) == 2).then_some(())
    })
    .await;
    cluster.servers.iter().for_each(|server| server.kill());
    let back = "UPDATE executions SET status = 0, token = NULL, lease_node = NULL, session = NULL, granted_at = NULL, \
                started_at = NULL, verdict = NULL, exit_code = NULL, finished_at = NULL, ended_at = NULL \
                WHERE id = (SELECT id FROM executions WHERE step = 0 ORDER BY id LIMIT 1)";
    assert_eq!(sql.execute(back, &[]).await.unwrap(), 1);
    cluster.heal().await;
    all_ended(&cluster, DEADLINE).await;
    let found = look(&cluster, &run).await;
    for rule in ["no execution is carried out twice", "events follow from each other"] {
        assert!(rules(&found).contains(&rule), "`{rule}` is not among {found:#?}");
    }

    // The event of a result is removed: the feed has a gap, and no longer leads to the record.
    let gone =
        "DELETE FROM events WHERE seq = (SELECT max(seq) FROM events WHERE kind = 'execution_finished')";
    assert_eq!(sql.execute(gone, &[]).await.unwrap(), 1);
    let found = look(&cluster, &run).await;
    for rule in ["the feed has no gap", "the feed explains the records"] {
        assert!(rules(&found).contains(&rule), "`{rule}` is not among {found:#?}");
    }
}
