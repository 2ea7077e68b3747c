//! A backend of the user's own, from the agent's settings to the process that it starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use downbeat_testbed::{Dev, until};

const SETTINGS: &str = r#"
[backends.backup]
[backends.backup.actions.now]
argv = ["PROGRAM", "--level={level}", "--", "{paths}"]
[backends.backup.actions.now.params.level]
type = "integer"
required = true
max = 9
[backends.backup.actions.now.params.paths]
type = "texts"
pattern = "/[a-z/]+"
"#;

#[test]
fn a_declared_backend_is_used_from_the_command_line_and_refuses_what_it_does_not_allow() {
    let dev = Dev::start_with(&["--nodes", "1"]);
    let program = dev.write("backup", "#!/bin/sh\nfor word; do echo \"<$word>\"; done\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    dev.write("agent.toml", &SETTINGS.replace("PROGRAM", program.to_str().unwrap()));
    let agent = dev.agent("own").with(&["--config", "agent.toml"]);
    agent.start();
    until("the node", || (dev.run(&["node", "show", "own"]).code == 0).then_some(()));

    let task = ["--target", "node:own", "backup", "now"];
    let run = |params: &[&str]| dev.run(&[&["job", "run", "--wait"], &task[..], params].concat());
    // A number, and a list, as the node declares them.
    let done = run(&["--level", "3", "--paths", "/etc", "--paths", "/var/lib"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(dev.run(&["run", "logs", "last"]).ok(), "<--level=3>\n<-->\n</etc>\n</var/lib>\n");
    for (params, words) in [
        (&["--level", "10"][..], "level"),
        (&["--level", "3", "--paths", "/etc; id"][..], "paths[0]"),
        (&["--levle", "3"][..], "did you mean `level`?"),
    ] {
        let refused = run(params);
        assert!(refused.code == 5 || refused.code == 2, "{refused:?}");
        assert!(refused.stderr.contains(words), "{refused:?}");
    }
    // On a node that lacks it nothing is started.
    let refused = dev.run(&["job", "run", "--target", "all", "backup", "now", "--level", "1"]);
    assert_eq!(refused.code, 5, "{refused:?}");
    assert!(
        refused.stderr.contains("node-1") && refused.stderr.contains("lacks backend `backup`"),
        "{refused:?}"
    );
}
