//! The store over TLS, on the test's own PostgreSQL.

use std::path::PathBuf;

use downbeat_store::{Error, Events as _, PostgresStore};
use downbeat_testbed::Postgres;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

struct Encrypted {
    /// Dropped before its directory.
    _postgres: Postgres,
    dir: TempDir,
    url: String,
}

impl Encrypted {
    /// Starts it with a certificate for `localhost`, signed by its own authority.
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let postgres = dir.path().join("postgres");
        std::fs::create_dir(&postgres).unwrap();
        let mut authority = CertificateParams::new(Vec::new()).unwrap();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate().unwrap();
        let certificate = authority.self_signed(&authority_key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), certificate.pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let issuer = Issuer::new(authority, authority_key);
        let server =
            CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
        std::fs::write(postgres.join("server.crt"), server.pem()).unwrap();
        std::fs::write(postgres.join("server.key"), key.serialize_pem()).unwrap();
        // PostgreSQL runs as its own user, which must be able to enter the directory.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let postgres = Postgres::start_in(postgres);
        let url = postgres.url.replace("127.0.0.1", "localhost");
        Self { _postgres: postgres, dir, url }
    }

    fn authority(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    async fn open(&self, options: &str) -> Result<PostgresStore, Error> {
        PostgresStore::open(&format!("{}{options}", self.url)).await
    }

    /// Returns how many of the store's connections are encrypted, and how many are not.
    async fn connections(&self) -> (i64, i64) {
        let (client, connection) =
            tokio_postgres::connect(&self.url, tokio_postgres::NoTls).await.expect("PostgreSQL answers");
        tokio::spawn(connection);
        let sql = "SELECT count(*) FILTER (WHERE s.ssl), count(*) FILTER (WHERE NOT s.ssl) \
                   FROM pg_stat_activity a JOIN pg_stat_ssl s USING (pid) WHERE a.application_name = 'downbeat'";
        let row = client.query_one(sql, &[]).await.unwrap();
        (row.get(0), row.get(1))
    }
}

#[tokio::test]
async fn every_connection_of_a_store_that_asks_for_it_is_encrypted() {
    let postgres = Encrypted::start();
    let trusting = format!("?sslmode=require&sslrootcert={}", postgres.authority().display());
    let store = postgres.open(&trusting).await.unwrap();
    store.last_seq().await.unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    // At least one that reads and one that listens.
    loop {
        let (encrypted, clear) = postgres.connections().await;
        assert_eq!(clear, 0);
        if encrypted >= 2 {
            break;
        }
        assert!(std::time::Instant::now() < deadline, "{encrypted} connections");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(store);

    let untrusted = postgres.open("?sslmode=require").await.unwrap_err().to_string();
    assert!(untrusted.contains("certificate") && untrusted.contains("sslrootcert=FILE"), "{untrusted}");
    let other_name =
        PostgresStore::open(&format!("{}{trusting}", postgres.url.replace("localhost", "127.0.0.1"))).await;
    let other_name = other_name.unwrap_err().to_string();
    assert!(other_name.contains("certificate"), "{other_name}");

    let store = postgres.open("?sslmode=disable").await.unwrap();
    store.last_seq().await.unwrap();
    assert!(postgres.connections().await.1 > 0);
    drop(store);
}
