//! The protocol of leases and owners, checked exhaustively for small numbers.
