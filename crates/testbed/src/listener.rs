//! A fault of a port: the socket on which a process listens is shut down from outside.

use std::fs;
use std::net::{Shutdown, TcpStream};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// The state of a listening socket in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// Shuts down the socket on which a process listens at an address: from then on it accepts no connection.
pub fn shut_listener(pid: i32, address: &str) {
    let port: u16 =
        address.rsplit(':').next().and_then(|port| port.parse().ok()).expect("the address has a port");
    let socket = format!("socket:[{}]", inode(port));
    let files = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process exists").flatten();
    let is_socket = |path| fs::read_link(path).is_ok_and(|target| target.to_str() == Some(&socket));
    let listener = files.into_iter().find(|file| is_socket(file.path())).expect("the process listens");
    let listener = listener.file_name().to_str().and_then(|number| number.parse().ok()).expect("a number");
    let process = Pid::from_raw(pid).expect("a process");
    let process = pidfd_open(process, PidfdFlags::empty()).expect("the process exists");
    let listener =
        pidfd_getfd(process, listener, PidfdGetfdFlags::empty()).expect("its socket can be copied");
    TcpStream::from(listener).shutdown(Shutdown::Both).expect("it is shut down");
}

/// Returns the number of the socket that listens at this port.
fn inode(port: u16) -> String {
    let sockets = fs::read_to_string("/proc/net/tcp").expect("the system lists its sockets");
    let mut inodes = sockets.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = fields.get(1)?.rsplit_once(':')?;
        let is_it = u16::from_str_radix(local, 16) == Ok(port) && fields.get(3) == Some(&LISTENS);
        is_it.then(|| fields.get(9).map(|inode| (*inode).to_owned()))?
    });
    inodes.next().expect("somebody listens at this port")
}
