//! The command line as a client of a server.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::process::{Done, Process};
use crate::program::command;
use crate::results::with_results;
use crate::server::Server;
use crate::wait::until;

/// Runs a command that needs no server, or names its own, to its end.
pub fn run_in(directory: &Path, arguments: &[&str]) -> Done {
    Done::of(command(directory).args(arguments))
}

impl Server {
    /// Returns a command of the program as a client of this server.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(&self.directory);
        command.env("DOWNBEAT_SERVER", self.url()).args(arguments);
        command
    }

    /// Runs a client to its end.
    pub fn run(&self, arguments: &[&str]) -> Done {
        Done::of(&mut self.command(arguments))
    }

    /// Starts a client that keeps running.
    pub fn spawn(&self, arguments: &[&str]) -> Process {
        Process::spawn(self.command(arguments))
    }

    /// Returns the JSON document that a command prints.
    #[track_caller]
    pub fn json(&self, arguments: &[&str]) -> Value {
        self.run(&[arguments, &["-o", "json"]].concat()).json()
    }

    /// Returns a run with its results by step and node or item.
    #[track_caller]
    pub fn whole_run(&self, id: &str) -> Value {
        let run = self.json(&["run", "show", id]);
        with_results(run, &self.json(&["run", "results", id]))
    }

    /// Submits a job, and returns the run's id.
    #[track_caller]
    pub fn submit(&self, arguments: &[&str]) -> String {
        let run = self.run(&[&["job", "run", "-o", "json"], arguments].concat()).json();
        run["id"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn run_status(&self, id: &str) -> String {
        self.json(&["run", "show", id])["status"].as_str().unwrap().to_owned()
    }

    #[track_caller]
    pub fn nodes_online(&self, count: usize) {
        until("the nodes are online", || {
            let nodes = self.json(&["node", "list"]);
            let online = nodes["data"].as_array()?.iter().filter(|node| node["status"] == "online").count();
            (online == count).then_some(())
        });
    }
}
