//! The backend `file` on a real file system.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use downbeat_backends::{File, Finish};
use downbeat_core::execution::Verdict;
use nix::unistd::Uid;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::Bench;

struct Place {
    bench: Bench,
    dir: PathBuf,
}

impl Place {
    fn new() -> Self {
        let bench = Bench::new();
        let dir = bench.root().join("files");
        fs::create_dir(&dir).unwrap();
        Self { bench, dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    async fn done(&self, action: &str, params: Value) -> String {
        self.bench.forget_output();
        let finish = self.bench.run(&File, action, params).await;
        assert_eq!(finish, Finish::succeeded());
        self.bench.stdout().replace(self.dir.to_str().unwrap(), "")
    }

    async fn failed(&self, action: &str, params: Value) -> String {
        let finish = self.bench.run(&File, action, params).await;
        assert_eq!(finish.verdict, Verdict::Failed);
        finish.error.unwrap().replace(self.dir.to_str().unwrap(), "")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).unwrap().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn mode(path: &PathBuf) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn what_is_as_it_should_be_is_left_alone() {
    let place = Place::new();
    let path = place.path("motd");
    let wanted = json!({"path": path, "content": "hello\n", "mode": "0640"});
    assert_eq!(place.done("write", wanted.clone()).await, "written /motd: 6 bytes\n");
    let inode = fs::metadata(&path).unwrap().ino();
    assert_eq!(place.done("write", wanted).await, "unchanged /motd\n");
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    for (params, expected) in [
        (json!({"path": path, "content": "hellO\n"}), ("hellO\n", 0o640)),
        (json!({"path": path, "content": "hellO\n", "mode": "600"}), ("hellO\n", 0o600)),
        (json!({"path": path, "content": "", "mode": "4755"}), ("", 0o4755)),
    ] {
        assert!(place.done("write", params).await.starts_with("written"));
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), mode(&path)), expected);
    }
    assert_eq!(place.names(), ["motd"]);
}

#[tokio::test]
async fn a_new_file_is_readable_and_a_link_is_replaced_and_not_followed() {
    let place = Place::new();
    place.done("write", json!({"path": place.path("new"), "content": "x"})).await;
    assert_eq!(mode(&place.path("new")), 0o644);

    fs::write(place.path("target"), "untouched").unwrap();
    symlink(place.path("target"), place.path("link")).unwrap();
    place.done("write", json!({"path": place.path("link"), "content": "untouched"})).await;
    assert!(!fs::symlink_metadata(place.path("link")).unwrap().is_symlink());
    assert_eq!(mode(&place.path("link")), 0o644, "the mode of a link does not change its file");
    place.done("write", json!({"path": place.path("link"), "content": "other"})).await;
    assert_eq!(fs::read_to_string(place.path("target")).unwrap(), "untouched");
}

#[tokio::test]
async fn owners_are_given_and_kept() {
    if !Uid::effective().is_root() {
        return;
    }
    let place = Place::new();
    let path = place.path("owned");
    let owner = || fs::metadata(&path).map(|found| (found.uid(), found.gid())).unwrap();
    place.done("write", json!({"path": path, "content": "a", "owner": "1234:4321", "mode": "4755"})).await;
    assert_eq!((owner(), mode(&path)), ((1234, 4321), 0o4755));
    let kept = json!({"path": path, "content": "b"});
    place.done("write", kept).await;
    assert_eq!((owner(), mode(&path)), ((1234, 4321), 0o4755));
    let printed = place.done("write", json!({"path": path, "content": "b", "owner": "root"})).await;
    assert_eq!((printed.as_str(), owner()), ("written /owned: 1 bytes\n", (0, 4321)));
    let printed = place.done("write", json!({"path": path, "content": "b", "owner": "root:4321"})).await;
    assert_eq!(printed, "unchanged /owned\n");
}

#[tokio::test]
async fn what_fails_leaves_the_file_as_it_was_and_nothing_beside_it() {
    let place = Place::new();
    let path = place.path("kept");
    fs::write(&path, "before").unwrap();
    let error = place.failed("write", json!({"path": path, "content": "x", "owner": "no-such-user"})).await;
    assert_eq!(error, "param `owner`: user `no-such-user` does not exist on this host");
    let error =
        place.failed("write", json!({"path": path, "content": "x", "owner": "0:no-such-group"})).await;
    assert_eq!(error, "param `owner`: group `no-such-group` does not exist on this host");
    assert!(
        place
            .failed("write", json!({"path": place.path("no/file"), "content": "x"}))
            .await
            .contains("`/no/file`: its directory does not exist")
    );
    assert!(
        place
            .failed("write", json!({"path": place.path("kept/file"), "content": "x"}))
            .await
            .contains("kept")
    );
    let long = place.path(&"n".repeat(256));
    assert!(place.failed("write", json!({"path": long, "content": "x"})).await.contains("cannot write"));
    fs::create_dir(place.path("dir")).unwrap();
    let error = place.failed("write", json!({"path": place.path("dir"), "content": "x"})).await;
    assert_eq!(error, "cannot write `/dir`: it is a directory");
    assert_eq!(fs::read_to_string(&path).unwrap(), "before");
    assert_eq!(place.names(), ["dir", "kept"]);
}

/// The name of a draft before it is renamed to the file.
fn draft_of(place: &Place, name: &str) -> PathBuf {
    let digest = Sha256::digest(name);
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    place.path(&format!(".downbeat-{}", &digits[..16]))
}

#[tokio::test]
async fn what_a_killed_agent_left_behind_is_removed_and_what_is_being_written_is_not() {
    let place = Place::new();
    let draft = draft_of(&place, "motd");
    fs::write(&draft, "half").unwrap();
    place.done("write", json!({"path": place.path("motd"), "content": "whole"})).await;
    assert_eq!(place.names(), ["motd"]);

    let held = fs::File::create(&draft).unwrap();
    held.lock().unwrap();
    let error = place.failed("write", json!({"path": place.path("motd"), "content": "other"})).await;
    assert_eq!(error, "cannot write `/motd`: another write of it is in progress");
    assert!(draft.exists());
    drop(held);
    place.done("write", json!({"path": place.path("motd"), "content": "other"})).await;
    assert_eq!(fs::read_to_string(place.path("motd")).unwrap(), "other");

    // A link at the draft's path is not followed.
    fs::write(place.path("victim"), "safe").unwrap();
    symlink(place.path("victim"), &draft).unwrap();
    place.done("write", json!({"path": place.path("motd"), "content": "third"})).await;
    assert_eq!(fs::read_to_string(place.path("victim")).unwrap(), "safe");
    assert_eq!(place.names(), ["motd", "victim"]);
}

#[tokio::test]
async fn a_full_disk_leaves_the_file_as_it_was() {
    let place = Place::new();
    let mounted = Uid::effective().is_root()
        && std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64k", "none"])
            .arg(&place.dir)
            .status()
            .is_ok_and(|status| status.success());
    if !mounted {
        return;
    }
    let path = place.path("file");
    fs::write(&path, "before").unwrap();
    let finish = place.bench.run(&File, "write", json!({"path": path, "content": "x".repeat(200_000)})).await;
    let (content, names) = (fs::read_to_string(&path).unwrap(), place.names());
    std::process::Command::new("umount").arg("-l").arg(&place.dir).status().unwrap();
    assert!(finish.error.unwrap().contains("No space left"));
    assert_eq!((content.as_str(), names), ("before", vec!["file".to_owned()]));
}

#[test]
fn readers_see_the_old_file_or_the_new_one() {
    let place = Place::new();
    let path = place.path("file");
    let contents = ["a".repeat(100_000), "b".repeat(100_000)];
    fs::write(&path, &contents[0]).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let content = fs::read_to_string(&path).unwrap();
                assert!(contents.contains(&content), "{} bytes", content.len());
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for content in contents.iter().rev().cycle().take(40) {
            runtime.block_on(place.done("write", json!({"path": path, "content": content})));
        }
        ended.store(true, Ordering::Relaxed);
    });
}

#[tokio::test]
async fn absent_removes_files_links_and_empty_directories() {
    let place = Place::new();
    fs::write(place.path("file"), "x").unwrap();
    fs::create_dir_all(place.path("full/inside")).unwrap();
    symlink(place.path("full"), place.path("link")).unwrap();
    for name in ["file", "link", "full/inside"] {
        let params = json!({"path": place.path(name)});
        assert_eq!(place.done("absent", params.clone()).await, format!("removed /{name}\n"));
        assert_eq!(place.done("absent", params).await, format!("unchanged /{name}: it does not exist\n"));
    }
    fs::write(place.path("full/file"), "x").unwrap();
    let error = place.failed("absent", json!({"path": place.path("full")})).await;
    assert_eq!(error, "cannot remove `/full`: the directory is not empty; remove its content first");
    place.done("absent", json!({"path": place.path("full/file")})).await;
    place.done("absent", json!({"path": place.path("full")})).await;
    assert_eq!(place.names(), [""; 0]);
}

#[tokio::test]
async fn stat_describes_what_is_there_in_one_line() {
    let place = Place::new();
    fs::write(place.path("file"), "hello\n").unwrap();
    fs::set_permissions(place.path("file"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("file", place.path("link")).unwrap();
    nix::unistd::mkfifo(&place.path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let stat = async |name: &str| -> Value {
        let printed = place.done("stat", json!({"path": place.path(name)})).await;
        assert_eq!(printed.lines().count(), 1);
        serde_json::from_str(&printed).unwrap()
    };
    let file = stat("file").await;
    assert_eq!(
        (&file["exists"], &file["kind"], &file["size"], &file["mode"]),
        (&json!(true), &json!("file"), &json!(6), &json!("0640"))
    );
    assert_eq!(file["sha256"], "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    assert_eq!(file["uid"], json!(Uid::effective().as_raw()));
    assert!(file["mtime"].as_str().unwrap().ends_with('Z'), "{file}");
    let link = stat("link").await;
    assert_eq!(
        (&link["kind"], &link["target"], &link["sha256"]),
        (&json!("symlink"), &json!("file"), &Value::Null)
    );
    // A pipe without a writer is not read.
    assert_eq!(stat("pipe").await["kind"], "fifo");
    assert_eq!(stat("none").await, json!({"path": "/none", "exists": false}));
    assert_eq!(stat("file/below").await["exists"], json!(false));
}

#[tokio::test]
async fn what_is_cancelled_before_it_starts_changes_nothing() {
    let place = Place::new();
    place.bench.cancel.cancel();
    for (action, params) in [
        ("write", json!({"path": place.path("file"), "content": "x"})),
        ("absent", json!({"path": place.path("file")})),
        ("stat", json!({"path": place.path("file")})),
    ] {
        assert_eq!(place.bench.run(&File, action, params).await.verdict, Verdict::Cancelled);
    }
    assert_eq!(place.names(), [""; 0]);
}
