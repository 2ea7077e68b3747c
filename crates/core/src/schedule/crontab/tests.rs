use super::*;

fn lines(remarks: &[Remark]) -> Vec<String> {
    remarks.iter().map(|remark| format!("{}: {}", remark.line, remark.message)).collect()
}

const CRONTAB: &str = r#"
# backups
SHELL=/bin/sh
PATH = "/usr/local/bin:/usr/bin:/bin"
MAILTO=ops@example.com
0 3 * * * /usr/local/bin/backup.sh --all >> /var/log/backup.log 2>&1
*/15 9-17 * * mon-fri	LANG=C /opt/report/run
@daily find /tmp -mtime +7 -delete
@reboot /opt/start
0 0 30 2 * echo never
5 4 * * sun mail -s "50\% done" root%Hello%there
5 4 * * 8 echo
61 4 * *
CRON_TZ=America/New_York
RANDOM_DELAY=10
SHELL=/usr/bin/zsh
0 8 * * * backup.sh
0 9 * * * echo {{ 1 }}
"#;

#[test]
fn a_crontab_becomes_jobs_and_what_they_cannot_express_is_named() {
    let imported = import(
        CRONTAB,
        &ImportOptions { timezone: Some("Europe/Berlin".to_owned()), ..ImportOptions::default() },
    );
    let names: Vec<(usize, &str)> = imported.jobs.iter().map(|job| (job.line, job.name.as_str())).collect();
    assert_eq!(names, [(6, "backup.sh"), (7, "run"), (8, "find"), (11, "mail"), (17, "backup.sh-2")]);
    assert_eq!(
        lines(&imported.left_out),
        [
            "9: `@reboot`: `@reboot` is not a time; add a standing task (`downbeat task add`) for work that each node does \
             when its agent starts",
            "10: `0 0 30 2 *`: it never fires: no month that it names has such a day",
            "12: `5 4 * * 8`: the weekday `8` is not from 0 to 7",
            "13: is not a line of a crontab: 5 fields, or @daily and the like, and a command",
            "18: contains `{{`, which begins an expression in a job file; put the command into a script",
        ]
    );
    assert_eq!(
        lines(&imported.notes),
        [
            "5: no mail is sent; `downbeat run list` and `downbeat run logs` show results and output",
            "6: without a target a job runs on any node that fits; --target node:HOST keeps it on its machine",
        ]
    );
    let job = |index: usize| imported.jobs[index].definition.clone();
    let path = json!({"PATH": "/usr/local/bin:/usr/bin:/bin"});
    assert_eq!(
        job(0),
        json!({
            "name": "backup.sh", "schedule": {"cron": "0 3 * * *", "timezone": "Europe/Berlin"},
            "tasks": [{"backend": "exec", "action": "shell", "params": {
                "command": "/usr/local/bin/backup.sh --all >> /var/log/backup.log 2>&1", "env": path,
            }}],
        })
    );
    assert_eq!(job(3)["tasks"][0]["params"]["command"], "mail -s \"50% done\" root");
    assert_eq!(job(3)["tasks"][0]["params"]["stdin"], "Hello\nthere\n");
    assert_eq!(
        job(4)["schedule"],
        json!({"cron": "0 8 * * *", "timezone": "America/New_York", "jitter": "10m"})
    );
    assert_eq!(job(4)["tasks"][0]["params"]["command"], json!(["/usr/bin/zsh", "-c", "backup.sh"]));
}

#[test]
fn a_line_that_would_not_be_a_valid_job_is_left_out() {
    let options = ImportOptions { target: Some("group:".to_owned()), ..ImportOptions::default() };
    let imported = import("HOME=relative\n0 3 * * * backup\n", &options);
    assert_eq!(imported.jobs, []);
    assert!(imported.left_out[0].message.starts_with("target: "), "{:?}", imported.left_out);
}

#[test]
fn lines_of_a_system_crontab_name_their_user() {
    let text = "HOME=/srv\n0 3 * * * root /usr/bin/backup now\n0 4 * * * www-data\n";
    let options =
        ImportOptions { target: Some("all".to_owned()), has_users: true, timezone: Some("UTC".to_owned()) };
    let imported = import(text, &options);
    assert_eq!(lines(&imported.notes), ["2: the user `root` is not part of a job; the agent's user runs it"]);
    assert_eq!(lines(&imported.left_out), ["3: has no command after the user"]);
    let params = &imported.jobs[0].definition["tasks"][0]["params"];
    assert_eq!(
        params,
        &json!({"command": "/usr/bin/backup now", "working_dir": "/srv", "env": {"HOME": "/srv"}})
    );
}
