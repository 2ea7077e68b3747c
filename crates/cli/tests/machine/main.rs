//! A machine for real: a Debian with a booted systemd in which an agent runs as a service, and what jobs do to it.
//! Checks use the machine's own records: dpkg's log, the journal, its processes.

#![allow(clippy::print_stderr, reason = "what to look at when it fails")]

mod apt;
mod end;
mod flow;
mod host;
mod service;
mod site;
mod systemd;
