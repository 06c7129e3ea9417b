//! Addresses for servers that cannot choose a port themselves.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// An address of this machine that no process listens at.
pub fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    listener.and_then(|listener| listener.local_addr()).expect("a port is free")
}
