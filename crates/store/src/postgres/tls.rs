//! Owns the encryption of connections to PostgreSQL: `sslmode` and `sslrootcert` of the location, which the driver
//! supports only in part. A password read from the network gives access to the whole store, so a location on another
//! host must set `sslmode`.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::port::{Error, Result};

/// The encryption options of a location.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Encryption {
    /// None if `sslmode` is not set.
    mode: Option<SslMode>,
    /// The file with the authorities that may sign the server's certificate; by default the host's own.
    authorities: Option<String>,
}

/// Separates the encryption options from the part that the driver parses.
pub(super) fn split(location: &str) -> Result<(String, Encryption)> {
    let Some((base, query)) = location.split_once('?') else {
        return Ok((location.to_owned(), Encryption::default()));
    };
    let mut encryption = Encryption::default();
    let mut rest = Vec::new();
    for pair in query.split('&') {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        match name {
            "sslmode" => encryption.mode = Some(mode(value)?),
            "sslrootcert" => {
                let file = percent_decode_str(value).decode_utf8_lossy().into_owned();
                encryption.authorities = Some(file).filter(|file| file != "system");
            }
            _ => rest.push(pair),
        }
    }
    let rest = rest.join("&");
    Ok((if rest.is_empty() { base.to_owned() } else { format!("{base}?{rest}") }, encryption))
}

fn mode(value: &str) -> Result<SslMode> {
    match value {
        "disable" => Ok(SslMode::Disable),
        "prefer" => Ok(SslMode::Prefer),
        // An unchecked certificate proves nothing, so every mode checks it.
        "require" | "verify-full" => Ok(SslMode::Require),
        _ => Err(Error::BadOption(
            "the store's `sslmode` must be disable, prefer, require or verify-full".to_owned(),
        )),
    }
}

/// Sets the driver's mode and returns its TLS connector.
pub(super) fn prepare(config: &mut Config, encryption: &Encryption) -> Result<MakeRustlsConnect> {
    let mode = match encryption.mode {
        Some(mode) => mode,
        None if encryption.authorities.is_some() => SslMode::Require,
        // Many local servers have a self-signed default certificate, and these connections never leave the host.
        None if is_local(config) => SslMode::Disable,
        None => {
            return Err(Error::BadOption(
                "the store is on another host: set sslmode=require (TLS) or sslmode=disable in its URL, such as \
                 postgres://USER@HOST/DATABASE?sslmode=require"
                    .to_owned(),
            ));
        }
    };
    config.ssl_mode(mode);
    let roots = if mode == SslMode::Disable {
        RootCertStore::empty()
    } else {
        roots(encryption.authorities.as_deref())?
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::BadOption(format!("cannot set up TLS to PostgreSQL: {error}")))?;
    Ok(MakeRustlsConnect::new(builder.with_root_certificates(roots).with_no_client_auth()))
}

/// Returns true if every address of the location is this host.
fn is_local(config: &Config) -> bool {
    let addresses = config.get_hostaddrs();
    if !addresses.is_empty() {
        return addresses.iter().all(IpAddr::is_loopback);
    }
    config.get_hosts().iter().all(|host| match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    })
}

fn roots(file: Option<&str>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match file {
        Some(file) => {
            let cannot = |why: String| Error::BadOption(format!("cannot read `sslrootcert` {file}: {why}"));
            let certificates =
                CertificateDer::pem_file_iter(Path::new(file)).map_err(|error| cannot(error.to_string()))?;
            for certificate in certificates {
                let certificate = certificate.map_err(|error| cannot(error.to_string()))?;
                roots.add(certificate).map_err(|error| cannot(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(cannot("the file contains no certificate".to_owned()));
            }
        }
        None => {
            // Unreadable certificates are skipped; the others are still trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::BadOption(
                    "this host trusts no certificate authority; install ca-certificates, or name a file with \
                     sslrootcert=FILE"
                        .to_owned(),
                ));
            }
        }
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode_of(location: &str) -> Result<SslMode, String> {
        let (rest, encryption) = split(location).map_err(|error| error.to_string())?;
        let mut config: Config = rest.parse().unwrap();
        prepare(&mut config, &encryption).map_err(|error| error.to_string())?;
        Ok(config.get_ssl_mode())
    }

    #[test]
    fn a_store_on_another_host_says_whether_it_is_encrypted() {
        for location in [
            "postgres://u:p@db/x",
            "postgres://u@10.0.0.1:5432/x?connect_timeout=3",
            "postgres://u@127.0.0.1,db/x",
        ] {
            let refused = mode_of(location).unwrap_err();
            assert!(refused.contains("set sslmode=require (TLS) or sslmode=disable"), "{refused}");
            assert!(!refused.contains("u:p"), "{refused}");
        }
        assert_eq!(mode_of("postgres://u@db/x?sslmode=disable"), Ok(SslMode::Disable));
    }

    #[test]
    fn a_local_store_needs_no_encryption() {
        for location in [
            "postgres://u@127.0.0.1/x",
            "postgres://u@localhost/x",
            "postgres://u@[::1]/x",
            "postgres://u@%2Frun%2Fpg/x",
        ] {
            assert_eq!(mode_of(location), Ok(SslMode::Disable), "{location}");
        }
    }

    #[test]
    fn the_drivers_part_of_a_location_keeps_its_other_options() {
        let (rest, encryption) =
            split("postgres://u@db/x?connect_timeout=3&sslmode=verify-full&sslrootcert=%2Fetc%2Fmy%20ca.pem")
                .unwrap();
        assert_eq!(rest, "postgres://u@db/x?connect_timeout=3");
        let expected =
            Encryption { mode: Some(SslMode::Require), authorities: Some("/etc/my ca.pem".to_owned()) };
        assert_eq!(encryption, expected);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert!(
            mode_of("postgres://u@db/x?sslmode=verify-ca").unwrap_err().contains("must be disable, prefer")
        );
        let missing = mode_of("postgres://u@db/x?sslrootcert=/nowhere/ca.pem").unwrap_err();
        assert!(missing.contains("cannot read `sslrootcert` /nowhere/ca.pem"), "{missing}");
    }
}
