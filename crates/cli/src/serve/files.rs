//! Owns how many files this process may have open. Every node is a connection, and a connection is a file: what a shell
//! allows a program by default is too little for a fleet.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Allows as many as the system lets a process allow itself; answers how many.
pub(crate) fn allow_most() -> nix::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_it_may_be() {
        let most = allow_most().unwrap();
        assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (most, most));
    }
}
