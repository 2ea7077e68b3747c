//! The memory store passes the conformance suite.

use std::sync::Arc;

use downbeat_store::{Events, MemoryStore, Replica, Store};

struct Fresh {
    store: Arc<dyn Store>,
}

impl Fresh {
    async fn done(self) {
        self.store.close().await;
    }
}

async fn fresh() -> Fresh {
    let store = downbeat_store::open("memory:").await.unwrap();
    assert_eq!(store.name(), "memory");
    Fresh { store }
}

downbeat_store::conformance_suite!(fresh);

struct FreshCopy {
    store: Arc<dyn Replica>,
}

impl FreshCopy {
    async fn done(self) {
        self.store.close().await;
    }
}

async fn fresh_copy() -> FreshCopy {
    FreshCopy { store: downbeat_store::open_replica("memory:").await.unwrap() }
}

downbeat_store::replica_suite!(fresh_copy);

#[tokio::test]
async fn two_memory_stores_share_nothing() {
    let (one, other) = (MemoryStore::new(), MemoryStore::default());
    let change = downbeat_store::conformance::make::created(1);
    one.commit(downbeat_store::conformance::make::SERVER, &[change]).await.unwrap();
    assert_eq!((one.last_seq().await.unwrap(), other.last_seq().await.unwrap()), (1, 0));
}
