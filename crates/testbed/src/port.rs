//! A port that belongs to a test, whether a server listens on it or not.

use tokio::net::TcpSocket;

/// A socket that is bound and never listens: no connection and no other test gets its port, and a server of this test
/// can listen there, also after restarts.
#[derive(Debug)]
pub(crate) struct Port {
    _socket: TcpSocket,
    pub(crate) address: String,
}

impl Port {
    pub(crate) fn reserve() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_reuseaddr(true).unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = socket.local_addr().unwrap().to_string();
        Self { _socket: socket, address }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_server_can_listen_at_a_reserved_port_again_and_again_and_nobody_else_is_given_it() {
        let port = Port::reserve();
        for _ in 0..3 {
            let listener = TcpListener::bind(&port.address).unwrap();
            let client = TcpStream::connect(&port.address).unwrap();
            drop((listener.accept().unwrap(), listener, client));
        }
        // More tries than there are ports: a connection to an unused local port may get that port as its own.
        for _ in 0..70_000 {
            assert!(TcpStream::connect(&port.address).is_err(), "the socket is connected to itself");
        }
    }
}
